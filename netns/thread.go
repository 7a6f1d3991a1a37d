package netns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// onThread calls f on a thread that f may take to other network namespaces, and
// returns when f has. f says whether it brought the thread back.
func onThread(f func() (back bool)) {
	done := make(chan struct{})
	go run(f, done)
	<-done
}

// run calls f on the thread that its goroutine happens to be on, unless that is the
// process's first: the kernel shows its namespaces as those of the process, and Go
// cannot end it.
func run(f func() (back bool), done chan<- struct{}) {
	// SECURITY: no other code of this process ever runs in a sandbox's namespace.
	// A goroutine put on such a thread would have its connections and listeners there.
	// Holds because: the goroutine stays locked unless the way back succeeded, and
	// Go ends a thread whose goroutine ends locked.
	// Not covered: a setns that says it succeeded and did not. Checked by: TestThreadsComeBack.
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		elsewhere := make(chan struct{})
		go run(f, elsewhere) // not here: this thread is locked until it has answered
		<-elsewhere
		runtime.UnlockOSThread()
		close(done)
		return
	}
	if f() {
		runtime.UnlockOSThread()
	}
	close(done)
}

// away calls f, which leaves the calling thread's namespace, and brings the thread
// back; back tells whether it is where it was.
func away(f func() error) (back bool, err error) {
	home, err := openOwn()
	if err != nil {
		return true, err
	}
	defer unix.Close(home)
	err = f()
	if e := unix.Setns(home, unix.CLONE_NEWNET); e != nil {
		return false, fmt.Errorf("cannot return from another network namespace: %w", e)
	}
	return true, err
}

// within calls f on a thread in the namespace that fd holds.
func within(fd int, f func() error) error {
	var err error
	onThread(func() (back bool) {
		back, err = away(func() error {
			if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("cannot enter a network namespace: %w", err)
			}
			return f()
		})
		return back
	})
	return err
}

// enterNew takes the calling thread to a new network namespace and returns its
// descriptor.
func enterNew() (int, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return -1, fmt.Errorf("cannot make a network namespace: %w", err)
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
