// Package outbox is a durable queue of messages in one file: what was appended is
// given out in order until it is acknowledged, whatever crashes in between.
//
// A message is on the disk when Append returns. With it, in the same record, goes a
// mark of its producer, under a key: the last mark of each key is there when the box is
// opened again. A producer that derives messages from something else and marks how far
// it got so makes each of them exactly once. A message may be given out again after a
// crash, if that happened before its acknowledgement was written.
//
// The file is a row of records, and is written anew without what was acknowledged when
// that is worth it:
//
//	u32 length · u32 CRC-32C of what follows · u8 kind · u64 sequence · payload
//
// A torn or damaged record ends the file: what follows it was never confirmed to
// anybody. One process alone has a box open; its lock says so.
package outbox

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Sentinels to test with errors.Is.
var (
	ErrFull = errors.New("outbox is full")
	ErrBusy = errors.New("outbox is open in another process")
	ErrBad  = errors.New("outbox is damaged, its last write failed")
)

const (
	// MaxMessage bounds one message and one mark together.
	MaxMessage = 4 << 20

	headBytes  = 17
	maxRecord  = MaxMessage + 1<<10
	maxKey     = 1 << 10
	compactMin = 256 << 10 // bytes by which the file outgrows twice its content before it is written anew
)

type kind uint8

const (
	kindMessage kind = 1 // u64 nanoseconds since 1970 · u16 key length · key · u32 mark length · mark · message
	kindAck     kind = 2 // nothing: all up to this sequence
	kindMark    kind = 3 // as a message, without one
	kindBase    kind = 4 // nothing: the first record of a file, sequences go on from here
)

// Message is one that waits.
type Message struct {
	Sequence uint64 // from 1, without gaps
	Appended time.Time
	Body     []byte
}

// Box is an open outbox. It is safe for use by many goroutines.
type Box struct {
	path string
	cap  int64

	mu      sync.Mutex
	file    *os.File
	size    int64 // of the file
	base    int64 // of the file when it was last written anew
	pending []Message
	bytes   int64  // of pending bodies
	last    uint64 // sequence of the last message
	acked   uint64
	marks   map[string][]byte
	bad     bool
	changed chan struct{} // closed and replaced at each append
}

// Open opens the box at path, or makes it. Capacity bounds the bytes of the messages
// that wait. It returns ErrBusy, wrapped, while another process has it open.
func Open(path string, capacity int64) (*Box, error) {
	b := &Box{path: path, cap: capacity, marks: map[string][]byte{}, changed: make(chan struct{})}
	if err := b.open(); err != nil {
		b.closeFile()
		return nil, fmt.Errorf("cannot open outbox=%s: %w", path, err)
	}
	return b, nil
}

func (b *Box) open() error {
	f, err := os.OpenFile(b.path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	b.file = f
	if err := lock(f); err != nil {
		return err
	}
	// Another process may have written it anew between the two steps.
	same, err := isAt(f, b.path)
	if err == nil && !same {
		err = ErrBusy
	}
	if err != nil {
		return err
	}
	if b.size, err = b.replay(bufio.NewReader(f)); err != nil {
		return err
	}
	if err := f.Truncate(b.size); err != nil {
		return err
	}
	// The name has to outlive a power failure as the records do.
	return errors.Join(f.Sync(), syncDir(filepath.Dir(b.path)))
}

func lock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrBusy
		default:
			return err
		}
	}
}

func isAt(f *os.File, path string) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Lstat(path)
	if err != nil {
		return false, err
	}
	return os.SameFile(mine, there), nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// replay reads the records and returns where the last whole one ends.
func (b *Box) replay(r io.Reader) (end int64, err error) {
	for {
		k, seq, payload, err := readRecord(r)
		if errors.Is(err, io.EOF) || errors.Is(err, errTorn) {
			return end, nil
		}
		if err != nil {
			return end, err
		}
		if !b.apply(k, seq, payload) {
			return end, nil
		}
		end += headBytes + int64(len(payload))
	}
}

var errTorn = errors.New("torn record")

