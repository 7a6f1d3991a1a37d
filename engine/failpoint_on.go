//go:build failpoint

package engine

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// In programs built with the tag failpoint, the environment variable ENGINE_FAILPOINT
// names one point and whom to kill there with SIGKILL, as "after-cgroup@monitor":
//
//	monitor  the process itself, if it is the monitor
//	caller   the process that started the monitor, or the caller itself
//	sandbox  every process in the run's cgroup, and every child of the monitor
//
// ENGINE_FAILPOINT_TRACE names a file to which every point that is passed is added, as
// "after-cgroup monitor": what there is to be killed at is read off a run, not listed.
const (
	failpointVar = "ENGINE_FAILPOINT"
	traceVar     = "ENGINE_FAILPOINT_TRACE"
)

func failpointEnv() []string {
	return []string{failpointVar + "=" + os.Getenv(failpointVar), traceVar + "=" + os.Getenv(traceVar)}
}

func failpoint(point string) {
	trace(point)
	want, target, ok := strings.Cut(os.Getenv(failpointVar), "@")
	if !ok || want != point {
		return
	}
	isMonitor := len(os.Args) > 0 && os.Args[0] == "engine-monitor"
	switch target {
	case "monitor":
		if isMonitor {
			unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	case "caller":
		if isMonitor {
			killParent()
		} else {
			unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	case "sandbox":
		if isMonitor {
			killGroup(group)
			killChildren()
		}
	}
}

// trace adds a point to the trace, in one write.
func trace(point string) {
	path := os.Getenv(traceVar)
	if path == "" {
		return
	}
	who := "caller"
	if len(os.Args) > 0 && os.Args[0] == "engine-monitor" {
		who = "monitor"
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		panic("cannot trace failpoints: " + err.Error())
	}
	defer f.Close()
	f.WriteString(point + " " + who + "\n")
}

// killParent kills the process that started this one, if it still is the parent: an
// orphan's is the host's first process, or another that the test must not touch.
func killParent() {
	parent := os.Getppid()
	theirs, err := os.Readlink("/proc/" + strconv.Itoa(parent) + "/exe")
	if err != nil {
		return
	}
	ours, err := os.Readlink("/proc/self/exe")
	if err == nil && filepath.Dir(theirs) == filepath.Dir(ours) && filepath.Base(theirs) == "engine" {
		unix.Kill(parent, unix.SIGKILL)
	}
}

// group is the run's cgroup, once there is one.
var group string

func failpointGroup(dir string) { group = dir }

// killGroup kills what is in the cgroup at dir and below, one by one and only once:
// what cgroup.kill would do is the engine's to prove.
func killGroup(dir string) {
	if dir == "" {
		return
	}
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "cgroup.procs" {
			killPids(path)
		}
		return nil
	})
}
