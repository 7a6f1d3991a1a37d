package engine

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine/guest"
	"github.com/direct-oci/engine/engine/journal"
)

const (
	execPipe  = 256 << 10 // of an exec's stdout and stderr
	execChunk = 64 << 10  // read at once
)

// chunks are the buffers of streams that are being read.
var chunks = sync.Pool{New: func() any { return new([execChunk]byte) }}

// capture carries one output stream of an exec to its record, at the speed of the disk:
// nobody else is waited for.
type capture struct {
	stream journal.Stream
	read   *os.File
	done   chan struct{} // it was read to its end
	failed error         // of the record; read after done
}

// streams makes the exec's streams and returns the program's ends of them. After an
// error some of those are nil.
func (x *execution) streams() (theirs []*os.File, err error) {
	theirs = make([]*os.File, 3)
	switch {
	case x.exec.Raw:
		theirs[0], err = x.rawPipe(true)
	case x.exec.Stdin:
		x.stdin = &stdinPipe{}
		x.stdin.pipe, theirs[0], err = programPipe(true, 0)
		if x.exec.TTY != nil {
			x.stdin.terminal = guest.NewPTYWriter(x.stdin.pipe)
		}
	default:
		theirs[0], err = os.Open(os.DevNull)
	}
	for stream := journal.Stdout; stream <= journal.Stderr && err == nil; stream++ {
		if x.exec.Raw && stream == journal.Stdout {
			theirs[1], err = x.rawPipe(false)
			continue
		}
		c := &capture{stream: stream, done: make(chan struct{})}
		if c.read, theirs[stream], err = programPipe(false, execPipe); err == nil {
			x.captures = append(x.captures, c)
		}
	}
	return theirs, err
}

// rawPipe makes a pipe whose one end is for the caller, and returns the program's.
func (x *execution) rawPipe(input bool) (theirs *os.File, err error) {
	ours, theirs, err := programPipe(input, execPipe)
	if err == nil {
		x.raw = append(x.raw, ours)
	}
	return theirs, err
}

// programPipe makes a pipe between this process, whose end can be interrupted, and a program,
// whose end blocks as programs expect. Input is what the program reads.
func programPipe(input bool, size int) (ours, theirs *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	if size > 0 {
		// A kernel that refuses (pipe-user-pages-soft) leaves a smaller, slower pipe.
		unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, size)
	}
	mine, other := fds[0], fds[1]
	if input {
		mine, other = other, mine
	}
	if err := unix.SetNonblock(mine, true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(mine), unix.Close(other))
	}
	return os.NewFile(uintptr(mine), "pipe"), os.NewFile(uintptr(other), "pipe"), nil
}

// carry reads the stream to its end. It has a buffer only while there is something to
// read: most programs are silent most of the time.
func (c *capture) carry(x *execution) {
	defer close(c.done)
	defer c.read.Close()
	raw, err := c.read.SyscallConn()
	for err == nil {
		var n int
		var failed error
		err = raw.Read(func(fd uintptr) bool {
			n, failed = c.take(x, int(fd), execChunk)
			return failed != unix.EAGAIN
		})
		if failed == unix.EINTR {
			continue
		}
		if n <= 0 {
			break
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.rest(x, raw)
	}
}

// take reads at most limit bytes and records them.
func (c *capture) take(x *execution, fd, limit int) (int, error) {
	buffer := chunks.Get().(*[execChunk]byte)
	defer chunks.Put(buffer)
	n, err := unix.Read(fd, buffer[:min(limit, len(buffer))])
	if n <= 0 {
		return n, err
	}
	if err := x.output.Append(c.stream, buffer[:n]); err != nil && c.failed == nil {
		c.failed = err
	}
	x.wrote()
	return n, nil
}

// rest reads what the pipe holds at this moment. The program is over by now, and
// somebody who goes on writing is not waited for.
func (c *capture) rest(x *execution, raw syscall.RawConn) {
	// A failure to control means that the pipe is closed already.
	_ = raw.Control(func(fd uintptr) {
		left, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		for left > 0 && err == nil {
			var n int
			if n, err = c.take(x, int(fd), left); err == unix.EINTR {
				err = nil
				continue
			}
			if n <= 0 {
				return
			}
			left -= n
		}
	})
}

// finish waits for the end of the stream of a program that is over. What it left running
// may hold the pipe, so the wait is bounded, and the pipe is closed then.
func (c *capture) finish() error {
	// It fails for a pipe that was closed at its end.
	_ = c.read.SetReadDeadline(time.Now().Add(drainBound))
	<-c.done
	return c.failed
}

// stdinPipe is what an exec's program reads.
type stdinPipe struct {
	pipe     *os.File
	terminal *guest.PTYWriter // of the engine's own program, which serves a terminal; nil: pipe is the program's

	writing sync.Mutex // one record, or one piece, at a time

	mu   sync.Mutex
	size *WindowSize // for the next record
}

// write passes data on at the pace of the program. One that does not read any more is
// none of the caller's business.
func (p *stdinPipe) write(data []byte) {
	if p == nil || len(data) == 0 {
		return
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if p.terminal == nil {
		_, _ = p.pipe.Write(data)
		return
	}
	p.flushSize()
	_, _ = p.terminal.Write(data)
	p.flushSize()
}

// finish says that nothing follows.
func (p *stdinPipe) finish() {
	if p == nil {
		return
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if p.terminal != nil {
		_ = p.terminal.End()
		return
	}
	p.close()
}

// close ends the stream, also under a write that waits.
func (p *stdinPipe) close() { p.pipe.Close() }

// resize has the size passed on now, or right after the record that is being written.
// Of several sizes that wait the last counts.
func (p *stdinPipe) resize(size WindowSize) {
	p.mu.Lock()
	p.size = &size
	p.mu.Unlock()
	if p.writing.TryLock() {
		defer p.writing.Unlock()
		p.flushSize()
	}
}

// Preconditions: writing is held.
func (p *stdinPipe) flushSize() {
	p.mu.Lock()
	size := p.size
	p.size = nil
	p.mu.Unlock()
	if size != nil {
		_ = p.terminal.Resize(size.Rows, size.Columns)
	}
}
