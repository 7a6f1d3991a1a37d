// Package audit keeps a log that only grows and whose lines hang together: each holds
// the hash of the one before it, so that no line can be changed, removed or put in
// between without all later ones telling.
//
// A line is {"hash":H,"entry":E} where H is the SHA-256 of the bytes of E. That a log
// was cut off at its end is not to be seen in it: the head that Verify returns, and
// the ones that receipts hold, have to be kept somewhere else for that.
package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Entry is one line. What was presented, what was authorised, what was attempted and
// what was observed are kept apart: they are claims of different parties.
type Entry struct {
	Seq  int64     `json:"seq"` // from 1; set by Append, as the next three are
	Time time.Time `json:"time"`
	Prev string    `json:"prev"`           // hash of the line before
	Torn string    `json:"torn,omitempty"` // SHA-256 of what crashes left between that line and this one

	Event      string `json:"event"` // dispatch, approval, secret, start, end, refused, resume
	Call       string `json:"call"`  // the same for all lines of one call
	Project    string `json:"project"`
	Capability string `json:"capability"`

	Presented  any `json:"presented,omitempty"`  // what the caller said
	Authorised any `json:"authorised,omitempty"` // what was found to be allowed, and by whom
	Attempted  any `json:"attempted,omitempty"`  // what was begun
	Observed   any `json:"observed,omitempty"`   // what the host saw of it
}

// Head is the last line of a log.
type Head struct {
	Seq  int64  `json:"seq"`
	Hash string `json:"hash"`
}

const (
	maxLine = 1 << 20
	prefix  = `{"hash":"`
	middle  = `","entry":`
	start   = len(prefix) + 2*sha256.Size + len(middle)
)

// Log is the file of a log. Any number of processes may append to it.
type Log struct{ Path string }

// Append adds an entry and returns once it is on disk.
func (l Log) Append(e Entry) (Head, error) {
	head, err := l.append(e)
	if err != nil {
		return Head{}, fmt.Errorf("cannot write audit log=%s: %w", l.Path, err)
	}
	return head, nil
}

func (l Log) append(e Entry) (head Head, err error) {
	if err := os.MkdirAll(filepath.Dir(l.Path), 0o700); err != nil {
		return Head{}, err
	}
	f, err := os.OpenFile(l.Path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return Head{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }() // which gives the lock back
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return Head{}, err
	}
	last, torn, open, err := tail(f)
	if err != nil {
		return Head{}, err
	}
	e.Seq, e.Time, e.Prev = last.Seq+1, time.Now().UTC(), last.Hash
	var line []byte
	if open || len(torn) > 0 {
		line = []byte("\n")
	}
	if len(torn) > 0 {
		e.Torn = hashOf(torn)
	}
	entry, err := json.Marshal(e)
	if err != nil {
		return Head{}, err
	}
	head = Head{e.Seq, hashOf(entry)}
	line = fmt.Appendf(line, "%s%s%s%s}\n", prefix, head.Hash, middle, entry)
	if len(line) > maxLine {
		return Head{}, fmt.Errorf("a line of %d bytes is longer than %d", len(line), maxLine)
	}
	if _, err := f.Write(line); err != nil {
		return Head{}, err
	}
	return head, f.Sync()
}

