package cgroups

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// bounded ends long before the test binary's own bound, and late enough for a slow VM.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestOpenTwiceIsTheSame(t *testing.T) {
	first := open(t)
	for _, path := range []string{root, first.Root, first.Root + "/"} {
		again, err := Open(path)
		if err != nil || again.Root != first.Root || again.Mount != first.Mount || !slices.Equal(again.Controllers, first.Controllers) {
			t.Errorf("Open(%q) = %+v, %v, want %+v", path, again, err, first)
		}
	}
	if got, want := first.Path("run/a/ctr"), "/"+root+"/run/a/ctr"; got != want {
		t.Errorf("Path = %q, want %q", got, want)
	}
	for _, elsewhere := range []string{t.TempDir(), "..", "/"} {
		if _, err := Open(elsewhere); err == nil {
			t.Errorf("Open(%q) succeeded outside of cgroup2", elsewhere)
		}
	}
}

func TestListNamesTheGroups(t *testing.T) {
	h := open(t)
	for _, id := range []string{"run/b", "run/a"} {
		g, _, err := h.Create(id, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { destroy(t, g) })
	}
	if got, err := h.List("run"); !slices.Equal(got, []string{"a", "b"}) || err != nil {
		t.Errorf("List = %v, %v, want [a b]", got, err)
	}
}

func TestDepthAndNumberOfGroupsBelowAreLimited(t *testing.T) {
	h := open(t)
	g := create(t, h, Limits{})
	if err := os.MkdirAll(filepath.Join(g.Dir, "ctr/inner"), 0o755); err != nil {
		t.Errorf("two levels below: %v", err)
	}
	if err := os.Mkdir(filepath.Join(g.Dir, "ctr/inner/most"), 0o755); err == nil {
		t.Error("three levels below succeeded")
	}
}

