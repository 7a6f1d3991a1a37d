package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The output record, output.log, little endian:
//
//	file    magic "ENGOUT\r\n" · u32 version · u32 zero · record...
//	record  u8 kind · u8 stream · u16 zero · u32 length · u64 sequence · u64 nanoseconds since 1970 · payload
//
// Kinds: data (payload: what was written), dropped (payload: u64 bytes of the
// stream that follow and are not there), tail (payload: the last of those bytes
// after all), end (payload: for each stream u64 bytes written, u64 bytes kept as
// data). One sequence counts the data of both streams, so the order in which they
// were read is not lost. The records called dropped add up to all that is not data;
// the first of a stream stands where the gap begins. A tail is written when the
// stream is over, at most once for each, so one that crashed has none.
const (
	magic       = "ENGOUT\r\n"
	version     = 1
	fileHeader  = 16
	headerBytes = 24
	endBytes    = 32

	// maxData bounds one record, and so the memory of a reader.
	maxData = 1 << 20

	// syncEvery is how much of its last output a run can lose to a power cut.
	syncEvery = time.Second

	// tailSize is what is kept of the end of a stream, beside the limit for its
	// beginning: a program tells its troubles last.
	tailSize = 64 << 10
)

// Stream is one of the program's two output streams.
type Stream uint8

// The streams, by their descriptors.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// String is the stream's name, or "" for what is none.
func (s Stream) String() string {
	switch s {
	case Stdout:
		return "stdout"
	case Stderr:
		return "stderr"
	}
	return ""
}

// Kind tells what an output record says.
type Kind uint8

// The kinds of output records.
const (
	KindData    Kind = 1
	KindDropped Kind = 2
	KindEnd     Kind = 3
	KindTail    Kind = 4
)

// Totals counts one stream, in bytes.
type Totals struct {
	Written int64 // by the program
	Kept    int64 // on record from the beginning, the tail aside
}

// Truncated says whether something is missing on record.
func (t Totals) Truncated() bool { return t.Written > t.Kept }

// OutputWriter records the output of one run: of each stream its first bytes up
// to a limit, past that a count, and at the end the last 64 KiB, or less if the
// limit is less. Append may be called by two goroutines, one
// for each stream. Its file stays readable whatever happens, up to the last
// record written whole, and what was appended reaches the disk within about a second.
type OutputWriter struct {
	keep    int64
	streams [2]outputStream

	mu   sync.Mutex
	file *os.File
	off  int64  // where the next record goes
	seq  uint64 // of the last data record
	err  error  // first failure; from then on everything is dropped
	due  bool   // sync will be called
	lost error  // what sync failed with; Close tells
}

type outputStream struct {
	written atomic.Int64
	full    atomic.Bool // nothing of it is kept any more
	kept    int64       // guarded by mu
	noted   int64       // bytes in records called dropped, guarded by mu
	tail    ring        // the last of what was dropped; only its goroutine's until Close
}

// ring holds the last bytes of a stream.
type ring struct {
	buf  []byte // of fixed size once it is used
	at   int    // where the next byte goes
	full bool   // buf has been filled once
}

// add takes in the last bytes of data, and forgets as many of its oldest.
func (r *ring) add(data []byte, size int) {
	if size <= 0 || len(data) == 0 {
		return
	}
	if r.buf == nil {
		r.buf = make([]byte, size)
	}
	if len(data) >= size {
		copy(r.buf, data[len(data)-size:])
		r.at, r.full = 0, true
		return
	}
	n := copy(r.buf[r.at:], data)
	if n < len(data) {
		copy(r.buf, data[n:])
	}
	r.full = r.full || r.at+len(data) >= size
	r.at = (r.at + len(data)) % size
}

// bytes are the ring's content in order.
func (r *ring) bytes() []byte {
	if !r.full {
		return r.buf[:r.at]
	}
	return append(append(make([]byte, 0, len(r.buf)), r.buf[r.at:]...), r.buf[:r.at]...)
}

// CreateOutput makes the output record at path, which must not exist yet,
// keeping at most keep bytes of each stream.
func CreateOutput(path string, keep int64) (*OutputWriter, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot record output: %w", err)
	}
	var h [fileHeader]byte
	copy(h[:], magic)
	binary.LittleEndian.PutUint32(h[8:], version)
	if _, err := f.Write(h[:]); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot record output: %w", err), f.Close())
	}
	return &OutputWriter{keep: keep, file: f, off: fileHeader}, nil
}

