package cgroups

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Group is one cgroup, which may or may not exist.
type Group struct {
	Dir string // absolute path
}

// Open returns the directory, for syscall.SysProcAttr.CgroupFD: a process started
// with it is in the group from its first instruction.
func (g Group) Open() (*os.File, error) {
	fd, err := unix.Open(g.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open cgroup", Path: g.Dir, Err: err}
	}
	return os.NewFile(uintptr(fd), g.Dir), nil
}

// WaitEmpty returns nil once neither the group nor one below it holds a process,
// also if the group does not exist. When ctx ends first, or already has while
// there are processes, it returns a *PopulatedError.
func (g Group) WaitEmpty(ctx context.Context) error {
	path := filepath.Join(g.Dir, "cgroup.events")
	events, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(events)
	if populated, err := isPopulated(events, path); err != nil || !populated {
		return err
	}

	ended, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	signalled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(signalled)
		_, _ = unix.Write(ended, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // cannot fail: the counter is 0
	})
	defer func() {
		if !stop() {
			<-signalled
		}
		unix.Close(ended)
	}()

	// The kernel holds back a notice that comes within 10 ms of another, so a
	// short-lived group is looked at by itself in the beginning.
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, time.Second) {
		fds := []unix.PollFd{{Fd: int32(events), Events: unix.POLLPRI}, {Fd: int32(ended), Events: unix.POLLIN}}
		timeout := unix.NsecToTimespec(int64(pause))
		if _, err := unix.Ppoll(fds, &timeout, nil); err != nil && err != unix.EINTR {
			return os.NewSyscallError("ppoll", err)
		}
		populated, err := isPopulated(events, path)
		if err != nil || !populated {
			return err
		}
		if cause := ctx.Err(); cause != nil {
			return &PopulatedError{Dir: g.Dir, Pids: g.somePids(), Cause: cause}
		}
	}
}

// isPopulated reads an open cgroup.events. A removed group holds nothing.
func isPopulated(events int, path string) (bool, error) {
	data, err := readAll(events, path)
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	values, err := parseFlatKeyed(data)
	if err != nil {
		return false, cannotRead(path, err)
	}
	return values["populated"] != 0, nil
}

// somePids names processes of the group for a message.
func (g Group) somePids() []int {
	const enough = 8
	var some []int
	_ = g.walk(func(dir string) error {
		pids, _, _ := readPids(dir)
		some = append(some, pids...)
		return nil
	})
	return some[:min(len(some), enough)]
}

// walk calls f for the group and every group below it, those below first. Groups
// that vanish meanwhile are passed over.
func (g Group) walk(f func(dir string) error) error {
	names, err := children(g.Dir)
	if err != nil && !gone(err) {
		return err
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, Group{Dir: filepath.Join(g.Dir, name)}.walk(f))
	}
	return errors.Join(append(errs, f(g.Dir))...)
}

// removeBound is how long Remove waits for processes on their way out.
const removeBound = 500 * time.Millisecond

// Remove removes the group and all below it. It is idempotent: a group that does
// not exist is removed. It kills nothing: if processes are still there half a
// second later, it returns a *PopulatedError and may have removed a part.
func (g Group) Remove() error {
	deadline := time.Now().Add(removeBound)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := unix.Rmdir(g.Dir)
		if err == unix.EBUSY || err == unix.ENOTEMPTY {
			err = g.walk(rmdir)
		}
		if err == nil || gone(err) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return &fs.PathError{Op: "cannot remove cgroup", Path: g.Dir, Err: err}
		}
		if time.Now().After(deadline) {
			return &PopulatedError{Dir: g.Dir, Pids: g.somePids(), Cause: unix.EBUSY}
		}
		time.Sleep(pause)
	}
}

func rmdir(dir string) error {
	if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
		return err
	}
	return nil
}