func TestCreateReplacesAnEmptyGroupAndRefusesAPopulatedOne(t *testing.T) {
	h := open(t)
	g := create(t, h, Limits{})
	if err := start(t, g, "burn", "50ms").Wait(); err != nil {
		t.Fatal(err)
	}
	if err := g.WaitEmpty(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(g.Dir, "ctr"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Create(groupName(t), Limits{}); err != nil {
		t.Fatalf("Create over an empty group: %v", err)
	}
	if u, err := g.ReadUsage(); err != nil || u.CPU == nil || *u.CPU != 0 {
		t.Errorf("the new group begins with the CPU time %v of the old one, %v", u.CPU, err)
	}
	cmd := start(t, g, "sleep", "")
	var populated *PopulatedError
	if _, _, err := h.Create(groupName(t), Limits{}); !errors.As(err, &populated) || !slices.Contains(populated.Pids, cmd.Process.Pid) {
		t.Errorf("Create over a populated group: %v, want a PopulatedError that names %d", err, cmd.Process.Pid)
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	cmd.Wait()
}

// TestKillTakesTheWholeTree covers processes in the group and below it, for both
// ways to kill.
func TestKillTakesTheWholeTree(t *testing.T) {
	for name, kill := range map[string]func(Group) error{"cgroup.kill": Group.Kill, "one by one": Group.killEach} {
		t.Run(name, func(t *testing.T) {
			g := create(t, open(t), Limits{})
			ctr := Group{Dir: filepath.Join(g.Dir, "ctr")}
			if err := os.Mkdir(ctr.Dir, 0o755); err != nil {
				t.Fatal(err)
			}
			outer := start(t, g, "sleep", "")
			inner, _ := startReady(t, ctr, "tree", "20")
			if pids, _, err := readPids(ctr.Dir); len(pids) != 21 || err != nil {
				t.Fatalf("%d processes before, %v, want 21", len(pids), err)
			}
			if err := kill(g); err != nil {
				t.Fatalf("kill: %v", err)
			}
			if err := g.WaitEmpty(bounded(t)); err != nil {
				t.Fatalf("WaitEmpty: %v", err)
			}
			for _, cmd := range []*exec.Cmd{outer, inner} {
				var exit *exec.ExitError
				if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Errorf("a process ended with %v, want SIGKILL", err)
				}
			}
			if err := g.Remove(); err != nil {
				t.Errorf("Remove of the nested groups: %v", err)
			}
		})
	}
}

// TestAKilledGroupIsUsableAgain goes through Create, which must not hand out the
// killed cgroup itself: Linux 6.18 kills what is cloned into one, because it compares
// the numbers of kills of two cgroups.
func TestAKilledGroupIsUsableAgain(t *testing.T) {
	h := open(t)
	g := create(t, h, Limits{})
	for range 3 {
		if err := g.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := h.Create(groupName(t), Limits{}); err != nil {
			t.Fatal(err)
		}
		if err := start(t, g, "burn", "1ms").Wait(); err != nil {
			t.Fatalf("a process started after a kill ended with %v", err)
		}
	}
}

// TestKillEachRefusesTheRoot: without cgroup.kill and cgroup.freeze one is in the
// root of the hierarchy, where every process of the host is.
func TestKillEachRefusesTheRoot(t *testing.T) {
	h := open(t)
	if exists(filepath.Join(h.Mount, "cgroup.freeze")) {
		t.Skip("the mount shows a part of the tree")
	}
	if err := (Group{Dir: h.Mount}).killEach(); err == nil {
		t.Error("killEach of the root succeeded")
	}
}

func TestWaitEmptyEndsWithItsContext(t *testing.T) {
	g := create(t, open(t), Limits{})
	cmd := start(t, g, "sleep", "")
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(30*time.Millisecond, cancel)
	var populated *PopulatedError
	err := g.WaitEmpty(ctx)
	if !errors.As(err, &populated) || !errors.Is(err, context.Canceled) || !slices.Contains(populated.Pids, cmd.Process.Pid) {
		t.Errorf("WaitEmpty = %v, want a PopulatedError that names %d, for context canceled", err, cmd.Process.Pid)
	}
	done := make(chan error)
	go func() { done <- g.WaitEmpty(bounded(t)) }()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if err := <-done; err != nil {
		t.Errorf("WaitEmpty after the last process: %v", err)
	}
	if err := g.WaitEmpty(ctx); err != nil {
		t.Errorf("WaitEmpty of an empty group with an ended context: %v", err)
	}
}

func TestAGroupThatIsGone(t *testing.T) {
	g := open(t).Group("run/never-made")
	if err := g.Kill(); err != nil {
		t.Errorf("Kill: %v", err)
	}
	if err := g.killEach(); err != nil {
		t.Errorf("killEach: %v", err)
	}
	if err := g.WaitEmpty(bounded(t)); err != nil {
		t.Errorf("WaitEmpty: %v", err)
	}
	if err := g.Remove(); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if _, err := g.ReadUsage(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadUsage: %v, want ErrNotExist", err)
	}
}

func TestRemoveRefusesAPopulatedGroup(t *testing.T) {
	g := create(t, open(t), Limits{})
	cmd := start(t, g, "sleep", "")
	var populated *PopulatedError
	if err := g.Remove(); !errors.As(err, &populated) {
		t.Errorf("Remove = %v, want a PopulatedError", err)
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	cmd.Wait()
}

func TestWarmMigration(t *testing.T) {
	g := create(t, open(t), Limits{})
	if err := g.WarmMigration(nil); err == nil {
		t.Error("WarmMigration from outside of the group succeeded")
	}
	cmd, in := startReady(t, g, "warm", g.Dir)
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("WarmMigration from inside: %v", err)
	}
}

// TestMissingControllers needs no host of its own: below a directory that hands
// nothing down there are none.
func TestMissingControllers(t *testing.T) {
	h := open(t)
	bare := Hierarchy{Mount: h.Mount, Root: filepath.Join(h.Mount, root+"-bare")}
	if err := os.MkdirAll(filepath.Join(bare.Root, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	defer Group{Dir: bare.Root}.Remove()
	g, unenforced, err := bare.Create("run/x", Limits{CPUs: 1, Memory: 1 << 30, Pids: 10, CPUSet: "0"})
	if want := []string{"cpus", "cpuset", "memory", "pids"}; !slices.Equal(unenforced, want) || err != nil {
		t.Errorf("unenforced = %v, %v, want %v", unenforced, err, want)
	}
	u, err := g.ReadUsage()
	if err != nil {
		t.Errorf("ReadUsage: %v", err)
	}
	if u.CPU == nil || u.User == nil || u.System == nil {
		t.Error("CPU time is unknown, though every cgroup has it")
	}
	if u.Throttled != nil || u.MemoryPeak != nil || u.OOMKills != nil || u.PidsPeak != nil || u.PidsRefused != nil || u.IORead != nil {
		t.Errorf("usage of missing controllers is not unknown: %+v", u)
	}
	for _, limit := range []string{"cpus", "cpuset", "memory", "pids"} {
		if slices.Contains(h.Controllers, controllerOf[limit]) {
			continue
		}
		if e := h.Unsupported(limit); e == nil || e.Remedy() == "" {
			t.Errorf("Unsupported(%q) = %v without a remedy", limit, e)
		}
	}
}

func TestCPUTimeIsRight(t *testing.T) {
	g := create(t, open(t), Limits{})
	// Long enough for what the kernel charges after the last look at rusage to vanish.
	cmd := start(t, g, "burn", "4s")
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := g.WaitEmpty(bounded(t)); err != nil {
		t.Fatal(err)
	}
	u, err := g.ReadUsage()
	if err != nil || u.CPU == nil || u.User == nil || u.System == nil {
		t.Fatalf("ReadUsage = %+v, %v", u, err)
	}
	within5(t, "CPU against rusage", int64(*u.CPU), int64(cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()))
	within5(t, "user and system against CPU", int64(*u.User+*u.System), int64(*u.CPU))
}

func within5(t *testing.T, what string, got, want int64) {
	t.Helper()
	if diff := got - want; diff > want/20 || -diff > want/20 {
		t.Errorf("%s: %d, want %d within 5 %%", what, got, want)
	}
}

func BenchmarkOpen(b *testing.B) {
	open(b)
	for b.Loop() {
		if _, err := Open(root); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCreateAndRemove(b *testing.B) {
	h := open(b)
	var removing time.Duration
	for b.Loop() {
		g, _, err := h.Create("run/bench", Limits{CPUs: 1, Memory: 64 << 20, Pids: 64})
		if err != nil {
			b.Fatal(err)
		}
		begin := time.Now()
		if err := g.Remove(); err != nil {
			b.Fatal(err)
		}
		removing += time.Since(begin)
	}
	b.ReportMetric(float64(removing.Nanoseconds())/float64(b.N), "ns/remove")
}

// BenchmarkKillAndWaitEmpty makes the group anew for every round: into one that was
// killed once, some kernels let no process be cloned alive.
func BenchmarkKillAndWaitEmpty(b *testing.B) {
	h := open(b)
	var spent time.Duration
	for b.Loop() {
		g, _, err := h.Create("run/bench", Limits{})
		if err != nil {
			b.Fatal(err)
		}
		cmd, in := startReady(b, g, "tree", "3")
		begin := time.Now()
		if err := g.Kill(); err != nil {
			b.Fatal(err)
		}
		if err := g.WaitEmpty(bounded(b)); err != nil {
			b.Fatal(err)
		}
		spent += time.Since(begin)
		cmd.Wait()
		in.Close()
		if err := g.Remove(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N), "ns/kill")
}

func BenchmarkReadUsage(b *testing.B) {
	g := create(b, open(b), Limits{})
	for b.Loop() {
		if _, err := g.ReadUsage(); err != nil {
			b.Fatal(err)
		}
	}
}
