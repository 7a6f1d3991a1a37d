package testenv

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Where the engine keeps things unless told otherwise.
const (
	StateDir   = "/var/lib/engine"
	RunDir     = "/run/engine"
	CgroupRoot = cgroupMount + "/engine"
)

// State is what the engine may leave on a host, one line of text per object.
type State []string

// HostState lists the processes, mounts, namespaces, links, cgroups, nft
// tables and files that exist now. Left out is what the engine keeps on purpose:
// its three upper cgroups, what runs share in the run directory (top layer, locks of
// uid blocks, versions of the runtimes), and the records of runs that are over.
//
// In the test machine all processes and namespaces count; on a host only those
// that the engine or a runtime may have made, since others come and go.
func HostState(t testing.TB) State {
	t.Helper()
	var s State
	for _, part := range []func() ([]string, error){processes, mounts, links, cgroupDirs, tables, runFiles, stateFiles} {
		lines, err := part()
		if err != nil {
			t.Fatalf("cannot list the host's state: %v", err)
		}
		s = append(s, lines...)
	}
	slices.Sort(s)
	return slices.Compact(s)
}

// WaitSame waits until the host is again as it was before, and fails the test with
// the difference if it is not after bound.
func WaitSame(t testing.TB, bound time.Duration, before State) {
	t.Helper()
	var diff string
	if !poll(bound, func() bool { diff = before.diff(HostState(t)); return diff == "" }) {
		t.Errorf("the host is not as before after %v:\n%s", bound, diff)
	}
}

// NothingLeft makes the test fail if at its end, after all its other cleanup, the
// host is not as it is now.
func NothingLeft(t testing.TB) {
	t.Helper()
	before := HostState(t)
	t.Cleanup(func() { WaitSame(t, 10*time.Second, before) })
}

// WaitFor polls until ok returns true, and fails the test after bound.
func WaitFor(t testing.TB, bound time.Duration, what string, ok func() bool) {
	t.Helper()
	if !poll(bound, ok) {
		t.Fatalf("waited %v in vain for %s", bound, what)
	}
}

func poll(bound time.Duration, ok func() bool) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(bound); ; <-tick.C {
		if ok() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// diff returns what is new with "+", what has gone with "-", one per line.
func (s State) diff(now State) string {
	var b strings.Builder
	for _, line := range now {
		if !slices.Contains(s, line) {
			fmt.Fprintf(&b, "+ %s\n", line)
		}
	}
	for _, line := range s {
		if !slices.Contains(now, line) {
			fmt.Fprintf(&b, "- %s\n", line)
		}
	}
	return b.String()
}

// processes lists processes with their cgroup, and the namespaces that they are in
// or hold open.
func processes() ([]string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, dir := range dirs {
		exe, err := os.Readlink(dir + "/exe")
		if err != nil {
			if zombie := zombieOf(dir); zombie != "" && InVM() {
				lines = append(lines, zombie)
			}
			continue // a kernel thread, or gone
		}
		group, err := os.ReadFile(dir + "/cgroup")
		if err != nil {
			continue // gone
		}
		where := cgroup2(group)
		if !InVM() && !strings.HasPrefix(where, "/engine/") && !isOurs(exe) {
			continue
		}
		lines = append(lines, fmt.Sprintf("process %s %s in cgroup %s", filepath.Base(dir), filepath.Base(exe), where))
		lines = append(lines, namespaces(dir)...)
	}
	return lines, nil
}

// namespaces lists the namespaces, of any kind, of the process at dir. A descriptor's
// link tells the path it was opened by, which may be gone, so it is the device that
// shows what is a namespace.
func namespaces(dir string) []string {
	var own unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &own); err != nil {
		return []string{"namespaces cannot be told: " + err.Error()}
	}
	var lines []string
	for _, pattern := range []string{"/ns/*", "/fd/*"} {
		names, _ := filepath.Glob(dir + pattern) // the pattern is well-formed
		for _, name := range names {
			var st unix.Stat_t
			if unix.Stat(name, &st) == nil && st.Dev == own.Dev {
				lines = append(lines, fmt.Sprintf("namespace %d", st.Ino))
			}
		}
	}
	return lines
}

