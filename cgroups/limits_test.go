package cgroups

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

func TestSettings(t *testing.T) {
	tests := []struct {
		name   string
		limits Limits
		want   []string
	}{
		{"none", Limits{}, []string{"cgroup.max.depth=2", "cgroup.max.descendants=4"}},
		{"all", Limits{CPUs: 1.5, Memory: 64<<20 + 17, Pids: 256, CPUSet: "0-1"}, []string{
			"cgroup.max.depth=2", "cgroup.max.descendants=4",
			"memory.max=67108864", "memory.swap.max=0", "memory.zswap.max=0", "memory.oom.group=1",
			"pids.max=256", "cpu.max=150000 100000", "cpu.max.burst=0", "cpuset.cpus=0-1",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, s := range tt.limits.settings() {
				got = append(got, s.file+"="+s.value)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("settings = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestCPUMax(t *testing.T) {
	for cpus, want := range map[float64]string{
		1:         "100000 100000",
		0.5:       "50000 100000",
		0.333333:  "33333 100000",
		0.0000001: "1000 100000", // the kernel's minimum
		64:        "6400000 100000",
	} {
		if got := cpuMax(cpus); got != want {
			t.Errorf("cpuMax(%v) = %q, want %q", cpus, got, want)
		}
	}
}

func TestMemoryMax(t *testing.T) {
	for bytes, want := range map[int64]string{
		4096:          "4096",
		8191:          "4096",
		math.MaxInt64: "max",
	} {
		if got := memoryMax(bytes, 4096); got != want {
			t.Errorf("memoryMax(%d) = %q, want %q", bytes, got, want)
		}
	}
}

func TestImpossibleLimitsAreRefused(t *testing.T) {
	for _, l := range []Limits{
		{CPUs: -1},
		{CPUs: math.NaN()},
		{CPUs: math.Inf(1)},
		{Memory: -1},
		{Memory: 100},
		{Pids: -1},
		{CPUSet: "0-"},
		{CPUSet: "0\n1"},
	} {
		h := Hierarchy{Root: t.TempDir()}
		if _, _, err := h.Create("x", l); err == nil || !strings.HasPrefix(err.Error(), "cannot limit ") {
			t.Errorf("Create with %+v: %v, want a refusal", l, err)
		}
		if exists(filepath.Join(h.Root, "x")) {
			t.Errorf("Create with %+v left the group", l)
		}
	}
}

// TestErrorsNameFileAndValue writes to plain files, which do what no kernel file
// does: keep something else.
func TestErrorsNameFileAndValue(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids.max")
	if err := set(file, "16", equal); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("set of a missing file: %v, want ErrNotExist", err)
	}
	if err := os.WriteFile(file, []byte("max\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := set(file, "16", func(got, want string) bool { return false })
	if want := "cannot set " + file + "=16: the kernel kept "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("set = %v, want %q...", err, want)
	}
	if err := write(t.TempDir(), "1"); err == nil || !strings.Contains(err.Error(), "=1: is a directory") {
		t.Errorf("write to a directory = %v", err)
	}
}

func TestReadFileIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "io.stat")
	long := slices.Repeat([]byte("x"), 5*maxFile)
	if err := os.WriteFile(file, long, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readFile(file); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("reading %d bytes: %v, want a refusal", len(long), err)
	}
	if err := os.WriteFile(file, long[:maxFile/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readFile(file); len(got) != maxFile/2 || err != nil {
		t.Errorf("reading %d bytes gave %d, %v", maxFile/2, len(got), err)
	}
}

func TestChooseMount(t *testing.T) {
	m := func(point, root, options string) *mountinfo.Info {
		return &mountinfo.Info{Mountpoint: point, Root: root, Options: options}
	}
	hybrid := m("/sys/fs/cgroup/unified", "/", "rw")
	tests := []struct {
		name       string
		mounts     []*mountinfo.Info
		root       string
		covered    string
		mount, dir string
	}{
		{"beside v1", []*mountinfo.Info{hybrid}, "engine", "", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/engine"},
		{"usual place first", []*mountinfo.Info{hybrid, m("/sys/fs/cgroup", "/", "rw")}, "engine", "", "/sys/fs/cgroup", "/sys/fs/cgroup/engine"},
		{"covered mount passed over", []*mountinfo.Info{m("/sys/fs/cgroup", "/", "rw"), m("/mnt/c", "/", "rw")}, "engine", "/sys/fs/cgroup", "/mnt/c", "/mnt/c/engine"},
		{"writable before read-only", []*mountinfo.Info{m("/a", "/", "ro,nosuid"), m("/b", "/x", "rw")}, "engine", "", "/b", "/b/engine"},
		{"whole before part", []*mountinfo.Info{m("/a", "/x", "rw"), m("/b", "/", "rw")}, "engine", "", "/b", "/b/engine"},
		{"absolute root decides", []*mountinfo.Info{m("/a", "/", "rw"), m("/b", "/", "rw")}, "/b/sub/engine", "", "/b", "/b/sub/engine"},
		{"the mount itself", []*mountinfo.Info{m("/a", "/", "rw")}, "/a", "", "/a", "/a"},
		{"name that only begins alike", []*mountinfo.Info{m("/a", "/", "rw")}, "/ab/engine", "", "", ""},
		{"way out", []*mountinfo.Info{m("/a", "/", "rw")}, "../engine", "", "", ""},
		{"absolute way out", []*mountinfo.Info{m("/a", "/", "rw")}, "/a/../etc", "", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mount, dir, ok := choose(tt.mounts, tt.root, func(path string) bool { return path != tt.covered })
			if mount != tt.mount || dir != tt.dir || ok != (tt.mount != "") {
				t.Errorf("choose = %q, %q, %v, want %q, %q", mount, dir, ok, tt.mount, tt.dir)
			}
		})
	}
}

func TestGroupStaysInRoot(t *testing.T) {
	h := Hierarchy{Mount: "/m", Root: "/m/engine"}
	for group, want := range map[string]string{
		"run/abc":       "/engine/run/abc",
		"run/abc/ctr":   "/engine/run/abc/ctr",
		"../../etc":     "/engine/etc",
		"run/../../../": "/engine",
	} {
		if got := h.Path(group); got != want {
			t.Errorf("Path(%q) = %q, want %q", group, got, want)
		}
	}
}

func TestRemedies(t *testing.T) {
	rows := "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t3\t1\t1\nmemory\t0\t1\t1\n"
	if !boundToV1(rows, "cpuset") || boundToV1(rows, "memory") || boundToV1(rows, "pids") {
		t.Error("boundToV1 misread /proc/cgroups")
	}
	err := error(&UnsupportedError{Feature: "memory controller", Where: "/x", Fix: "boot it", Cause: fs.ErrPermission})
	if got, want := err.Error(), "memory controller unavailable in /x: permission denied"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if !errors.Is(err, fs.ErrPermission) {
		t.Error("the cause is lost")
	}
}
