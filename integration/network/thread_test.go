package network

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/netns"
)

// place is a network namespace with a thread in it, which does what has to be done
// there: sockets stay where they were made, and programs where they were started.
type place struct {
	ns    *os.File
	calls chan func()
}

// newPlace makes a namespace whose thread has first done enter.
func newPlace(t testing.TB, enter func() error) *place {
	t.Helper()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	p := &place{ns, make(chan func())}
	ready := make(chan error)
	go p.serve(ready, enter)
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(p.calls)
		ns.Close()
	})
	return p
}

// serve is on a thread that ends with it. The process's first thread cannot end.
func (p *place) serve(ready chan error, enter func() error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		defer runtime.UnlockOSThread()
		done := make(chan struct{})
		go func() { defer close(done); p.serve(ready, enter) }()
		<-done
		return
	}
	err := unix.Setns(int(p.ns.Fd()), unix.CLONE_NEWNET)
	if err == nil {
		err = enter()
	}
	ready <- err
	for f := range p.calls {
		f()
	}
}

// do runs f on the place's thread.
func (p *place) do(t testing.TB, f func() error) {
	t.Helper()
	if err := p.try(f); err != nil {
		t.Fatal(err)
	}
}

func (p *place) try(f func() error) error {
	done := make(chan error, 1)
	p.calls <- func() { done <- f() }
	return <-done
}

// ownResolvConf gives the calling thread a mount namespace with that resolv.conf.
func ownResolvConf(dir, nameserver string) func() error {
	return func() error {
		file := filepath.Join(dir, "resolv.conf")
		if err := os.WriteFile(file, []byte("nameserver "+nameserver+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		return unix.Mount(file, "/etc/resolv.conf", "", unix.MS_BIND, "")
	}
}

// unmount takes away what runsc leaves mounted in its state directory.
func unmount(path string) { unix.Unmount(path, unix.MNT_DETACH) }
