// Package netns gives each sandbox a network namespace of its own.
//
// A namespace is held by a descriptor alone: it has no name in the file system,
// so nothing is left of it when its last process and the last copy of the
// descriptor are gone, however they went. Making one needs CAP_SYS_ADMIN and a
// mounted /proc.
package netns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// New makes a network namespace that holds nothing but its loopback device, which
// is up. A runtime joins it by the path /proc/<pid>/fd/<descriptor>. The namespace
// belongs to the caller's user namespace, so nobody inside of a sandbox's can
// change it. No thread of the caller is in it afterwards.
func New() (*os.File, error) {
	done := make(chan made)
	go makeOn(done)
	m := <-done
	return m.ns, m.err
}

type made struct {
	ns  *os.File
	err error
}

// makeOn makes the namespace on the thread that its goroutine happens to be on,
// unless that is the process's first: the kernel shows its namespaces as those of
// the process, and Go cannot end it.
func makeOn(done chan<- made) {
	// SECURITY: no other code of this process ever runs in a sandbox's namespace.
	// A goroutine put on such a thread would have its connections and listeners there.
	// Holds because: the goroutine stays locked unless the way back succeeded, and
	// Go ends a thread whose goroutine ends locked.
	// Not covered: a setns that says it succeeded and did not. Checked by: TestThreadsComeBack.
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		elsewhere := make(chan made)
		go makeOn(elsewhere) // not here: this thread is locked until it has answered
		m := <-elsewhere
		runtime.UnlockOSThread()
		done <- m
		return
	}
	ns, restored, err := newOnThisThread()
	if restored {
		runtime.UnlockOSThread()
	}
	done <- made{ns, err}
}

// newOnThisThread makes the namespace on the calling thread and brings the thread
// back; restored tells whether it is where it was.
func newOnThisThread() (ns *os.File, restored bool, err error) {
	home, err := openOwn()
	if err != nil {
		return nil, true, err
	}
	defer unix.Close(home)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, true, fmt.Errorf("cannot make a network namespace: %w", err)
	}
	fd, err := configure()
	if back := unix.Setns(home, unix.CLONE_NEWNET); back != nil {
		if err == nil {
			unix.Close(fd)
		}
		return nil, false, fmt.Errorf("cannot return from a new network namespace: %w", back)
	}
	if err != nil {
		return nil, true, err
	}
	return os.NewFile(uintptr(fd), "netns"), true, nil
}

// configure sets the loopback device of the thread's namespace up and returns the
// namespace's descriptor.
func configure() (int, error) {
	if err := loopbackUp(); err != nil {
		return -1, fmt.Errorf("cannot set the loopback device of a new network namespace up: %w", err)
	}
	return openOwn()
}

func openOwn() (int, error) {
	const path = "/proc/thread-self/ns/net"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot open %s: %w", path, err)
	}
	return fd, nil
}

// loopbackUp asks by ioctl: one socket and one call, and the flags are known
// since the device has just been made.
func loopbackUp() error {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(sock)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return os.NewSyscallError("ioctl SIOCSIFFLAGS", unix.IoctlIfreq(sock, unix.SIOCSIFFLAGS, req))
}
