package initwire

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// MaxExecs is how many programs of one session may run at once. One more is refused
// with EAGAIN at StageFork.
const MaxExecs = 1024

// Session is what all programs of a session share. It holds secrets, in Env and Files.
type Session struct {
	Env      []string      // of every program, below its own
	Filter   []byte        // as Job's
	CPUMask  []byte        // as Job's
	Deadline time.Duration // as Job's
	Files    []File        // as Job's
}

// Exec is one program of a session.
type Exec struct {
	ID       uint32 // not 0, and not that of an exec that runs
	Args     []string
	Env      []string // added to the session's, each variable once
	Cwd      string
	Deadline time.Duration // from receipt, rounded up to a millisecond; then its process group is killed
}

// SendSession hands the session to engine-init in place of a job, with what is said of
// Send, but without descriptors.
func SendSession(conn *net.UnixConn, s Session) error {
	job := Job{Env: s.Env, Cwd: "/", Filter: s.Filter, CPUMask: s.CPUMask, Deadline: s.Deadline, Files: s.Files}
	message, err := job.encode(kindSession, 0)
	if err != nil {
		return err
	}
	defer clear(message)
	if err := sendMessage(conn, message); err != nil {
		return fmt.Errorf("cannot send session: %w", err)
	}
	return nil
}

// SendExec has engine-init start a program. It may be called once it is SERVING, as
// may all that follows, by one goroutine at a time. The descriptors, all required, stay
// open and belong to the caller. After a *JobError nothing was sent; after any other
// error the connection is of no more use.
func SendExec(conn *net.UnixConn, e Exec, stdin, stdout, stderr *os.File) error {
	if e.ID == 0 {
		return &JobError{"ID", "is 0"}
	}
	message, err := Job{Args: e.Args, Env: e.Env, Cwd: e.Cwd, Deadline: e.Deadline}.encode(kindExec, e.ID)
	if err != nil {
		return err
	}
	defer clear(message)
	if err := sendMessage(conn, message, stdin, stdout, stderr); err != nil {
		return fmt.Errorf("cannot send exec: %w", err)
	}
	return nil
}

// SignalExec asks engine-init to send sig to the process group of an exec. It is not
// an error if that has ended.
func SignalExec(conn *net.UnixConn, id uint32, sig syscall.Signal) error {
	if id == 0 || sig < 1 || sig > maxSignal {
		return fmt.Errorf("cannot send signal %d to exec %d: not between 1 and %d", int(sig), id, maxSignal)
	}
	if _, err := conn.Write(Job{}.header(kindSignal, id, uint32(sig), 0)); err != nil {
		return fmt.Errorf("cannot send signal %d to exec %d: %w", int(sig), id, err)
	}
	return nil
}

// SetDeadline gives the session a new deadline, from receipt; 0: none.
func SetDeadline(conn *net.UnixConn, deadline time.Duration) error {
	if deadline < 0 || deadline > MaxDeadline {
		return &JobError{"Deadline", fmt.Sprintf("%v is not between 0 and %v", deadline, MaxDeadline)}
	}
	if _, err := conn.Write(Job{Deadline: deadline}.header(kindDeadline, 0, 0, 0)); err != nil {
		return fmt.Errorf("cannot send deadline: %w", err)
	}
	return nil
}