// Of returns the entries of one call, in their order. It reads the whole log and leaves
// out what is no line of it.
func (l Log) Of(call string) ([]Entry, error) {
	f, err := os.Open(l.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read audit log=%s: %w", l.Path, err)
	}
	defer f.Close()
	var found []Entry
	in := bufio.NewReaderSize(f, 64<<10)
	for {
		line, err := readLine(in)
		if bytes.Contains(line, []byte(call)) {
			if e, _, bad := parse(line); bad == nil && e.Call == call {
				found = append(found, e)
			}
		}
		if err == io.EOF {
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read audit log=%s: %w", l.Path, err)
		}
	}
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// tail returns the last whole line, what crashes left behind it, and whether they took
// nothing but its end. It reads no more than it has to.
func tail(f *os.File) (last Head, torn []byte, open bool, err error) {
	info, err := f.Stat()
	if err != nil {
		return Head{}, nil, false, err
	}
	for size := int64(32 << 10); ; size *= 10 {
		size = min(size, info.Size(), 3*maxLine)
		data := make([]byte, size)
		if _, err := f.ReadAt(data, info.Size()-size); err != nil {
			return Head{}, nil, false, err
		}
		last, torn, found := lastLine(data, size == info.Size())
		switch {
		case found || size == info.Size() && size <= maxLine:
			return last, torn, found && len(torn) == 0 && data[size-1] != '\n', nil
		case size == info.Size() || size == 3*maxLine:
			return Head{}, nil, false, errors.New("it does not end in a line of this log")
		}
	}
}

// lastLine finds the last line of this log in data, and what is behind it: all of data if
// there is none. all says that data begins where the log does. One without its end is a
// line too: a crash may have taken just that.
func lastLine(data []byte, all bool) (last Head, torn []byte, found bool) {
	for end := len(data); end >= 0; end = bytes.LastIndexByte(data[:end], '\n') {
		from := bytes.LastIndexByte(data[:end], '\n') + 1
		if from == 0 && !all {
			break // its beginning is not here
		}
		if e, hash, err := parse(data[from:end]); err == nil {
			return Head{e.Seq, hash}, data[min(end+1, len(data)):], true
		}
	}
	return Head{}, data, false
}

// parse reads one line, without its end.
func parse(line []byte) (Entry, string, error) {
	if len(line) < start+2 || !bytes.HasPrefix(line, []byte(prefix)) || string(line[start-len(middle):start]) != middle || line[len(line)-1] != '}' {
		return Entry{}, "", errors.New("it is no line of an audit log")
	}
	hash, entry := string(line[len(prefix):start-len(middle)]), line[start:len(line)-1]
	if hashOf(entry) != hash {
		return Entry{}, "", errors.New("its hash is not that of its entry: it was changed")
	}
	var e Entry
	if err := json.Unmarshal(entry, &e); err != nil {
		return Entry{}, "", errors.New("its entry cannot be read")
	}
	return e, hash, nil
}

// BrokenError is where a log does not hang together.
type BrokenError struct {
	Line int
	Why  string
}

func (e *BrokenError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Why) }

// Summary is what Verify found in a log that holds.
type Summary struct {
	Lines int  `json:"lines"`
	Torn  int  `json:"torn"` // halves of lines that crashes left, attested by the line after them
	Open  bool `json:"open"` // it ends in half a line, which the next line will attest
	Head  Head `json:"head"`

	hashes []string
}

// Verify reads a whole log. The error is a *BrokenError where lines do not hang
// together. Has tells of single lines.
func Verify(r io.Reader) (Summary, error) {
	s := Summary{}
	var torn []byte
	in := bufio.NewReaderSize(r, 64<<10)
	for n := 1; ; n++ {
		line, err := readLine(in)
		if err == io.EOF && len(line) == 0 {
			s.Open = torn != nil
			return s, nil
		}
		if err != nil && err != io.EOF {
			return s, err
		}
		e, hash, bad := parse(line)
		if bad != nil {
			if len(torn) > maxLine {
				return s, &BrokenError{n, "it is not finished, and no line of this log"}
			}
			if s.Torn++; torn != nil {
				torn = append(torn, '\n')
			}
			torn = append(torn, line...)
			if torn == nil {
				torn = []byte{}
			}
			continue
		}
		if why := s.follows(e, torn); why != "" {
			return s, &BrokenError{n, why}
		}
		torn = nil
		s.Head = Head{e.Seq, hash}
		s.hashes = append(s.hashes, hash)
		s.Lines++
	}
}

// follows returns "" or why the entry cannot be the next one.
func (s Summary) follows(e Entry, torn []byte) string {
	attested := ""
	if torn != nil {
		attested = hashOf(torn)
	}
	switch {
	case e.Torn != attested:
		return "what is before it is not of this log: it was changed or put in"
	case e.Seq != s.Head.Seq+1:
		return fmt.Sprintf("its number is %d and not %d: lines are missing, or came in between", e.Seq, s.Head.Seq+1)
	case e.Prev != s.Head.Hash:
		return "it does not follow the line before it"
	}
	return ""
}

// Has reports whether the log holds this very line.
func (s Summary) Has(h Head) bool {
	return h.Seq >= 1 && h.Seq <= int64(len(s.hashes)) && s.hashes[h.Seq-1] == h.Hash
}

func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			return line[:len(line)-1], nil
		}
		if err != bufio.ErrBufferFull || len(line) > 2*maxLine {
			return line, err
		}
	}
}