// Append records data as the next output of stream s. It neither keeps data nor
// changes it. Past the limit it only counts. A failure to write is returned
// once; after it all output is counted as dropped.
func (w *OutputWriter) Append(s Stream, data []byte) error {
	st := &w.streams[s-1]
	st.written.Add(int64(len(data)))
	if len(data) == 0 {
		return nil
	}
	if st.full.Load() {
		st.tail.add(data, w.tailSize())
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		st.tail.add(data, w.tailSize())
		return nil // the other stream failed while this one waited
	}
	room := w.keep - st.kept
	rest := data[:min(int64(len(data)), max(room, 0))]
	for len(rest) > 0 {
		chunk := rest[:min(len(rest), maxData)]
		rest = rest[len(chunk):]
		w.seq++
		if err := w.record(KindData, s, chunk); err != nil {
			return w.fail(err)
		}
		st.kept += int64(len(chunk))
	}
	if !w.due {
		w.due = true
		time.AfterFunc(syncEvery, w.sync)
	}
	if dropped := int64(len(data)) - room; dropped > 0 {
		st.full.Store(true)
		st.tail.add(data[len(data)-int(dropped):], w.tailSize())
		if err := w.drop(s, dropped); err != nil {
			return w.fail(err)
		}
	}
	return nil
}

// sync brings what was recorded to the disk, beside those who record: a disk that is
// slow to take it does not hold up the program.
func (w *OutputWriter) sync() {
	w.mu.Lock()
	w.due = false
	file := w.file
	w.mu.Unlock()
	if file == nil {
		return // closed, and its last sync was Close's to do
	}
	err := file.Sync()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && w.file != nil && w.err == nil {
		w.lost = w.fail(err)
	}
}

func (w *OutputWriter) tailSize() int { return int(min(w.keep, tailSize)) }

// Written is how many bytes of stream s were appended so far, kept or not.
func (w *OutputWriter) Written(s Stream) int64 { return w.streams[s-1].written.Load() }

// Truncated reports whether less of the stream is on record than was written so far.
func (w *OutputWriter) Truncated(s Stream) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Written(s) > w.streams[s-1].kept
}

// Close writes the totals and closes the file. With sync the whole record has
// reached the disk when Close returns. Only the first call does anything.
//
// Preconditions: no Append is running or follows.
func (w *OutputWriter) Close(sync bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return nil
	}
	err := errors.Join(w.lost, w.finish())
	if err == nil && sync {
		err = unix.Fdatasync(int(w.file.Fd()))
	}
	err = errors.Join(err, w.file.Close())
	w.file = nil
	if err != nil {
		return fmt.Errorf("cannot finish the output record: %w", err)
	}
	return nil
}

// finish tries again after a failure: the totals are small, and a disk that
// was full may not be any more.
func (w *OutputWriter) finish() error {
	var end [endBytes]byte
	for i := range w.streams {
		st := &w.streams[i]
		written := st.written.Load()
		if n := written - st.kept - st.noted; n > 0 {
			if err := w.drop(Stream(i+1), n); err != nil {
				return err
			}
		}
		if tail := st.tail.bytes(); len(tail) > 0 {
			w.seq++
			if err := w.record(KindTail, Stream(i+1), tail); err != nil {
				// Where there is no room for the tail there may be for the totals.
				if err := w.file.Truncate(w.off); err != nil {
					return err
				}
			}
		}
		binary.LittleEndian.PutUint64(end[16*i:], uint64(written))
		binary.LittleEndian.PutUint64(end[16*i+8:], uint64(st.kept))
	}
	return w.record(KindEnd, 0, end[:])
}

// Preconditions: w.mu is held.
func (w *OutputWriter) drop(s Stream, n int64) error {
	var count [8]byte
	binary.LittleEndian.PutUint64(count[:], uint64(n))
	if err := w.record(KindDropped, s, count[:]); err != nil {
		return err
	}
	w.streams[s-1].noted += n
	return nil
}

// fail notes the first failure and takes back the record it tore.
// Preconditions: w.mu is held.
func (w *OutputWriter) fail(err error) error {
	w.err = fmt.Errorf("cannot record output: %w", err)
	for i := range w.streams {
		w.streams[i].full.Store(true)
	}
	return errors.Join(w.err, w.file.Truncate(w.off))
}

// record writes one record in one call, without copying the payload.
// Preconditions: w.mu is held; w.seq is that of the record if it is data.
func (w *OutputWriter) record(k Kind, s Stream, payload []byte) error {
	var h [headerBytes]byte
	h[0], h[1] = byte(k), byte(s)
	binary.LittleEndian.PutUint32(h[4:], uint32(len(payload)))
	binary.LittleEndian.PutUint64(h[8:], w.seq)
	binary.LittleEndian.PutUint64(h[16:], uint64(time.Now().UnixNano()))
	parts := [][]byte{h[:], payload}
	off, end := w.off, w.off+headerBytes+int64(len(payload))
	for off < end {
		n, err := unix.Pwritev(int(w.file.Fd()), parts, off)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New("nothing was written")
		}
		off += int64(n)
		for n > 0 && n >= len(parts[0]) {
			n -= len(parts[0])
			parts = parts[1:]
		}
		if n > 0 {
			parts[0] = parts[0][n:]
		}
	}
	w.off = end
	return nil
}
