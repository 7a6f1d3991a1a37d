package engine

import (
	"bufio"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// firstRequest is how long a connection may take to say what it wants.
	firstRequest = 10 * time.Second

	// hangUpCheck is how often a client is looked at whose program does not read.
	hangUpCheck = time.Second

	// maxFollowers bounds the connections that follow execs. One whose client is gone
	// counts while the program has not read what the client left.
	maxFollowers = 2048
)

// answer serves one connection.
func (s *server) answer(conn *net.UnixConn) {
	lines := newLineReader(bufio.NewScanner(conn))
	conn.SetReadDeadline(time.Now().Add(firstRequest))
	var q sessionRequest
	if err := lines.next(&q); err != nil {
		return
	}
	conn.SetReadDeadline(time.Time{})
	s.called()
	if q.Version > sessionVersion {
		reply(conn, sessionEvent{}, Refused("version_mismatch", "cannot answer op=%s: it is of version %d, and this monitor knows %d", q.Op, q.Version, sessionVersion).
			WithFix("start a new session"))
		return
	}
	switch q.Op {
	case opExec, opAttach:
		s.answerExec(conn, lines, q)
	case opSignal:
		reply(conn, sessionEvent{Event: eventDone}, s.signal(q.ID, syscall.Signal(q.Signal)))
	case opResize:
		reply(conn, sessionEvent{Event: eventDone}, s.resize(q.ID, q.Size))
	case opPause, opResume:
		reply(conn, sessionEvent{Event: eventDone}, s.pause(q.Op == opPause))
	case opRenew:
		deadline, err := s.renew(time.Duration(q.TTLMs) * time.Millisecond)
		reply(conn, sessionEvent{Event: eventDone, Deadline: &deadline}, err)
	default:
		reply(conn, sessionEvent{}, Refused("version_mismatch", "cannot answer op=%q: this monitor does not know it", q.Op).
			WithFix("start a new session"))
	}
}

// reply sends an event, or the error if there is one, with descriptors on its first
// byte. It reports whether it could.
func reply(conn *net.UnixConn, e sessionEvent, err error, files ...*os.File) bool {
	if err != nil {
		e = sessionEvent{Event: eventError, Error: AsError(err)}
	}
	e.Version = sessionVersion
	line, err := encodeLine(e)
	if err != nil {
		return false
	}
	if len(files) == 0 {
		_, err = conn.Write(line)
		return err == nil
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	n, _, err := conn.WriteMsgUnix(line, unix.UnixRights(fds...), nil)
	if err == nil && n < len(line) {
		_, err = conn.Write(line[n:])
	}
	return err == nil
}

// answerExec starts or finds an exec, and follows it.
func (s *server) answerExec(conn *net.UnixConn, lines lineReader, q sessionRequest) {
	var x *execution
	var err error
	joined := q.Op == opAttach
	switch {
	case joined:
		x, err = s.find(q.ID)
	case q.Exec == nil:
		err = Refused("bad_command", "cannot start nothing: the request has no exec")
	default:
		x, joined, err = s.exec(*q.Exec)
	}
	if err == nil {
		<-x.begun // bounded by the end of the session
		if x.startError != nil && q.Op == opExec {
			err = x.startError
		}
	}
	if err != nil {
		reply(conn, sessionEvent{}, err)
		return
	}
	defer s.followers.Add(-1)
	if s.followers.Add(1) > maxFollowers && joined {
		reply(conn, sessionEvent{}, Refused("too_many", "cannot follow exec=%s: %d connections follow programs of session=%s", x.exec.ID, maxFollowers, s.sb.Request.ID).
			WithFix("close some of them"))
		return
	}
	var raw []*os.File
	if !joined {
		raw = x.raw
	}
	ok := reply(conn, sessionEvent{Event: eventStarted, ID: x.exec.ID, Joined: joined}, nil, raw...)
	for _, f := range raw {
		f.Close() // they are the caller's alone
	}
	if !ok {
		return
	}
	left, heard := make(chan struct{}), make(chan struct{}) // the client has gone; what it wrote is delivered
	go func() {
		defer close(heard)
		x.input(conn, lines, left)
	}()
	x.follow(conn, left)
	select { // a client that is gone has left what it wrote
	case <-heard:
	case <-x.over:
	}
}

// follow tells a connection of the exec's output and of its end.
func (x *execution) follow(conn *net.UnixConn, left <-chan struct{}) {
	changed := make(chan struct{}, 1)
	x.watch(changed, true)
	defer x.watch(changed, false)
	for {
		select {
		case <-changed:
			if !reply(conn, sessionEvent{Event: eventChanged}, nil) {
				return
			}
		case <-left:
			return
		case <-x.over:
			reply(conn, sessionEvent{Event: eventExit, ID: x.exec.ID, Result: &x.result}, nil)
			return
		}
	}
}

// input takes what a connection has for the exec's stdin, at the program's pace, and
// closes left as soon as the client has gone. What it cannot make sense of it passes over,
// as it does what comes too late.
func (x *execution) input(conn *net.UnixConn, lines lineReader, left chan<- struct{}) {
	leave := sync.OnceFunc(func() { close(left) })
	defer leave()
	for {
		var q sessionRequest
		if err := lines.next(&q); err != nil {
			return // it ended, or what follows cannot be understood
		}
		switch q.Op {
		case opStdin:
			written := make(chan struct{})
			go awaitHangUp(conn, written, leave)
			x.stdin.write(q.Data)
			close(written)
		case opCloseStdin:
			x.stdin.finish()
		}
	}
}

// awaitHangUp calls leave if the client hangs up before written is closed: nobody reads
// the connection meanwhile, and so nobody else would notice.
func awaitHangUp(conn *net.UnixConn, written <-chan struct{}, leave func()) {
	tick := time.NewTicker(hangUpCheck)
	defer tick.Stop()
	for {
		select {
		case <-written:
			return
		case <-tick.C:
		}
		if hungUp(conn) {
			leave()
			return
		}
	}
}

// hungUp reports whether the other end of a connection is closed, also while there is
// something left to read.
func hungUp(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	up := true
	err = raw.Control(func(fd uintptr) {
		ask := []unix.PollFd{{Fd: int32(fd)}} // POLLHUP and POLLERR are told unasked
		n, err := unix.Poll(ask, 0)
		up = n > 0 && err == nil
	})
	return up || err != nil
}

// resize passes a terminal's size on to the program that serves it.
func (s *server) resize(id string, size *WindowSize) error {
	x, err := s.live(id)
	if err != nil {
		return err
	}
	if size == nil || x.exec.TTY == nil {
		return Refused("bad_session", "cannot resize exec=%s: it has no terminal", id)
	}
	x.stdin.resize(*size)
	return nil
}
