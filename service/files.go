package service

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/guest"
)

// filesIdle is how long the program that reaches a sandbox's files is kept without a
// caller. It keeps the sandbox from being idle, so it must not stay.
const filesIdle = 5 * time.Second

// Files reaches the files of a sandbox. Its caller closes it; others may use the same
// program in the sandbox at the same time.
type Files struct {
	*guest.Files
	once  sync.Once
	close func()
}

// Close gives it up. Idempotent.
func (f *Files) Close() error {
	f.once.Do(f.close)
	return nil
}

// fileConns are the programs that reach files, one for each sandbox.
type fileConns struct {
	mu     sync.Mutex
	byRun  map[string]*fileConn
	closed bool
}

type fileConn struct {
	ready chan struct{} // closed when files or err is set
	files *guest.Files
	kill  func() // ends the program, whatever it does
	err   error
	users int
	timer *time.Timer // while there are none
}

// Files reaches the files of a sandbox, through a program that it is given once and keeps
// while somebody uses it. One that has failed is replaced.
func (m *Manager) Files(ctx context.Context, nameOrID string) (*Files, error) {
	id, err := m.running(nameOrID)
	if err != nil {
		return nil, err
	}
	// A paused guest would be waited for until it is taken for one that is stopped.
	if now, err := m.engine.Usage(id); err == nil && now.Paused {
		return nil, engine.Refused("paused", "cannot reach the files of sandbox=%s: it is paused", nameOrID).WithFix("resume it first")
	}
	for {
		c, mine, err := m.files.use(id)
		if err != nil {
			return nil, err
		}
		if mine {
			c.err = m.openFiles(ctx, id, c)
			close(c.ready)
		}
		select {
		case <-c.ready:
		case <-ctx.Done():
			m.files.leave(id, c)
			return nil, engine.Refused("cancelled", "cannot reach the files of run=%s: %w", id, ctx.Err())
		}
		switch {
		case c.err != nil && !mine && ctx.Err() == nil:
			// Whoever opened it may have given up; its failure is not this caller's.
			m.files.leave(id, c)
			continue
		case c.err != nil:
			m.files.leave(id, c)
			return nil, c.err
		}
		return &Files{Files: c.files, close: func() { m.files.leave(id, c) }}, nil
	}
}

func (m *Manager) openFiles(ctx context.Context, id string, c *fileConn) error {
	conn, err := m.engine.Exec(ctx, id, engine.Exec{Command: guest.FilesCommand(), Raw: true, Stdin: true})
	if err != nil {
		return err
	}
	c.files = guest.NewFiles(conn)
	c.kill = func() {
		if err := conn.Signal(syscall.SIGKILL); err != nil && !isKind(err, "not_running") && !isKind(err, "not_found") {
			m.log.Warn("a program that does not answer cannot be ended", "id", id, "err", err)
		}
	}
	return nil
}

// use returns the program of a run, and whether the caller is the one to start it.
func (f *fileConns) use(id string) (c *fileConn, mine bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, false, engine.Failed("draining", "cannot reach the files of run=%s: the service is being stopped", id).WithFix("ask again after its restart")
	}
	if f.byRun == nil {
		f.byRun = map[string]*fileConn{}
	}
	c = f.byRun[id]
	if c != nil && c.failed() {
		c = nil // whoever uses it still finds out by itself
	}
	if c == nil {
		c = &fileConn{ready: make(chan struct{})}
		f.byRun[id] = c
		mine = true
	}
	c.users++
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	return c, mine, nil
}

// failed says whether it was started and does not work.
func (c *fileConn) failed() bool {
	select {
	case <-c.ready:
		return c.err != nil || c.files.Err() != nil
	default:
		return false
	}
}

// leave is a caller's end of use.
func (f *fileConns) leave(id string, c *fileConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.users--
	if c.users > 0 {
		return
	}
	if f.closed || c.failed() || f.byRun[id] != c {
		f.end(id, c)
		return
	}
	c.timer = time.AfterFunc(filesIdle, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if c.users == 0 {
			f.end(id, c)
		}
	})
}

// end closes a program that nobody uses. Preconditions: mu is held.
func (f *fileConns) end(id string, c *fileConn) {
	if f.byRun[id] == c {
		delete(f.byRun, id)
	}
	select {
	case <-c.ready:
		if c.files != nil {
			c.files.Close()
		}
		if c.files != nil && errors.Is(c.files.Err(), guest.ErrSilent) {
			// One that was stopped does not see that its stdin has ended, and would keep the
			// sandbox from being idle for ever.
			go c.kill()
		}
	default: // its opener gave up and says so by closing ready; there is nothing to close
	}
}

// drop ends the program of a run that is torn down.
func (f *fileConns) drop(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.byRun[id]; c != nil {
		f.end(id, c)
	}
}

func (f *fileConns) closeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for id, c := range f.byRun {
		f.end(id, c)
	}
}
