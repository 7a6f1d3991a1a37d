package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/direct-oci/engine/integration/vm/wire"
	"golang.org/x/sys/unix"
)

// drain is how long output is still read after a job's end when a process it
// left behind holds the pipes open.
const drain = 2 * time.Second

// sender lets the streams of a job share the port.
type sender struct {
	mu   sync.Mutex
	port io.Writer
}

func (s *sender) send(kind wire.Kind, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return wire.Write(s.port, kind, payload)
}

func (s *sender) exit(o wire.Outcome) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return wire.WriteJSON(s.port, wire.Exit, o)
}

// start runs job and returns at once; its end is sent when it has come. The
// returned pipe is the job's stdin, nil if it has none.
func start(job wire.Job, out *sender) (io.WriteCloser, error) {
	path, err := lookPath(job)
	if err != nil {
		return nil, err
	}
	var in *os.File // the job's end
	var stdin *os.File
	if job.Stdin {
		in, stdin, err = os.Pipe()
	} else {
		in, err = os.Open(os.DevNull)
	}
	if err != nil {
		return nil, err
	}
	defer in.Close()
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer outW.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer errW.Close()
	dir := job.Dir
	if dir == "" {
		dir = "/"
	}
	pid, err := syscall.ForkExec(path, job.Argv, &syscall.ProcAttr{
		Dir: dir, Env: job.Env, Files: []uintptr{in.Fd(), outW.Fd(), errW.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot execute %s in %s: %w", path, dir, err)
	}
	var copies sync.WaitGroup
	copies.Go(func() { relay(out, wire.Stdout, outR) })
	copies.Go(func() { relay(out, wire.Stderr, errR) })
	go finish(pid, stdin, out, &copies, outR, errR)
	if stdin == nil {
		return nil, nil
	}
	return stdin, nil
}

// finish reaps until the job is among the dead, then reports it. As the first
// process we inherit every orphan, so each wait may return somebody else.
func finish(pid int, stdin *os.File, out *sender, copies *sync.WaitGroup, streams ...*os.File) {
	var status unix.WaitStatus
	for {
		got, err := unix.Wait4(-1, &status, 0, nil)
		if got == pid {
			break
		}
		if err != nil && err != unix.EINTR {
			fmt.Fprintln(os.Stderr, "guest: cannot wait for the job:", err)
			return
		}
	}
	if stdin != nil {
		stdin.Close()
	}
	for _, s := range streams {
		if err := s.SetReadDeadline(time.Now().Add(drain)); err != nil {
			fmt.Fprintln(os.Stderr, "guest: cannot bound the reading of output:", err)
		}
	}
	copies.Wait()
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	if err := out.exit(wire.Outcome{Status: code}); err != nil {
		fmt.Fprintln(os.Stderr, "guest: cannot report the job's end:", err)
	}
}

func relay(out *sender, kind wire.Kind, from *os.File) {
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if err := out.send(kind, buf[:n]); err != nil {
				fmt.Fprintln(os.Stderr, "guest: cannot send output:", err)
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// lookPath finds the job's program with the job's own PATH.
func lookPath(job wire.Job) (string, error) {
	name := job.Argv[0]
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, kv := range job.Env {
		dirs, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for dir := range strings.SplitSeq(dirs, ":") {
			path := dir + "/" + name
			if unix.Access(path, unix.X_OK) == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("cannot find %s on PATH", name)
}
