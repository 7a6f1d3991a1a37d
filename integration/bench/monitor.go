package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// monitorStart measures engine-monitor from its start to its end when its caller has
// hung up already: loading, its first action, and exit.
func (b *bench) monitorStart() error {
	control, err := hungUp()
	if err != nil {
		return err
	}
	defer control.Close()
	pair, err := b.alternate(b.n, "Start/true", "Start/engine-monitor",
		func() *exec.Cmd { return exec.Command(filepath.Join(b.root(), "bin/true")) },
		func() *exec.Cmd {
			cmd := exec.Command(filepath.Join(b.bin, "engine-monitor"))
			cmd.ExtraFiles = []*os.File{control}
			return cmd
		})
	if err != nil {
		return err
	}
	fmt.Println("\nstart, first action and exit of the monitor")
	pair.print("/bin/true, static busybox", "engine-monitor")
	target(median(pair.b) < 4*time.Millisecond, "%.2f ms, to be less than 4", millis(median(pair.b)))
	return nil
}

// hungUp is a control socket whose other end is closed.
func hungUp() (*os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "control"), unix.Close(fds[1])
}
