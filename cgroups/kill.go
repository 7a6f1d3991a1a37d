package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Kill sends SIGKILL to every process of the group and of those below it, in one
// step that no fork can escape. It does not wait for them to be gone. Killing a
// group that does not exist succeeds. The caller must not be in the group.
func (g Group) Kill() error {
	err := write(filepath.Join(g.Dir, "cgroup.kill"), "1")
	switch {
	case err == nil || errors.Is(err, unix.ENODEV):
		return nil
	case errors.Is(err, fs.ErrNotExist) && !exists(g.Dir):
		return nil
	case errors.Is(err, fs.ErrNotExist): // before Linux 5.14
		return g.killEach()
	}
	return err
}

// killRounds bounds how often killEach goes through the processes.
const killRounds = 200

// killEach freezes the group, so that it cannot fork and no process ID in it is
// used anew, and kills the processes one by one until there is none.
func (g Group) killEach() error {
	// The root of a hierarchy can be neither frozen nor killed, and must not be.
	if err := write(filepath.Join(g.Dir, "cgroup.freeze"), "1"); err != nil {
		if gone(err) && !exists(g.Dir) {
			return nil
		}
		return fmt.Errorf("cannot kill cgroup %s: %w", g.Dir, err)
	}
	for range killRounds {
		alive := 0
		err := g.walk(func(dir string) error {
			n, err := killIn(dir)
			alive += n
			return err
		})
		if err != nil || alive == 0 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return &PopulatedError{Dir: g.Dir, Pids: g.somePids(), Cause: errors.New("killed one by one in vain")}
}

// killIn kills the processes of one group and returns how many there were.
func killIn(dir string) (int, error) {
	pids, foreign, err := readPids(dir)
	if err != nil {
		return 0, err
	}
	if foreign > 0 {
		return 0, fmt.Errorf("cannot kill cgroup %s: %d processes are outside of this PID namespace", dir, foreign)
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
			return 0, fmt.Errorf("cannot kill process %d of cgroup %s: %w", pid, dir, err)
		}
	}
	return len(pids), nil
}

// readPids returns the processes of one group, none if it does not exist.
func readPids(dir string) (pids []int, foreign int, err error) {
	path := filepath.Join(dir, "cgroup.procs")
	data, err := readFile(path)
	if gone(err) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	pids, foreign, err = parsePids(data)
	if err != nil {
		return nil, 0, cannotRead(path, err)
	}
	return pids, foreign, nil
}
