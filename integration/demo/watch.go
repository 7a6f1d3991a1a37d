package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// runs is where the engine keeps one cgroup for each run.
const runs = "/sys/fs/cgroup/engine/run"

// view is a run as the host sees it.
type view struct {
	uids    map[int]bool      // host uids of its processes
	seccomp map[string]bool   // seccomp modes of all but engine-init, which sets the program's
	limits  map[string]string // its cgroup's files
}

// watcher looks at the run that is under way until it is stopped.
type watcher struct {
	done chan struct{}
	seen chan view
}

// startWatch is called before the run starts: the cgroup that appears is its own.
func startWatch() *watcher {
	w := &watcher{done: make(chan struct{}), seen: make(chan view, 1)}
	before := groups()
	go func() {
		var last view
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			for dir := range groups() {
				if !before[dir] {
					last = last.update(dir)
				}
			}
			select {
			case <-w.done:
				w.seen <- last
				return
			case <-tick.C:
			}
		}
	}()
	return w
}

func (w *watcher) stop() view {
	close(w.done)
	return <-w.seen
}

func groups() map[string]bool {
	dirs, err := filepath.Glob(filepath.Join(runs, "*", "cgroup.procs"))
	found := map[string]bool{}
	if err != nil {
		return found
	}
	for _, dir := range dirs {
		found[filepath.Dir(dir)] = true
	}
	return found
}

// update looks at the group of a run. Before there is a program, and after it, what
// was seen stays.
func (v view) update(group string) view {
	now := view{uids: map[int]bool{}, seccomp: map[string]bool{}, limits: map[string]string{}}
	for _, dir := range []string{group, filepath.Join(group, "ctr")} {
		for _, pid := range strings.Fields(read(filepath.Join(dir, "cgroup.procs"))) {
			now.add(read("/proc/" + pid + "/status"))
		}
	}
	if len(now.seccomp) == 0 {
		return v
	}
	for _, file := range []string{"memory.max", "memory.swap.max", "cpu.max", "pids.max"} {
		now.limits[file] = strings.TrimSpace(read(filepath.Join(group, file)))
	}
	return now
}

// add takes in one process, from its /proc/PID/status. One that has ended has none.
func (v view) add(status string) {
	values := map[string]string{}
	for line := range strings.Lines(status) {
		if f := strings.Fields(line); len(f) > 1 {
			values[f[0]] = f[1]
		}
	}
	uid, err := strconv.Atoi(values["Uid:"])
	if err != nil {
		return
	}
	v.uids[uid] = true
	if values["Name:"] != "init" {
		v.seccomp[values["Seccomp:"]] = true
	}
}

// read returns what a file of the kernel says; one that is gone says nothing.
func read(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(data)
}