func readRecord(r io.Reader) (kind, uint64, []byte, error) {
	var head [headBytes]byte
	if n, err := io.ReadFull(r, head[:]); err != nil {
		if n > 0 && errors.Is(err, io.ErrUnexpectedEOF) {
			err = errTorn
		}
		return 0, 0, nil, err
	}
	length := binary.LittleEndian.Uint32(head[:])
	if length < headBytes-8 || length > maxRecord {
		return 0, 0, nil, errTorn
	}
	payload := make([]byte, length-(headBytes-8))
	if _, err := io.ReadFull(r, payload); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			err = errTorn
		}
		return 0, 0, nil, err
	}
	sum := crc32.Update(crc32.Checksum(head[8:], castagnoli), castagnoli, payload)
	if sum != binary.LittleEndian.Uint32(head[4:]) {
		return 0, 0, nil, errTorn
	}
	return kind(head[8]), binary.LittleEndian.Uint64(head[9:]), payload, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// apply takes one record into account, and returns false for one that no writer wrote.
func (b *Box) apply(k kind, seq uint64, payload []byte) bool {
	switch k {
	case kindBase:
		if b.last != 0 || len(b.pending) > 0 || len(payload) > 0 {
			return false
		}
		b.last, b.acked = seq, seq
	case kindAck:
		if seq < b.acked || seq > b.last {
			return false
		}
		b.forget(seq)
	case kindMark, kindMessage:
		at, key, mark, body, ok := split(payload)
		if !ok || k == kindMessage && seq != b.last+1 || k == kindMark && len(body) > 0 {
			return false
		}
		b.mark(key, mark)
		if k == kindMessage {
			b.last = seq
			b.pending = append(b.pending, Message{seq, at, body})
			b.bytes += int64(len(body))
		}
	default:
		return false
	}
	return true
}

// mark keeps a producer's mark; an empty one is none.
func (b *Box) mark(key string, mark []byte) {
	if len(mark) == 0 {
		delete(b.marks, key)
		return
	}
	b.marks[key] = mark
}

func split(payload []byte) (at time.Time, key string, mark, body []byte, ok bool) {
	if len(payload) < 10 {
		return at, "", nil, nil, false
	}
	at = time.Unix(0, int64(binary.LittleEndian.Uint64(payload)))
	payload = payload[8:]
	n := int(binary.LittleEndian.Uint16(payload))
	if payload = payload[2:]; n > maxKey || len(payload) < n+4 {
		return at, "", nil, nil, false
	}
	key, payload = string(payload[:n]), payload[n:]
	m := int64(binary.LittleEndian.Uint32(payload))
	if payload = payload[4:]; int64(len(payload)) < m {
		return at, "", nil, nil, false
	}
	return at, key, payload[:m:m], payload[m:], true
}

func join(at time.Time, key string, mark, body []byte) []byte {
	p := make([]byte, 0, 14+len(key)+len(mark)+len(body))
	p = binary.LittleEndian.AppendUint64(p, uint64(at.UnixNano()))
	p = binary.LittleEndian.AppendUint16(p, uint16(len(key)))
	p = append(p, key...)
	p = binary.LittleEndian.AppendUint32(p, uint32(len(mark)))
	return append(append(p, mark...), body...)
}

func record(k kind, seq uint64, payload []byte) []byte {
	r := make([]byte, headBytes, headBytes+len(payload))
	binary.LittleEndian.PutUint32(r, uint32(headBytes-8+len(payload)))
	r[8] = byte(k)
	binary.LittleEndian.PutUint64(r[9:], seq)
	r = append(r, payload...)
	binary.LittleEndian.PutUint32(r[4:], crc32.Checksum(r[8:], castagnoli))
	return r
}

// forget drops what is acknowledged.
func (b *Box) forget(seq uint64) {
	n := 0
	for n < len(b.pending) && b.pending[n].Sequence <= seq {
		b.bytes -= int64(len(b.pending[n].Body))
		n++
	}
	b.pending = b.pending[n:]
	b.acked = max(b.acked, seq)
}

// Append puts a message at the end, with its producer's mark under key. It returns
// ErrFull, wrapped, where the box has no room for it; urgent ones find room once more
// as large.
func (b *Box) Append(body []byte, key string, mark []byte, urgent bool) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(body)+len(mark) > MaxMessage || len(key) > maxKey {
		return 0, fmt.Errorf("cannot append to outbox=%s: %d bytes are more than %d", b.path, len(body)+len(mark), MaxMessage)
	}
	room := b.cap
	if urgent {
		room *= 2
	}
	if b.bytes+int64(len(body)) > room {
		return 0, fmt.Errorf("cannot append to outbox=%s: %d of %d bytes wait: %w", b.path, b.bytes, room, ErrFull)
	}
	seq := b.last + 1
	payload := join(time.Now(), key, mark, body)
	if err := b.write(record(kindMessage, seq, payload)); err != nil {
		return 0, err
	}
	b.apply(kindMessage, seq, payload)
	close(b.changed)
	b.changed = make(chan struct{})
	return seq, nil
}

