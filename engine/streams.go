package engine

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine/journal"
)

const (
	pipeSize  = 1 << 20 // of the program's stdout and stderr; two to three times the speed of 64 KiB
	chunkSize = 1 << 20 // read at once; a seventh faster than 256 KiB when all is recorded
)

// outputs carries the program's stdout and stderr from their pipes to the record
// and to the caller.
//
// While the program runs, a caller that reads slowly slows the program, as any pipe
// would. Once the sandbox is dead, drain takes what is still in the pipes into
// memory (no more than their size), so that a slow caller holds up nothing but the
// last of its own data.
type outputs struct {
	record   *journal.OutputWriter
	max      int64         // bytes of both streams, 0: any
	over     chan struct{} // closed when max is passed
	overOnce sync.Once
	total    atomic.Int64
	first    atomic.Int64 // CLOCK_BOOTTIME of the first byte, 0: none yet
	dead     chan struct{}
	caller   <-chan struct{} // closed when the caller is gone
	pumps    [2]*pump
}

// pump is one stream. Three buffers go round between its reader and its forwarder.
type pump struct {
	read    *os.File // of the pipe
	write   *os.File // closed once the sandbox holds its own copy
	sink    int      // the caller's descriptor
	bytes   atomic.Int64
	failed  error // of the record; read after done
	queue   chan []byte
	free    chan []byte
	late    [][]byte      // read after the sandbox had died; read after queue is closed
	done    chan struct{} // everything was read
	flushed chan struct{} // everything was passed on, as far as the caller took it
	unsent  error         // why it took no more, unless it just stopped reading; read after flushed
}

const pumpBuffers = 3

// newOutputs makes the pipes. The sinks are descriptors of the caller's stdout and
// stderr, which are written to and never closed here.
func newOutputs(record *journal.OutputWriter, max int64, stdout, stderr int, caller <-chan struct{}) (*outputs, error) {
	o := &outputs{record: record, max: max, over: make(chan struct{}), dead: make(chan struct{}), caller: caller}
	for i, sink := range []int{stdout, stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, Failed("no_descriptors", "cannot make a pipe for output: %w", err)
		}
		// A kernel that refuses (pipe-user-pages-soft) leaves a smaller, slower pipe.
		unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, pipeSize)
		p := &pump{
			read: r, write: w, sink: sink,
			queue: make(chan []byte, 1), free: make(chan []byte, pumpBuffers),
			done: make(chan struct{}), flushed: make(chan struct{}),
		}
		for range pumpBuffers {
			p.free <- nil
		}
		o.pumps[i] = p
	}
	return o, nil
}

// start begins to carry.
func (o *outputs) start() {
	for i, p := range o.pumps {
		go o.carry(journal.Stream(i+1), p)
		go o.forward(p)
	}
}

// closeWriters drops the engine's copies of the write ends, so that the pipes end
// with the program.
func (o *outputs) closeWriters() {
	for _, p := range o.pumps {
		p.write.Close()
	}
}

// carry reads one stream to its end. It never waits for the caller once the
// sandbox is dead.
func (o *outputs) carry(stream journal.Stream, p *pump) {
	defer close(p.done)
	defer close(p.queue)
	defer p.read.Close()
	for {
		buf := o.buffer(p)
		n, err := p.read.Read(buf)
		if n > 0 {
			o.count(p, int64(n))
			if e := o.record.Append(stream, buf[:n]); e != nil && p.failed == nil {
				p.failed = e
			}
			o.pass(p, buf[:n])
		}
		if err != nil {
			return
		}
	}
}

// buffer waits for the forwarder to hand one back, unless nobody may be waited for.
func (o *outputs) buffer(p *pump) []byte {
	var buf []byte
	select {
	case buf = <-p.free:
	case <-o.dead:
	}
	if buf == nil {
		buf = make([]byte, chunkSize)
	}
	return buf[:chunkSize]
}

// pass hands a chunk to the forwarder, in order.
func (o *outputs) pass(p *pump, chunk []byte) {
	if len(p.late) == 0 {
		select {
		case p.queue <- chunk:
			return
		case <-o.dead:
		}
	}
	p.late = append(p.late, chunk)
}

