package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine/journal"
)

// Left lists what is on the host of runs that are over: cgroups, processes, mounts,
// directories, uid blocks, temporary files, records without an end. The engine has its
// directories in dir, as state and run; serving is whether a service has, which counts
// for nothing itself.
func Left(t testing.TB, groups cgroups.Hierarchy, dir string, serving bool) []string {
	t.Helper()
	l := leftovers{t: t, dir: dir}
	for _, parent := range []string{"run", cgroups.Monitors} {
		names, err := groups.List(parent)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			l.add("cgroup %s/%s", parent, n)
		}
	}
	l.processes(serving)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, filepath.Join(dir, "run")+"/") {
			l.add("mount %s", line)
		}
	}
	for _, e := range l.list("run") {
		if !shared.MatchString(e) && (!serving || e != "api.sock") {
			l.add("file run/%s", e)
		}
	}
	for _, slot := range l.list("run/uids") {
		owner, err := os.ReadFile(filepath.Join(dir, "run/uids", slot))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(filepath.Join(dir, "run", string(owner))); len(owner) > 0 && err == nil {
			l.add("uid block %s of %s", slot, owner)
		}
	}
	l.records()
	return l.found
}

type leftovers struct {
	t     testing.TB
	dir   string
	found []string
}

func (l *leftovers) add(format string, args ...any) {
	l.found = append(l.found, fmt.Sprintf(format, args...))
}

func (l *leftovers) list(dir string) []string {
	l.t.Helper()
	entries, err := os.ReadDir(filepath.Join(l.dir, dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (l *leftovers) records() {
	l.t.Helper()
	for _, e := range l.list("state/runs") {
		if !journal.ValidID(e) {
			l.add("file state/runs/%s", e)
			continue
		}
		files := l.list("state/runs/" + e)
		for _, f := range files {
			if strings.HasSuffix(f, ".tmp") || f == "reserve" {
				l.add("file state/runs/%s/%s", e, f)
			}
		}
		if !slices.Contains(files, "exit.json") || !slices.Contains(files, "cleaned.json") {
			l.add("record of %s without its end", e)
		}
	}
}

// processes lists those in the engine's cgroups, and those that name its directory.
func (l *leftovers) processes(serving bool) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		l.t.Fatal(err)
	}
	for _, dir := range dirs {
		group, err := os.ReadFile(dir + "/cgroup")
		if err != nil {
			continue
		}
		args, err := os.ReadFile(dir + "/cmdline")
		if err != nil || orphan(dir) {
			continue
		}
		if serving && bytes.Contains(args, []byte("\x00serve\x00")) {
			continue
		}
		if bytes.Contains(group, []byte("/"+filepath.Base(l.dir)+"/")) || bytes.Contains(args, []byte(l.dir)) {
			l.add("process %s %q", filepath.Base(dir), bytes.ReplaceAll(args, []byte{0}, []byte{' '}))
		}
	}
}

// orphan reports whether the process at dir is dead and waits for the host's first
// process to take note.
func orphan(dir string) bool {
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	return len(f) > 1 && f[0] == "Z" && f[1] == "1"
}