// Mark puts a producer's mark on record without a message.
func (b *Box) Mark(key string, mark []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(mark) > MaxMessage || len(key) > maxKey {
		return fmt.Errorf("cannot mark outbox=%s: %d bytes are more than %d", b.path, len(mark), MaxMessage)
	}
	if err := b.write(record(kindMark, 0, join(time.Now(), key, mark, nil))); err != nil {
		return err
	}
	b.mark(key, bytes.Clone(mark))
	return nil
}

// write appends one record and syncs it. A failure that may have left half a record
// spoils the box until it is opened again, which cuts that half off.
func (b *Box) write(rec []byte) error {
	switch {
	case b.file == nil:
		return fmt.Errorf("cannot write outbox=%s: %w", b.path, os.ErrClosed)
	case b.bad:
		return fmt.Errorf("cannot write outbox=%s: %w", b.path, ErrBad)
	}
	_, err := b.file.WriteAt(rec, b.size)
	if err == nil {
		err = b.file.Sync()
	}
	if err != nil {
		if b.file.Truncate(b.size) != nil {
			b.bad = true
		}
		return fmt.Errorf("cannot write outbox=%s: %w", b.path, err)
	}
	b.size += int64(len(rec))
	return nil
}

// First returns the oldest message that waits. The body must not be changed.
func (b *Box) First() (Message, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pending) == 0 {
		return Message{}, false
	}
	return b.pending[0], true
}

// Ack acknowledges all messages up to seq. Idempotent.
func (b *Box) Ack(seq uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if seq <= b.acked {
		return nil
	}
	if seq > b.last {
		return fmt.Errorf("cannot acknowledge message=%d of outbox=%s: the last is %d", seq, b.path, b.last)
	}
	if err := b.write(record(kindAck, seq, nil)); err != nil {
		return err
	}
	b.forget(seq)
	if b.size > 2*b.base+compactMin {
		// Without it the file is as good, only longer: the next write tells of a full disk.
		_ = b.compact()
	}
	return nil
}

// compact writes the file anew with what still counts. The new file is locked before
// it has the name.
func (b *Box) compact() error {
	content := record(kindBase, b.acked, nil)
	for _, key := range slices.Sorted(maps.Keys(b.marks)) {
		content = append(content, record(kindMark, 0, join(time.Now(), key, b.marks[key], nil))...)
	}
	for _, m := range b.pending {
		content = append(content, record(kindMessage, m.Sequence, join(m.Appended, "", b.marks[""], m.Body))...)
	}
	f, err := os.OpenFile(b.path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("cannot compact outbox=%s: %w", b.path, err)
	}
	err = lock(f)
	if err == nil {
		_, err = f.Write(content)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(f.Name(), b.path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot compact outbox=%s: %w", b.path, err), f.Close())
	}
	b.closeFile()
	b.file, b.size, b.base = f, int64(len(content)), int64(len(content))
	if err := syncDir(filepath.Dir(b.path)); err != nil {
		return fmt.Errorf("cannot compact outbox=%s: %w", b.path, err)
	}
	return nil
}

// Marks returns the last mark of each key.
func (b *Box) Marks() map[string][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.marks)
}

// Waiting is how many messages wait, and how many bytes they have.
func (b *Box) Waiting() (messages int, size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.pending), b.bytes
}

// Changed is closed when a message is appended after the call.
func (b *Box) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// Close lets another process have the box.
func (b *Box) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closeFile()
}

func (b *Box) closeFile() error {
	if b.file == nil {
		return nil
	}
	err := b.file.Close()
	b.file = nil
	return err
}

// Count counts the messages at the beginning that fit, and returns the last one's
// sequence.
func (b *Box) Count(fits func(Message) bool) (count int, last uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.pending {
		if !fits(m) {
			break
		}
		count, last = count+1, m.Sequence
	}
	return count, last
}
