package engine

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// killChildren kills every child of this process: a runtime that is at work, and the
// first process of a container that has not come to its cgroup yet.
func killChildren() {
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return
	}
	for _, t := range tasks {
		killPids(t)
	}
}

// killPids kills the processes that file lists.
func killPids(file string) {
	list, err := os.ReadFile(file)
	if err != nil {
		return
	}
	for field := range strings.FieldsSeq(string(list)) {
		if pid, err := strconv.Atoi(field); err == nil {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}
