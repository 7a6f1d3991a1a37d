package journal

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

// OutputRecord is one record of a run's output.
type OutputRecord struct {
	Kind     Kind
	Stream   Stream // of data and dropped
	Sequence uint64 // of data and tail: over both streams, from 1
	Time     time.Time
	Data     []byte    // of data and tail: valid until the next call
	Dropped  int64     // of dropped: bytes of the stream that are missing here
	Totals   [2]Totals // of end: stdout's and stderr's
}

// CorruptError reports an output record that no writer wrote.
type CorruptError struct {
	Offset int64
	Why    string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("cannot read output at byte %d: %s", e.Offset, e.Why)
}

// OutputReader reads a run's output, also while it is being written. Its memory
// is bounded whatever the file holds.
type OutputReader struct {
	src    io.ReaderAt
	closer io.Closer
	off    int64 // of the next record
	buf    *bufio.Reader
	data   []byte
	done   bool
}

// OpenOutput opens the output record at path from its beginning.
func OpenOutput(path string) (*OutputReader, error) { return OpenOutputAt(path, 0) }

// OpenOutputAt opens the output record at path from offset, which is 0 or what Offset
// returned. Any other place is found out when it is read.
func OpenOutputAt(path string, offset int64) (*OutputReader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read output: %w", err)
	}
	r := NewOutputReader(f, offset)
	r.closer = f
	return r, nil
}

// NewOutputReader reads src from offset, which is 0 or what Offset returned.
func NewOutputReader(src io.ReaderAt, offset int64) *OutputReader {
	return &OutputReader{src: src, off: offset}
}

// Close closes the file that OpenOutput opened.
func (r *OutputReader) Close() error {
	if r.closer == nil {
		return nil
	}
	return r.closer.Close()
}

// Offset is where the next record begins: reading may be taken up there.
func (r *OutputReader) Offset() int64 { return r.off }

// Done says whether the end of the output was read: nothing will follow.
func (r *OutputReader) Done() bool { return r.done }

// Next returns the next record. It returns io.EOF where the file ends, also in
// the middle of a record: that one is still being written, or its writer died.
// Next may be called again after it, and finds what was written since. Any
// other error is final.
func (r *OutputReader) Next() (OutputRecord, error) {
	if r.done {
		return OutputRecord{}, io.EOF
	}
	if r.buf == nil {
		// Read ahead through a window that starts at the next record.
		r.buf = bufio.NewReaderSize(io.NewSectionReader(r.src, r.off, math.MaxInt64-r.off), 64<<10)
	}
	rec, err := r.next()
	if err != nil {
		r.buf = nil
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
	}
	return rec, err
}

func (r *OutputReader) next() (OutputRecord, error) {
	if r.off == 0 {
		if err := r.readFileHeader(); err != nil {
			return OutputRecord{}, err
		}
	}
	var h [headerBytes]byte
	if _, err := io.ReadFull(r.buf, h[:]); err != nil {
		return OutputRecord{}, err
	}
	rec := OutputRecord{
		Kind:     Kind(h[0]),
		Stream:   Stream(h[1]),
		Sequence: binary.LittleEndian.Uint64(h[8:]),
		Time:     time.Unix(0, int64(binary.LittleEndian.Uint64(h[16:]))),
	}
	length := binary.LittleEndian.Uint32(h[4:])
	if err := r.check(rec, length); err != nil {
		return OutputRecord{}, err
	}
	if cap(r.data) < int(length) {
		r.data = make([]byte, length)
	}
	payload := r.data[:length]
	if _, err := io.ReadFull(r.buf, payload); err != nil {
		return OutputRecord{}, err
	}
	if err := r.fill(&rec, payload); err != nil {
		return OutputRecord{}, err
	}
	r.off += headerBytes + int64(length)
	r.done = rec.Kind == KindEnd
	return rec, nil
}

func (r *OutputReader) readFileHeader() error {
	var h [fileHeader]byte
	if _, err := io.ReadFull(r.buf, h[:]); err != nil {
		return err
	}
	if string(h[:8]) != magic {
		return &CorruptError{0, "not an output record"}
	}
	if v := binary.LittleEndian.Uint32(h[8:]); v != version {
		return &CorruptError{8, fmt.Sprintf("version %d is not %d", v, version)}
	}
	r.off = fileHeader
	return nil
}

