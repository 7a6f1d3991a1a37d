package integration

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/direct-oci/engine/integration/testenv"
)

// TestLimitsOfTheCgroup proves that the limits that were asked for are in force in the
// run's own cgroup, with every process of the sandbox below it.
func TestLimitsOfTheCgroup(t *testing.T) {
	begin(t)
	requireLimits(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		l := start(t, runtime, []string{"--memory", "192MiB", "--cpus", "0.5", "--pids", "40"}, "/probe", "hold")
		want := map[string]string{
			"memory.max": "201326592", "memory.swap.max": "0", "memory.oom.group": "1", "cpu.max": "50000 100000", "pids.max": "41",
		}
		if runtime == "runsc" {
			delete(want, "pids.max") // counts the Sentry's threads: the program's own are bounded inside
		}
		for file, value := range want {
			got, err := os.ReadFile(filepath.Join(l.cgroup(), file))
			if err != nil || strings.TrimSpace(string(got)) != value {
				t.Errorf("%s = %q (%v), want %q", file, got, err, value)
			}
		}
		if got := len(l.procs(t)); got < 2 {
			t.Errorf("%d processes are in the run's cgroup, want the program and engine-init at least", got)
		}
		if kill := testenv.Exec(t, "kill", l.id); kill.Status != 0 {
			t.Error(kill)
		}
		r := l.end(t)
		r.want(t, "cancelled", 130)
		if got := r.Limits; got.CPUs != 0.5 || got.MemoryMB != 192 || got.Pids != 40 || got.TimeoutSeconds != 120 || len(r.Unenforced) != 0 {
			t.Errorf("%s\nlimits = %+v, unenforced = %q, want what was asked for", r, got, r.Unenforced)
		}
	})
}

// TestScratchIsFull proves that each writable place holds what was asked for, says so
// when it is full, and bounds the number of files too.
func TestScratchIsFull(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		r := run(t, runtime, []string{"--tmp-size", "2MiB", "--workspace-size", "4MiB", "--memory", "128MiB"},
			"/probe", "fill", "/tmp/x", "/workload/x")
		r.want(t, "exited", 0)
		for path, size := range map[string]int{"/tmp/x": 2 << 20, "/workload/x": 4 << 20} {
			var got, errno int
			for line := range strings.Lines(r.Stdout) {
				if rest, ok := strings.CutPrefix(line, "filled "+path+" "); ok {
					fmt.Sscanf(rest, "%d errno %d", &got, &errno)
				}
			}
			if got > size || got < size-64<<10 || errno != 28 {
				t.Errorf("%s took %d bytes and then errno %d, want about %d and ENOSPC", path, got, errno, size)
			}
		}
	})
}

// TestFullScratchIsNoOOM proves that filling a directory whose size nobody gave is told
// to the program, however small its memory is, and ends nothing.
func TestFullScratchIsNoOOM(t *testing.T) {
	begin(t)
	requireLimits(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		for _, path := range []string{"/tmp/x", "/workload/x"} {
			r := run(t, runtime, []string{"--memory", "128MiB"}, "/probe", "fill", path)
			r.want(t, "exited", 0)
			if !strings.Contains(r.Stdout, "errno 28") {
				t.Errorf("filling %s said %q, want ENOSPC", path, r.Stdout)
			}
		}
	})
}

// TestPidsLimit proves that a program gets no more processes than asked for, and that
// both what it had and what it was refused are counted.
func TestPidsLimit(t *testing.T) {
	begin(t)
	requireLimits(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		r := run(t, runtime, []string{"--pids", "32"}, "/probe", "children", "1000")
		r.want(t, "exited", 0)
		var children, errno int
		fmt.Sscanf(r.Stdout, "children %d errno %d", &children, &errno)
		if children != 31 || errno != 11 {
			t.Errorf("%s\na program with 32 processes started %d more, then errno %d, want 31 and EAGAIN", r, children, errno)
		}
		if runtime == "runsc" {
			if r.Actuals.PidsRefused != nil {
				t.Errorf("pidsRefused = %d, want null: the host does not see it", *r.Actuals.PidsRefused)
			}
			return
		}
		if peak := r.Actuals.PeakPids; peak == nil || *peak != 33 {
			t.Errorf("%s\nwant peakPids 33: the program's and engine-init", r)
		}
		if refused := r.Actuals.PidsRefused; refused == nil || *refused < 1 {
			t.Errorf("%s\nwant pidsRefused at least 1", r)
		}
	})
}

// overhead is what a run that does nothing is charged: the runtime's own start.
func overhead(t *testing.T, runtime string) usage {
	t.Helper()
	r := run(t, runtime, []string{"--memory", "512MiB"}, "/probe", "leave", "0")
	r.want(t, "exited", 0)
	return r.Actuals
}

