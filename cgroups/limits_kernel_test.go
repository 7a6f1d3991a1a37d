package cgroups

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// These tests need the controllers: they run where cgroup2 is the only hierarchy.

func content(t *testing.T, g Group, file string) string {
	t.Helper()
	data, err := readFile(filepath.Join(g.Dir, file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func TestLimitsAreInTheKernel(t *testing.T) {
	h := open(t, "cpu", "cpuset", "memory", "pids", "io")
	g := create(t, h, Limits{CPUs: 0.25, Memory: 64<<20 + 123, Pids: 17, CPUSet: "0"})
	for file, want := range map[string]string{
		"memory.max":             "67108864",
		"memory.swap.max":        "0",
		"memory.oom.group":       "1",
		"pids.max":               "17",
		"cpu.max":                "25000 100000",
		"cpuset.cpus":            "0",
		"cpuset.cpus.effective":  "0",
		"cgroup.max.depth":       "2",
		"cgroup.max.descendants": "4",
	} {
		if got := content(t, g, file); got != want {
			t.Errorf("%s = %q, want %q", file, got, want)
		}
	}
	huge, err := filepath.Glob(filepath.Join(g.Dir, "hugetlb.*.max"))
	if err != nil || slices.Contains(h.Controllers, "hugetlb") && len(huge) == 0 {
		t.Errorf("no hugetlb limits, %v", err)
	}
	for _, file := range huge {
		if got := content(t, g, filepath.Base(file)); got != "0" {
			t.Errorf("%s = %q, want 0", file, got)
		}
	}
}

func TestMemoryLimitKillsTheGroup(t *testing.T) {
	g := create(t, open(t, "memory"), Limits{Memory: 64 << 20})
	bystander := start(t, g, "sleep", "")
	glutton := start(t, g, "touch", "268435456")
	for _, cmd := range []*exec.Cmd{glutton, bystander} {
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("a process ended with %v, want SIGKILL", err)
		}
	}
	u, err := g.ReadUsage()
	if err != nil || u.OOMKills == nil || *u.OOMKills < 2 {
		t.Errorf("usage after the kill: %+v, %v, want 2 kills or more", u, err)
	}
	if u.MemoryPeak == nil {
		t.Fatal("peak memory is unknown")
	}
	within5(t, "peak memory against the limit", *u.MemoryPeak, 64<<20) // the kernel may exceed it by a few pages of its own
}

func TestMemoryPeakIsRight(t *testing.T) {
	const touched = 256 << 20
	g := create(t, open(t, "memory"), Limits{Memory: 512 << 20})
	if err := start(t, g, "touch", "268435456").Wait(); err != nil {
		t.Fatal(err)
	}
	u, err := g.ReadUsage()
	if err != nil || u.MemoryPeak == nil {
		t.Fatalf("ReadUsage = %+v, %v", u, err)
	}
	within5(t, "peak memory", *u.MemoryPeak, touched)
	if *u.MemoryPeak < touched {
		t.Errorf("peak memory = %d, less than the %d touched", *u.MemoryPeak, touched)
	}
}

func TestPidsLimitRefusesForks(t *testing.T) {
	const limit, tried = 32, 64
	g := create(t, open(t, "pids"), Limits{Pids: limit})
	cmd := start(t, g, "fork", "64")
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	made := cmd.ProcessState.ExitCode()
	if made < 1 || made >= limit {
		t.Errorf("%d forks succeeded under a limit of %d", made, limit)
	}
	u, err := g.ReadUsage()
	if err != nil || u.PidsPeak == nil || *u.PidsPeak != limit {
		t.Errorf("peak = %+v, %v, want %d", u, err, limit)
	}
	if u.PidsRefused == nil || *u.PidsRefused < int64(tried-made) {
		t.Errorf("usage = %+v, want at least %d refused", u, tried-made)
	}
}

func TestRefusedForksOfALeafAreCounted(t *testing.T) {
	g := create(t, open(t, "pids"), Limits{Pids: 32})
	leaf := Group{Dir: filepath.Join(g.Dir, "ctr")}
	if err := os.Mkdir(leaf.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := start(t, leaf, "fork", "64").Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if u, err := g.ReadUsage(); err != nil || u.PidsRefused == nil || *u.PidsRefused == 0 {
		t.Errorf("refused = %v, %v, want more than 0", u.PidsRefused, err)
	}
}

func TestCPULimitThrottles(t *testing.T) {
	g := create(t, open(t, "cpu"), Limits{CPUs: 0.2})
	begin := time.Now()
	if err := start(t, g, "burn", "300ms").Wait(); err != nil {
		t.Fatal(err)
	}
	wall := time.Since(begin)
	u, err := g.ReadUsage()
	if err != nil || u.CPU == nil || u.Throttled == nil {
		t.Fatalf("ReadUsage = %+v, %v", u, err)
	}
	// Two periods' quota may be used at once, at either end.
	if allowed := wall/5 + 40*time.Millisecond; *u.CPU > allowed {
		t.Errorf("used %v of CPU in %v, want at most %v", *u.CPU, wall, allowed)
	}
	if *u.Throttled == 0 {
		t.Error("throttled for 0 s")
	}
}

func TestCPUSetHolds(t *testing.T) {
	h := open(t, "cpuset")
	g := create(t, h, Limits{CPUSet: "0"})
	cmd := start(t, g, "cpus", "")
	cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 1 {
		t.Errorf("the process may run on %d CPUs, want 1", got)
	}
	if _, _, err := h.Create("run/elsewhere", Limits{CPUSet: "8191"}); err == nil || !strings.Contains(err.Error(), "cpuset.cpus=8191") {
		t.Errorf("Create on a CPU that is not there: %v, want an error that names it", err)
	}
	if exists(h.Group("run/elsewhere").Dir) {
		t.Error("the failed Create left its group")
	}
}

func TestWrittenBytesAreCounted(t *testing.T) {
	h := open(t, "io")
	dir := "/var/tmp"
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.EXT4_SUPER_MAGIC && st.Type != unix.XFS_SUPER_MAGIC {
		t.Skipf("%s is not on a block device", dir)
	}
	file := filepath.Join(dir, "engine-cgroups-test")
	defer os.Remove(file)
	g := create(t, h, Limits{})
	if err := start(t, g, "write", file).Wait(); err != nil {
		t.Fatal(err)
	}
	u, err := g.ReadUsage()
	if err != nil || u.IOWrite == nil || *u.IOWrite < 8<<20 || *u.IOWrite > 8<<20*21/20 {
		t.Errorf("written = %v, %v, want 8 MiB within 5 %%", u.IOWrite, err)
	}
}

// TestAnInnerProcessIsExplained: a group other than the real root hands no
// controllers down while it has processes.
func TestAnInnerProcessIsExplained(t *testing.T) {
	h := open(t, "memory")
	inner := Group{Dir: filepath.Join(h.Mount, root+"-inner")}
	if err := os.Mkdir(inner.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer destroy(t, inner)
	cmd := start(t, inner, "sleep", "")
	defer cmd.Wait()
	defer inner.Kill()
	busy, err := Open(inner.Dir)
	if err != nil || len(busy.Controllers) > 0 {
		t.Fatalf("Open = %+v, %v, want no controllers", busy, err)
	}
	e := busy.Unsupported("memory")
	if e == nil || e.Where != inner.Dir || !errors.Is(e, unix.EBUSY) || !strings.Contains(e.Remedy(), "Delegate=yes") {
		t.Errorf("Unsupported = %v, fix %q", e, e.Remedy())
	}
	g, unenforced, err := busy.Create("run/x", Limits{Memory: 1 << 30, Pids: 10})
	if !slices.Equal(unenforced, []string{"memory", "pids"}) || err != nil {
		t.Errorf("Create = unenforced %v, %v, want memory and pids", unenforced, err)
	}
	if err := start(t, g, "burn", "1ms").Wait(); err != nil {
		t.Errorf("a process cannot start in a group without limits: %v", err)
	}
	if e := h.Unsupported("memory"); e != nil {
		t.Errorf("Unsupported of a working hierarchy = %v", e)
	}
}
