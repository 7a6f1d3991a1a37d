// Package cgroups turns a sandbox's limits into cgroup v2 files, proves them by
// reading back, reads what the kernel charged, and kills and removes groups.
//
// Everything of the engine lies below one directory, the root, by default
// "engine" in the cgroup2 mount:
//
//	engine/            no processes of its own
//	  mon              the monitors, outside of what a run's limits kill
//	  run/<id>         the run: its limits, its usage, its end
//	    ctr            the leaf that the OCI runtime makes
//
// Open makes the three upper directories and hands the controllers down, best
// effort, because a host need not have them all: Create says which of the limits
// asked for nobody enforces and leaves the verdict to its caller.
//
// The package needs root and cgroup v2, alone or beside v1 hierarchies. It leaves
// behind the directories made by Open and the groups that were not removed. All
// state is in the kernel: a Group left by a dead process is handled like one's own.
package cgroups

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// wanted are the controllers that the engine's limits and figures come from.
var wanted = []string{"cpu", "cpuset", "io", "memory", "pids", "hugetlb"}

const (
	runs = "run" // holds one group per run

	// Monitors is the group of all monitors: outside every run's, so that what ends a
	// run spares its monitor, and one for all of them, because a process cannot remove
	// the group it is in.
	Monitors = "mon"
)

// Hierarchy is the engine's part of the host's cgroup v2 tree.
type Hierarchy struct {
	Mount       string   // the cgroup2 mount
	Root        string   // absolute path of the engine's directory, in Mount
	Controllers []string // in force in groups of "run", in the order cpu, cpuset, io, memory, pids, hugetlb
}

// mkdir makes a group that a sandbox can look into from below, whatever the umask is.
func mkdir(dir string) error {
	if err := unix.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return unix.Chmod(dir, 0o755)
}

// Open finds the cgroup2 mount, makes the engine's directories and enables the
// controllers on the way down to them. It may be repeated, and is cheap when all
// is there. root is an absolute path in a cgroup2 mount or a path from the mount;
// "" means "engine".
//
// A controller that the host does not hand out is no error: it is missing in
// Controllers, and Unsupported explains it.
func Open(root string) (Hierarchy, error) {
	mount, dir, err := locate(root)
	if err != nil {
		return Hierarchy{}, err
	}
	h := Hierarchy{Mount: mount, Root: dir}
	available, err := readFields(filepath.Join(mount, "cgroup.controllers"))
	if err != nil {
		return Hierarchy{}, err
	}
	h.Controllers = intersect(wanted, available)
	monitors := filepath.Join(h.Root, Monitors)
	if granted := h.granted(); slices.Equal(granted, h.Controllers) && exists(monitors) {
		return h, nil
	}
	for _, dir := range h.path() {
		if err := mkdir(dir); err != nil && err != unix.EEXIST {
			return Hierarchy{}, cannotMake(dir, err)
		}
		enableAll(dir)
	}
	if err := mkdir(monitors); err != nil && err != unix.EEXIST {
		return Hierarchy{}, cannotMake(monitors, err)
	}
	if !isCgroup2(h.Root) {
		return Hierarchy{}, fmt.Errorf("cannot use cgroup root=%s: not on cgroup2", h.Root)
	}
	h.Controllers = h.granted()
	return h, nil
}

// granted returns the wanted controllers that groups of runs have, none when their
// parent is missing.
func (h Hierarchy) granted() []string {
	on, err := readFields(filepath.Join(h.Root, runs, "cgroup.subtree_control"))
	if err != nil {
		return nil
	}
	return intersect(wanted, on)
}

// path returns every directory that must hand controllers down, from the mount on.
func (h Hierarchy) path() []string {
	dirs := []string{h.Mount}
	if rel, _ := filepath.Rel(h.Mount, h.Root); rel != "." {
		for name := range strings.SplitSeq(rel, "/") {
			dirs = append(dirs, filepath.Join(dirs[len(dirs)-1], name))
		}
	}
	return append(dirs, filepath.Join(h.Root, runs))
}

// enableAll hands down what dir has and does not hand down yet. Failures are left
// for granted to find and for Unsupported to explain.
func enableAll(dir string) {
	available, err := readFields(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	on, err := readFields(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return
	}
	var off []string
	for _, c := range intersect(wanted, available) {
		if !slices.Contains(on, c) {
			off = append(off, c)
		}
	}
	if len(off) == 0 || enable(dir, off...) == nil {
		return
	}
	for _, c := range off { // one that cannot be enabled must not keep back the others
		_ = enable(dir, c)
	}
}

// enable hands the controllers of dir down. A group with processes, other than the
// real root, is EBUSY. The kernel says so for some controllers only: enabling
// one of the others succeeds, and leaves the groups below unable to take processes.
func enable(dir string, controllers ...string) error {
	file, value := filepath.Join(dir, "cgroup.subtree_control"), "+"+strings.Join(controllers, " +")
	if !isRealRoot(dir) {
		pids, foreign, err := readPids(dir)
		if err != nil {
			return err
		}
		if len(pids)+foreign > 0 {
			return cannotSet(file, value, unix.EBUSY)
		}
	}
	return write(file, value)
}

// isRealRoot tells whether dir, a cgroup, is the root of the hierarchy, and not
// merely of a cgroup namespace.
func isRealRoot(dir string) bool { return !exists(filepath.Join(dir, "cgroup.type")) }

// Path returns the path of a group from the mount, which is what an OCI runtime
// takes as cgroupsPath.
func (h Hierarchy) Path(group string) string {
	return strings.TrimPrefix(h.Group(group).Dir, h.Mount)
}

// Group returns the group of that name, "run/<id>", whether it exists or not. The
// name cannot lead out of the root.
func (h Hierarchy) Group(group string) Group {
	return Group{Dir: filepath.Join(h.Root, filepath.Join("/", group))}
}

// List returns the names of the groups below parent, "run", sorted.
func (h Hierarchy) List(parent string) ([]string, error) {
	return children(h.Group(parent).Dir)
}

// intersect returns the elements of a that are in b, in a's order.
func intersect(a, b []string) []string {
	var both []string
	for _, s := range a {
		if slices.Contains(b, s) {
			both = append(both, s)
		}
	}
	return both
}
