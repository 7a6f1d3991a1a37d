package engine

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine/initwire"
	"github.com/direct-oci/engine/engine/journal"
)

const (
	sessionSocket = "session.sock"

	// execsKept is how many execs that have ended stay on record. The oldest go first:
	// a session may live for months.
	execsKept = 1000

	// clockCheck is how often deadlines are held against the clock that runs while the
	// host sleeps, which Go's timers do not.
	clockCheck = 30 * time.Second

	guestQueue = 4 * initwire.MaxExecs // messages for engine-init that it has not read
)

// server is the monitor's part of a session: it owns its execs and its deadline, and
// answers on the session's socket. The goroutine of watch sees to frames and deadlines;
// each connection and each end of an exec has one of its own; mu is between them, and
// none of them waits while it holds it.
type server struct {
	sb        *sandbox
	listener  *net.UnixListener
	queue     chan func(*net.UnixConn) error // for engine-init, one after the other
	wake      chan struct{}                  // a deadline may have changed
	followers atomic.Int32                   // connections that follow an exec
	renewing  sync.Mutex                     // one change of the deadline, or of being paused, at a time

	mu       sync.Mutex
	ending   bool
	paused   bool
	deadline int64                 // bootNow
	last     int64                 // bootNow of the last call, or end of an exec
	execs    map[string]*execution // that have not ended, by id
	numbers  map[uint32]*execution // the same by what engine-init calls them
	next     uint32                // number of the next
	finished history               // on record
	promised int64                 // bytes of output that may be kept of those in execs
	asked    int64                 // bytes of their commands and environments
	enders   sync.WaitGroup        // of execs that are being recorded
}

// deadlineRecord is what is on record of a session's deadline.
type deadlineRecord struct {
	Deadline time.Time `json:"deadline"`
}

func newServer(sb *sandbox) *server {
	now := bootNow()
	return &server{
		sb: sb, queue: make(chan func(*net.UnixConn) error, guestQueue), wake: make(chan struct{}, 1),
		deadline: now + int64(sb.Request.Limits.Timeout), last: now,
		execs: map[string]*execution{}, numbers: map[uint32]*execution{},
	}
}

// open puts the deadline on record and begins to answer.
func (s *server) open() error {
	if err := s.sb.record.Write(journal.Deadline, deadlineRecord{wallClock(s.deadline)}, true); err != nil {
		return Failed("no_record", "%w", err)
	}
	var err error
	if s.listener, err = listenIn(s.sb.dir()); err != nil {
		return Failed("no_directory", "cannot listen for session=%s: %w", s.sb.Request.ID, err)
	}
	failpoint("session-open")
	go s.accept()
	go s.tell()
	return nil
}

// wallClock is the time of day at which bootNow will be t.
func wallClock(t int64) time.Time { return time.Now().Add(time.Duration(t - bootNow())) }

// listenIn makes the session's socket in dir, whose path may be longer than a socket's
// address.
func listenIn(dir string) (*net.UnixListener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketIn(d), Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // teardown removes the directory
	if err := os.Chmod(filepath.Join(dir, sessionSocket), 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func socketIn(dir *os.File) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), sessionSocket)
}

// tell passes on to engine-init what is queued, so that nobody else waits for one that
// does not read: while it is frozen, say. What cannot be sent ends the session: nobody
// knows how much of it arrived, and nothing could follow.
func (s *server) tell() {
	for send := range s.queue {
		err := send(s.sb.guest.conn)
		var refused *initwire.JobError
		if err == nil || errors.As(err, &refused) {
			continue
		}
		if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) { // those tell of the sandbox's own end
			select {
			case s.sb.guest.undelivered <- err:
			default:
			}
		}
		s.sb.guest.conn.Close()
		return
	}
}

// say queues a message for engine-init.
func (s *server) say(send func(*net.UnixConn) error) error {
	select {
	case s.queue <- send:
		return nil
	default:
		return Failed("no_session", "cannot reach the programs of session=%s: its first process does not listen", s.sb.Request.ID)
	}
}

// accept serves each connection until the listener is closed.
//
// SECURITY: nobody but root uses a session.
// Its socket starts programs with the session's secrets in their environment.
// Holds because: the socket is in the host's run directory, which no sandbox has
// mounted, has mode 0600, and the kernel is asked who connected.
// Not covered: other processes of root's. Checked by: TestSessionSocketIsRoots.
func (s *server) accept() {
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // no descriptor is free: one will be
			continue
		}
		if !isRoot(conn) {
			conn.Close()
			continue
		}
		go func() {
			defer conn.Close()
			s.answer(conn)
		}()
	}
}

// isRoot reports whether the process at the other end belongs to the host's root.
func isRoot(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	root := false
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		root = err == nil && cred.Uid == 0
	})
	return err == nil && root
}