// TestUsageOfCPU compares the CPU time charged with what the kernel says of each process
// of the sandbox, and that of the program with what it says itself. Processes that
// started the sandbox and ended are charged too: up to 1.5 times what an idle run is
// charged is allowed for them, on top of 5 %.
func TestUsageOfCPU(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		idle := *overhead(t, runtime).BusyCPUSecs
		l := start(t, runtime, []string{"--cpus", "2"}, "/probe", "burn", "1500", "+", "hold")
		out := l.says(t, "ready")
		outside, program := l.cpuSeconds(t)
		if kill := testenv.Exec(t, "kill", l.id); kill.Status != 0 {
			t.Error(kill)
		}
		r := l.end(t)
		r.want(t, "cancelled", 130)
		got := *r.Actuals.BusyCPUSecs
		if got < 0.95*outside || got > 1.05*outside+1.5*idle {
			t.Errorf("busyCpuSecs = %.3f for processes charged %.3f, where an idle run is charged %.3f", got, outside, idle)
		}
		var inside float64
		fmt.Sscanf(sections(out)["burn"], "cpu %f", &inside)
		// gVisor's own count goes on while the host runs something else.
		if runtime != "runsc" && (inside < 1.5 || math.Abs(program-inside) > 0.05*inside+0.05 || got < 0.95*inside) {
			t.Errorf("busyCpuSecs = %.3f for a program that used %.3f, and by the kernel %.3f", got, inside, program)
		}
		if sum := *r.Actuals.UserCPUSecs + *r.Actuals.SystemCPUSecs; math.Abs(sum-got) > 0.01 {
			t.Errorf("user and system CPU are %.3f together, want %.3f", sum, got)
		}
	})
}

// cpuSeconds is what the kernel has charged to the processes of the sandbox that are
// alive, all together and the probe alone.
func (l live) cpuSeconds(t *testing.T) (all, probe float64) {
	t.Helper()
	const ticks = 100 // USER_HZ, the same on every architecture of ours
	for pid, exe := range l.procs(t) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue // ended
		}
		_, rest, _ := strings.Cut(string(stat), ") ") // after the name, which may hold anything
		for _, field := range strings.Fields(rest)[11:13] {
			n, err := strconv.ParseFloat(field, 64)
			must(t, err)
			all += n / ticks
			if exe == "probe" {
				probe += n / ticks
			}
		}
	}
	return all, probe
}

// TestCPULimit proves that half a CPU takes twice as long, and that this is seen.
func TestCPULimit(t *testing.T) {
	begin(t)
	requireLimits(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		r := run(t, runtime, []string{"--cpus", "0.5"}, "/probe", "burn", "1000")
		r.want(t, "exited", 0)
		// gVisor's own clock of CPU time, which the program goes by, runs while it waits.
		if r.DurationMs < 1800 && runtime != "runsc" {
			t.Errorf("1000 ms of CPU took %.0f ms with half a CPU, want about 2000 at least", r.DurationMs)
		}
		if busy, all := *r.Actuals.BusyCPUSecs, r.Timing.TotalMs/1000; busy > 0.55*all+0.1 {
			t.Errorf("%.2f s of CPU were charged in %.2f s, want at most half", busy, all)
		}
		// How much of the second it waited for its quota depends on what else ran.
		if th := r.Actuals.ThrottledSecs; th == nil || *th <= 0 {
			t.Errorf("%s\nwant throttledSecs above zero", r)
		}
	})
}

// TestUsageOfMemory compares the peak with what the program touched.
func TestUsageOfMemory(t *testing.T) {
	begin(t)
	requireLimits(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		const touched = 96 << 20
		idle := overhead(t, runtime)
		r := run(t, runtime, []string{"--memory", "512MiB"}, "/probe", "touch", fmt.Sprint(touched))
		r.want(t, "exited", 0)
		got, extra := float64(*r.Actuals.PeakMemBytes), float64(*idle.PeakMemBytes)
		// What is charged before the program starts is given back by then, in part or whole.
		if got < 0.98*touched || got > 1.05*(touched+extra) {
			t.Errorf("peakMemBytes = %.0f for a program that touched %d, where an idle one is charged %.0f", got, touched, extra)
		}
		if kills := r.Actuals.OOMKills; kills == nil || *kills != 0 {
			t.Errorf("%s\nwant oomKills 0", r)
		}
	})
}

// TestMissingController proves that a limit nobody can enforce refuses the run, with a
// cure, unless the caller accepts that; then the result says which, and what was not
// measured is null.
func TestMissingController(t *testing.T) {
	begin(t)
	requireLimits(t)
	// A cgroup with a process of its own can give no controller to those below it.
	busy := filepath.Join(cgroupMount, "busy")
	if err := os.Mkdir(busy, 0o755); err != nil {
		t.Fatal(err)
	}
	occupant := testenv.Start(t, nil, "sleep", "600")
	t.Cleanup(func() {
		occupant.Signal(t, os.Kill)
		occupant.Wait(t)
		removeGroups(t, busy+"/engine")
		removeGroups(t, busy)
	})
	if err := os.WriteFile(busy+"/cgroup.procs", fmt.Append(nil, occupant.Cmd.Process.Pid), 0o644); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--cgroup-root", busy + "/engine"}

	r := run(t, "embedded", flags, "/probe", "leave", "0")
	if r.call.Status != 125 || r.Error == nil || r.Error.Class != "engine" || r.Error.Kind != "no_limit" || r.Error.Fix == "" {
		t.Errorf("%s\nwant status 125 and an error of class engine and kind no_limit, with a fix", r)
	}
	eachRuntimeInTurn(t, func(t *testing.T, runtime string) {
		r := run(t, runtime, append(flags, "--best-effort-limits"), "/probe", "leave", "7")
		r.want(t, "exited", 7)
		slices.Sort(r.Unenforced)
		same(t, "unenforced", r.Unenforced, []string{"cpus", "memory", "pids"})
		if a := r.Actuals; a.PeakMemBytes != nil || a.PeakPids != nil || a.PidsRefused != nil || a.OOMKills != nil || a.ThrottledSecs != nil {
			t.Errorf("%s\nwant null for what no controller measured", r)
		}
	})
}