func (o *outputs) count(p *pump, n int64) {
	if o.first.Load() == 0 {
		o.first.CompareAndSwap(0, bootNow())
	}
	p.bytes.Add(n)
	if total := o.total.Add(n); o.max > 0 && total > o.max {
		o.overOnce.Do(func() { close(o.over) })
	}
}

// forward passes one stream on, until nobody takes it any more.
func (o *outputs) forward(p *pump) {
	defer close(p.flushed)
	gone := false
	send := func(chunk []byte) {
		err := writeAll(p.sink, chunk)
		if gone = err != nil; gone && err != unix.EPIPE {
			p.unsent = err
		}
	}
	for chunk := range p.queue {
		if !gone {
			if send(chunk); gone {
				go o.refuse(p)
			}
		}
		select {
		case p.free <- chunk[:0:cap(chunk)]:
		default: // one more than there were: the reader did not wait, for the sandbox is dead
		}
	}
	for _, chunk := range p.late {
		if !gone {
			send(chunk)
		}
	}
}

// hangUp is how long after its output a caller that died may be seen to be gone.
const hangUp = 50 * time.Millisecond

// refuse is called when a stream of the caller's takes no more. While the caller is
// there, it wants what a pipe does to any program whose reader has left: writing
// fails. A caller that died wants its run to go on, and on record.
func (o *outputs) refuse(p *pump) {
	select {
	case <-o.caller:
	case <-time.After(hangUp):
		p.read.Close()
	}
}

// writeAll writes to a descriptor that belongs to somebody else as well, so its
// blocking mode is left as it is, and a caller that does not read may hold it up
// for ever.
func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		switch err {
		case nil:
			data = data[n:]
		case unix.EINTR:
		case unix.EAGAIN:
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1); err != nil && err != unix.EINTR {
				return err
			}
		default:
			return err
		}
	}
	return nil
}

// drain is called when no process of the sandbox is left: what the pipes still hold
// is read and recorded within bound. It reports whether everything was.
func (o *outputs) drain(bound time.Duration) bool {
	close(o.dead)
	limit := time.After(bound)
	for _, p := range o.pumps {
		select {
		case <-p.done:
		case <-limit:
			return false
		}
	}
	return true
}

// failure is why output is missing on record, of the streams that were read to their end.
func (o *outputs) failure() error {
	var errs []error
	for _, p := range o.pumps {
		select {
		case <-p.done:
			errs = append(errs, p.failed)
		default:
		}
	}
	return errors.Join(errs...)
}

// unsent is why the caller lacks output that it would have read, of the streams that
// were passed on to their end: its disk is full, for one.
func (o *outputs) unsent() error {
	var errs []error
	for _, p := range o.pumps {
		select {
		case <-p.flushed:
			errs = append(errs, p.unsent)
		default:
		}
	}
	return errors.Join(errs...)
}

// flush waits until the caller has been given everything, until gone is closed, or
// until limit, which may be nil.
func (o *outputs) flush(gone <-chan struct{}, limit <-chan time.Time) {
	for _, p := range o.pumps {
		select {
		case <-p.flushed:
		case <-gone:
			return
		case <-limit:
			return
		}
	}
}

// feed copies the caller's standard input into the program's, at the program's pace,
// until either ends. It returns the end of the pipe that the program reads.
func feed(from int) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, Failed("no_descriptors", "cannot make a pipe for input: %w", err)
	}
	// The far end shares this setting, and programs do not expect EAGAIN.
	if err := unix.SetNonblock(int(r.Fd()), false); err != nil {
		return nil, errors.Join(Failed("no_descriptors", "cannot set up the pipe for input: %w", err), r.Close(), w.Close())
	}
	go func() {
		defer w.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := unix.Read(from, buf)
			switch {
			case err == unix.EINTR:
				continue
			case err == unix.EAGAIN:
				unix.Poll([]unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}}, -1)
				continue
			case err != nil || n == 0:
				return
			}
			if _, err := w.Write(buf[:n]); err != nil {
				return // the program does not read any more
			}
		}
	}()
	return r, nil
}