// called notes that somebody uses the session.
func (s *server) called() {
	s.mu.Lock()
	s.last = bootNow()
	s.mu.Unlock()
	s.stir()
}

// stir has watch look at the deadlines anew.
func (s *server) stir() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// due tells which deadline of the session has passed, "" if none has, and how long it
// is to the next.
func (s *server) due() (Reason, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := bootNow()
	left := time.Duration(s.deadline - now)
	if left <= 0 {
		return ReasonTimeout, 0
	}
	if idle := s.sb.Request.Session.IdleTimeout; idle > 0 && len(s.execs) == 0 {
		rest := time.Duration(s.last + int64(idle) - now)
		if rest <= 0 {
			return ReasonIdle, 0
		}
		left = min(left, rest)
	}
	return "", min(left, clockCheck)
}

// frame takes in what engine-init says of an exec. A number that is not known is of one
// that was given up.
func (s *server) frame(f initwire.Frame) {
	s.mu.Lock()
	x := s.numbers[f.Exec]
	s.mu.Unlock()
	if x == nil {
		return
	}
	switch f.Type {
	case initwire.Started:
		x.running(f)
	case initwire.Exited:
		x.exited(f)
	case initwire.Failed:
		x.failed(execError(x.exec, f))
	}
}

// signal sends a signal to an exec's process group.
func (s *server) signal(id string, sig syscall.Signal) error {
	if err := validSignal(sig); err != nil {
		return err
	}
	x, err := s.live(id)
	if err != nil {
		return err
	}
	return s.say(func(conn *net.UnixConn) error { return initwire.SignalExec(conn, x.number, sig) })
}

// live is an exec that has not ended.
func (s *server) live(id string) (*execution, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.execs[id]; x != nil {
		return x, nil
	}
	if _, err := journal.OpenExec(s.sb.Host.StateDir, s.sb.Request.ID, id); err == nil {
		return nil, Refused("not_running", "cannot reach exec=%s: it has ended", id)
	}
	return nil, execNotFound(s.sb.Request.ID, id)
}

func execNotFound(session, id string) *Error {
	return Refused("not_found", "cannot find exec=%s: there is none on record of session=%s", id, session)
}

// pause freezes the sandbox, or lets it go on.
func (s *server) pause(on bool) error {
	s.renewing.Lock()
	defer s.renewing.Unlock()
	s.mu.Lock()
	if s.ending {
		s.mu.Unlock()
		return s.over()
	}
	s.paused = s.paused || on // no exec begins from here on
	s.mu.Unlock()
	if err := s.sb.group.Freeze(on); err != nil {
		return Failed("not_paused", "cannot pause or resume session=%s: %w", s.sb.Request.ID, err)
	}
	s.mu.Lock()
	s.paused = on
	s.mu.Unlock()
	return nil
}

// renew gives the session a new deadline and puts it on record.
func (s *server) renew(ttl time.Duration) (time.Time, error) {
	if ttl < time.Millisecond || ttl > maxTimeout {
		return time.Time{}, Refused("bad_limit", "cannot accept ttl=%v: want 1ms to %v", ttl, maxTimeout)
	}
	s.renewing.Lock()
	defer s.renewing.Unlock()
	s.mu.Lock()
	ending := s.ending
	s.mu.Unlock()
	if ending {
		return time.Time{}, s.over()
	}
	failpoint("before-renew")
	deadline := bootNow() + int64(ttl)
	wall := wallClock(deadline)
	if err := s.sb.record.Write(journal.Deadline, deadlineRecord{wall}, true); err != nil {
		return time.Time{}, Failed("no_record", "%w", err)
	}
	failpoint("renew-recorded")
	if err := s.say(func(conn *net.UnixConn) error {
		left := time.Duration(deadline - bootNow())
		return initwire.SetDeadline(conn, max(left, 0)+initGrace)
	}); err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	s.deadline = deadline
	s.mu.Unlock()
	s.stir()
	return wall, nil
}

func (s *server) over() *Error {
	return Refused("not_running", "cannot use session=%s: it is ending", s.sb.Request.ID)
}

// shut stops answering, and gives every exec that has not ended the end of its session.
// It is called once, when no process of the sandbox is left, and returns when all of
// that is on record, or after bound.
func (s *server) shut(reason Reason, bound time.Duration) {
	if s.listener != nil {
		s.listener.Close()
	}
	s.mu.Lock()
	s.ending = true
	left := make([]*execution, 0, len(s.execs))
	for _, x := range s.execs {
		left = append(left, x)
	}
	s.mu.Unlock()
	failpoint("session-shut")
	for _, x := range left {
		x.lost(reason)
	}
	done := make(chan struct{})
	go func() {
		s.enders.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(bound):
	}
}