// check refuses a header before anything is allocated for what it announces.
func (r *OutputReader) check(rec OutputRecord, length uint32) error {
	bad := func(format string, args ...any) error {
		return &CorruptError{r.off, fmt.Sprintf(format, args...)}
	}
	stream := rec.Stream == Stdout || rec.Stream == Stderr
	switch rec.Kind {
	case KindData:
		if !stream || length == 0 || length > maxData {
			return bad("%d bytes of stream %d", length, rec.Stream)
		}
	case KindTail:
		if !stream || length == 0 || length > tailSize {
			return bad("%d last bytes of stream %d", length, rec.Stream)
		}
	case KindDropped:
		if !stream || length != 8 {
			return bad("%d bytes tell what stream %d dropped", length, rec.Stream)
		}
	case KindEnd:
		if length != endBytes {
			return bad("%d bytes of totals", length)
		}
	default:
		return bad("kind %d", rec.Kind)
	}
	return nil
}

func (r *OutputReader) fill(rec *OutputRecord, payload []byte) error {
	switch rec.Kind {
	case KindData, KindTail:
		rec.Data = payload
	case KindDropped:
		rec.Dropped = int64(binary.LittleEndian.Uint64(payload))
		if rec.Dropped <= 0 {
			return &CorruptError{r.off, fmt.Sprintf("%d bytes dropped", rec.Dropped)}
		}
	case KindEnd:
		for i := range rec.Totals {
			t := &rec.Totals[i]
			t.Written = int64(binary.LittleEndian.Uint64(payload[16*i:]))
			t.Kept = int64(binary.LittleEndian.Uint64(payload[16*i+8:]))
			if t.Kept < 0 || t.Written < t.Kept {
				return &CorruptError{r.off, fmt.Sprintf("%d bytes kept of %d", t.Kept, t.Written)}
			}
		}
	}
	return nil
}

// followEvery is how often a reader that has caught up looks for more.
const followEvery = 20 * time.Millisecond

// Follow is Next that waits for more. It returns io.EOF after the end record,
// or where the file ends once alive, which says whether there is a writer that
// could go on, returns false. When ctx ends it returns its error.
func (r *OutputReader) Follow(ctx context.Context, alive func() bool) (OutputRecord, error) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for last := false; ; {
		rec, err := r.Next()
		if err != io.EOF || r.done || last {
			return rec, err
		}
		// A writer may have added something and died since Next looked, so
		// look once more after it was found dead.
		if last = !alive(); last {
			continue
		}
		select {
		case <-ctx.Done():
			return OutputRecord{}, ctx.Err()
		case <-tick.C:
		}
	}
}

// Output is all that is on record of a run's output.
type Output struct {
	Stdout, Stderr string // as Text gives them
	Totals         [2]Totals
	Cut            [2]bool // more was kept than is returned
	// Complete is false when the writer did not come to its end. Written is
	// then what is known to have been written, at least.
	Complete bool
}

// ReadOutput reads the whole output record at path, and returns at most most bytes of
// each stream. What can be read of one that is corrupt is returned together with the
// error.
func ReadOutput(path string, most int64) (Output, error) {
	r, err := OpenOutput(path)
	if err != nil {
		return Output{}, err
	}
	out, err := r.readAll(most)
	return out, errors.Join(err, r.Close())
}

func (r *OutputReader) readAll(most int64) (Output, error) {
	var out Output
	var raw [2]bytes.Buffer
	var failure error
	for {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			failure = err
			break
		}
		switch rec.Kind {
		case KindData:
			to := &raw[rec.Stream-1]
			to.Write(rec.Data[:min(int64(len(rec.Data)), most-int64(to.Len()))])
			t := &out.Totals[rec.Stream-1]
			t.Kept += int64(len(rec.Data))
			t.Written += int64(len(rec.Data))
		case KindDropped:
			out.Totals[rec.Stream-1].Written += rec.Dropped
		case KindEnd:
			out.Totals = rec.Totals
		}
	}
	out.Complete = r.done
	for i, text := range []*string{&out.Stdout, &out.Stderr} {
		out.Cut[i] = out.Totals[i].Kept > most
		*text = Text(raw[i].Bytes(), !r.done || out.Cut[i] || out.Totals[i].Truncated())
	}
	return out, failure
}

// Text makes valid UTF-8 of the first bytes of a stream, each invalid byte
// becoming U+FFFD. If the stream went on where kept was cut, an incomplete
// character at the end is the cut's doing and left out.
func Text(kept []byte, cut bool) string {
	if cut {
		kept = kept[:len(kept)-partial(kept)]
	}
	if utf8.Valid(kept) {
		return string(kept)
	}
	var b strings.Builder
	b.Grow(len(kept))
	for _, r := range string(kept) {
		b.WriteRune(r)
	}
	return b.String()
}

// partial is the length of an incomplete character at the end of b.
func partial(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
