package cgroups

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// warmInterval is how often WarmMigration writes.
	warmInterval = 2 * time.Millisecond
	// warmMost is what a move takes at most that waits for the kernel alone.
	warmMost = 30 * time.Millisecond
)

// WarmMigration keeps the kernel ready to move processes between cgroups until
// stop is closed, so that the move that an OCI runtime makes of its container's
// init costs some 10 µs in place of 5 to 13 ms. It does so by moving the calling
// process into the group that it is already in, which must be g.
//
// The time goes into an RCU grace period, which every move has to wait for unless
// another one ended a few ms before. The first write waits for it holding the lock
// that mkdir and rmdir of cgroups and clone into a cgroup need: make the groups and
// start the processes of a run first.
//
// A move also waits for every fork on the host that has come to the point of entering
// its group, and kernels before 6.18 stop a process there that has used up its share of
// the CPUs: a fork bomb holds up each move for as long as its processes take turns.
// Where one takes that long it is the last, because the runtime's own waits behind it.
func (g Group) WarmMigration(stop <-chan struct{}) error {
	pids, _, err := readPids(g.Dir)
	if err != nil {
		return err
	}
	if !slices.Contains(pids, os.Getpid()) {
		return fmt.Errorf("internal error: process %d is not in cgroup %s", os.Getpid(), g.Dir)
	}
	path := filepath.Join(g.Dir, "cgroup.procs")
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return cannotSet(path, "0", err)
	}
	defer unix.Close(fd)
	tick := time.NewTicker(warmInterval)
	defer tick.Stop()
	for {
		began := time.Now()
		if _, err := unix.Write(fd, []byte("0")); err != nil {
			return cannotSet(path, "0", err)
		}
		if time.Since(began) > warmMost {
			return nil
		}
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
	}
}

// StartMigration does what WarmMigration does, once, for a process that is anywhere
// in the hierarchy: its caller starts the wait, somebody else keeps it warm. It
// returns when the wait is over, and says nothing of a failure, which costs only
// time.
func (h Hierarchy) StartMigration() {
	rows, err := readFile("/proc/self/cgroup")
	if err != nil {
		return
	}
	for row := range strings.Lines(string(rows)) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(row, "\n"), "0::"); ok {
			write(filepath.Join(h.Mount, path, "cgroup.procs"), "0")
		}
	}
}
