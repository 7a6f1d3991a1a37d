package cgroups

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// UnsupportedError reports a host that cannot keep a promise of this package.
type UnsupportedError struct {
	Feature string // "memory controller"
	Where   string // "/sys/fs/cgroup/engine"
	Fix     string // one imperative sentence; empty when no cure is known
	Cause   error  // nil when nothing was tried
}

func (e *UnsupportedError) Error() string {
	text := e.Feature + " unavailable in " + e.Where
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Remedy returns the cure.
func (e *UnsupportedError) Remedy() string { return e.Fix }

func (e *UnsupportedError) Unwrap() error { return e.Cause }

// PopulatedError reports a group that still holds processes.
type PopulatedError struct {
	Dir   string
	Pids  []int // some of the processes, as numbered in the caller's PID namespace
	Cause error // what ended the wait; nil when there was none
}

func (e *PopulatedError) Error() string {
	text := "cgroup " + e.Dir + " still holds processes"
	if len(e.Pids) > 0 {
		text += " " + strings.Trim(fmt.Sprint(e.Pids), "[]")
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

func (e *PopulatedError) Unwrap() error { return e.Cause }

// controllerOf maps the public names of limits to what enforces them.
var controllerOf = map[string]string{"cpus": "cpu", "cpuset": "cpuset", "memory": "memory", "pids": "pids"}

// Unsupported explains why a limit ("cpus", "cpuset", "memory", "pids") cannot be
// enforced in this hierarchy, and how to change that. It returns nil when it can.
func (h Hierarchy) Unsupported(limit string) *UnsupportedError {
	controller := controllerOf[limit]
	for _, dir := range h.path() {
		e := &UnsupportedError{Feature: controller + " controller", Where: dir}
		available, err := readFields(filepath.Join(dir, "cgroup.controllers"))
		if err != nil {
			e.Cause = err
			return e
		}
		if !slices.Contains(available, controller) {
			e.Fix = absentFix(dir, controller)
			return e
		}
		on, err := readFields(filepath.Join(dir, "cgroup.subtree_control"))
		if err != nil {
			e.Cause = err
			return e
		}
		if slices.Contains(on, controller) {
			continue
		}
		if err := enable(dir, controller); err != nil {
			e.Cause, e.Fix = err, enableFix(dir, err)
			return e
		}
	}
	dir := filepath.Join(h.Root, runs)
	if limit == "memory" && !exists(filepath.Join(dir, "memory.swap.max")) && !noSwap() {
		return &UnsupportedError{
			Feature: "limit of swap", Where: dir,
			Fix: "turn swap off (swapoff -a), or boot with swapaccount=1",
		}
	}
	return nil
}

// absentFix is the cure for a controller that the topmost directory does not have.
func absentFix(dir, controller string) string {
	rows, err := readFile("/proc/cgroups")
	if err == nil && boundToV1(string(rows), controller) {
		return "boot the host with systemd.unified_cgroup_hierarchy=1 (or cgroup_no_v1=all): the controller is in use by cgroup v1"
	}
	if !isRealRoot(dir) {
		return "set Delegate=yes in the systemd unit that this runs in, or give the container the controller " + controller
	}
	return "boot a kernel that has the controller, without cgroup_disable=" + controller
}

// boundToV1 reads /proc/cgroups: name, hierarchy, groups, enabled. Hierarchy 0 is v2's.
func boundToV1(rows, controller string) bool {
	for row := range strings.Lines(rows) {
		if f := strings.Fields(row); len(f) == 4 && f[0] == controller {
			return f[1] != "0"
		}
	}
	return false
}

// enableFix is the cure for a controller that dir has and does not hand down.
func enableFix(dir string, err error) string {
	switch {
	case errors.Is(err, unix.EBUSY):
		return "move the processes of " + dir + " into a cgroup below it (in its systemd unit: Delegate=yes and DelegateSubgroup=svc), " +
			"or name by --cgroup-root a cgroup without processes on the way to it"
	case errors.Is(err, unix.EROFS):
		return "mount cgroup2 read-write"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "run as root, outside of a user namespace"
	case errors.Is(err, unix.EOPNOTSUPP):
		return "name by --cgroup-root a cgroup that is not threaded"
	}
	return ""
}