// zombieOf describes a process that is dead and not reaped.
func zombieOf(dir string) string {
	status, err := os.ReadFile(dir + "/status")
	if err != nil || !bytes.Contains(status, []byte("State:\tZ")) {
		return ""
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(string(status), "Name:\t"), "\n")
	return fmt.Sprintf("zombie %s %s", filepath.Base(dir), name)
}

func isOurs(exe string) bool {
	name := strings.TrimSuffix(filepath.Base(exe), " (deleted)")
	return slices.Contains([]string{"engine", "engine-image", "engine-runner", "engine-monitor", "engine-init", "engine-guest", "runc", "crun", "runsc"}, name)
}

// cgroup2 returns the version 2 entry of a /proc/PID/cgroup file.
func cgroup2(file []byte) string {
	for line := range strings.Lines(string(file)) {
		if group, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(group)
		}
	}
	return ""
}

func mounts() ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var lines []string
	for scan := bufio.NewScanner(f); scan.Scan(); {
		mount, super, ok := strings.Cut(scan.Text(), " - ")
		fields := strings.Fields(mount)
		if !ok || len(fields) < 5 {
			return nil, fmt.Errorf("cannot read mountinfo line %q", scan.Text())
		}
		fstype, _, _ := strings.Cut(super, " ")
		lines = append(lines, fmt.Sprintf("mount %s %s id %s", fields[4], fstype, fields[0]))
	}
	return lines, nil
}

func links() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, l := range all {
		lines = append(lines, fmt.Sprintf("link %d %s", l.Index, l.Name))
	}
	return lines, nil
}

func cgroupDirs() ([]string, error) {
	keep := []string{CgroupRoot, CgroupRoot + "/run", CgroupRoot + "/mon"}
	return below("cgroup", CgroupRoot, func(path string, d fs.DirEntry) bool {
		return d.IsDir() && !slices.Contains(keep, path)
	})
}

// tables lists the nft tables of the host's network namespace. Asking loads the
// kernel's part, which takes long under emulation; where it is not loaded there
// are none.
func tables() ([]string, error) {
	if _, err := os.Stat("/sys/module/nf_tables"); err != nil {
		return nil, nil
	}
	out, err := exec.Command("nft", "list", "tables").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nft list tables: %w", err)
	}
	return slices.Collect(strings.Lines(string(out))), nil
}

// shared matches what the runs of a host have in common in the run directory.
var shared = regexp.MustCompile(`^(uids|layer\.lock|layer-(stamp-)?[0-9a-f]+|version-[a-z]+-[0-9a-f-]+)$`)

// runFiles lists the run directory down to the second level: below that is the
// inside of a sandbox.
func runFiles() ([]string, error) {
	return below("file", RunDir, func(path string, _ fs.DirEntry) bool {
		rel := strings.TrimPrefix(path, RunDir+"/")
		top, _, _ := strings.Cut(rel, "/")
		return path != RunDir && !shared.MatchString(top) && strings.Count(rel, "/") < 2
	})
}

// stateFiles lists images, and the runs that have no record of a finished cleanup.
func stateFiles() ([]string, error) {
	var images []string
	for _, pattern := range []string{"/images/*", "/images/.images/*", "/images/.layers/*"} {
		found, err := filepath.Glob(StateDir + pattern)
		if err != nil {
			return nil, err
		}
		images = append(images, found...)
	}
	runs, err := filepath.Glob(StateDir + "/runs/*")
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, image := range images {
		switch filepath.Base(image) {
		case ".lock", ".images", ".layers": // of the store as a whole
			continue
		}
		lines = append(lines, "file "+image)
	}
	for _, run := range runs {
		if _, err := os.Stat(run + "/cleaned.json"); err != nil {
			lines = append(lines, "file "+run+", a run without cleaned.json")
		}
	}
	return lines, nil
}

// below lists what keep accepts below root. What vanishes while it is listed is
// not there.
func below(kind, root string, keep func(path string, d fs.DirEntry) bool) ([]string, error) {
	var lines []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if keep(path, d) {
			lines = append(lines, kind+" "+path)
		}
		return nil
	})
	return lines, err
}
