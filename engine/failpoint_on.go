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
const failpointVar = "ENGINE_FAILPOINT"

func failpointEnv() []string {
	return []string{failpointVar + "=" + os.Getenv(failpointVar)}
}

func failpoint(point string) {
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
			unix.Kill(os.Getppid(), unix.SIGKILL)
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

func killChildren() {
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return
	}
	for _, t := range tasks {
		killPids(t)
	}
}

func killPids(file string) {
	list, err := os.ReadFile(file)
	if err != nil {
		return
	}
	for _, field := range strings.Fields(string(list)) {
		if pid, err := strconv.Atoi(field); err == nil {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}
