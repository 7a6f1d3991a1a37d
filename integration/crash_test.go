package integration

import (
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/direct-oci/engine/integration/testenv"
)

// kill9 kills one process and waits until it is gone.
func kill9(t *testing.T, pid int) {
	t.Helper()
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	testenv.WaitFor(t, testenv.Patience, "a killed process to be gone", func() bool {
		return syscall.Kill(pid, 0) == syscall.ESRCH
	})
}

// TestCallerIsKilled proves that a run does not need who started it: it goes on, and its
// result and output are on record.
func TestCallerIsKilled(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		l := start(t, runtime, nil, "/bin/sh", "-c", "echo before; exec /probe hold")
		l.says(t, "before")
		if l.monitor(t) == 0 {
			t.Fatal("the run has no monitor")
		}
		l.Signal(t, os.Kill)
		if call := l.Wait(t); call.Status != 137 {
			t.Errorf("%s\nwant death by SIGKILL", call)
		}
		r := inspect(t, l.id)
		if r.State != "running" || !r.Alive || r.Result != nil {
			t.Errorf("after the caller's death the run is %+v, want it running", r)
		}
		again := testenv.Exec(t, "gc", "--json")
		if strings.TrimSpace(again.Stdout) != "[]" || again.Status != 0 {
			t.Errorf("%s\nwant gc to leave a run alone that a monitor watches", again)
		}
		wait := testenv.Start(t, nil, "engine", "wait", "--json", l.id)
		if kill := testenv.Exec(t, "kill", l.id); kill.Status != 0 {
			t.Error(kill)
		}
		res := decode(t, wait.Wait(t))
		res.want(t, "cancelled", 130)
		if res.ID != l.id || !strings.HasPrefix(res.Stdout, "before\n") {
			t.Errorf("%s\nwant the output of run %s", res, l.id)
		}
	})
}

// TestResultWithoutACaller proves that a run whose caller was killed ends by itself with
// its own result.
func TestResultWithoutACaller(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		l := start(t, runtime, nil, "/bin/sh", "-c", "/probe nap 1500; echo after; exit 9")
		l.Signal(t, os.Kill)
		l.Wait(t)
		res := decode(t, testenv.Exec(t, "wait", "--json", l.id))
		res.want(t, "exited", 9)
		if res.Stdout != "after\n" {
			t.Errorf("%s\nwant what the program wrote after its caller's death", res)
		}
	})
}

// TestMonitorIsKilled proves that no sandbox outlives its monitor, and that gc finds
// what is left and gives the run its result.
func TestMonitorIsKilled(t *testing.T) {
	begin(t)
	eachRuntimeInTurn(t, func(t *testing.T, runtime string) {
		l := start(t, runtime, nil, "/probe", "shrug")
		l.says(t, "here")
		// Without a caller, which would clean up by itself.
		l.Signal(t, os.Kill)
		l.Wait(t)
		kill9(t, l.monitor(t))
		testenv.WaitFor(t, testenv.Patience, "the sandbox to die with its monitor", func() bool { return len(l.procs(t)) == 0 })
		if r := inspect(t, l.id); r.Alive || r.Result != nil {
			t.Errorf("after the monitor's death the run is %+v, want it without a result and not alive", r)
		}
		dry := testenv.Exec(t, "gc", "--dry-run")
		if dry.Status != 0 || !strings.Contains(dry.Stdout, l.id) || !fileExists(l.cgroup()) {
			t.Errorf("%s\nwant the run named, and left", dry)
		}
		var actions []struct{ ID, Object, Action, Why string }
		gc := testenv.Exec(t, "gc", "--json")
		err := json.Unmarshal([]byte(gc.Stdout), &actions)
		if gc.Status != 0 || err != nil || len(actions) != 1 || actions[0].ID != l.id || !strings.Contains(actions[0].Why, "monitor died") {
			t.Errorf("%s\nwant one action for run %s (%v)", gc, l.id, err)
		}
		res := decode(t, testenv.Exec(t, "wait", "--json", l.id))
		res.want(t, "lost", 125)
		if res.Stdout != "here\n" || res.Actuals.BusyCPUSecs == nil {
			t.Errorf("%s\nwant what was recorded before, and what the cgroup still knew", res)
		}
		if r := inspect(t, l.id); r.State != "removed" {
			t.Errorf("state = %s, want removed", r.State)
		}
	})
}

// TestCallerOutlivesTheMonitor proves that a caller whose monitor was killed cleans up
// at once and says that the run is lost.
func TestCallerOutlivesTheMonitor(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		l := start(t, runtime, nil, "/probe", "shrug")
		kill9(t, l.monitor(t))
		l.end(t).want(t, "lost", 125)
		if fileExists(l.cgroup()) || fileExists(testenv.RunDir+"/"+l.id) {
			t.Errorf("the run's cgroup or directory is left")
		}
	})
}

// TestProcessesOfASandbox looks at two sandboxes from outside: every process of one,
// gVisor's own included, is in its cgroup, in a user namespace that is not the host's,
// and has a user of the run's block, which is not the other's.
func TestProcessesOfASandbox(t *testing.T) {
	begin(t)
	eachRuntimeInTurn(t, func(t *testing.T, runtime string) {
		lives := []live{start(t, runtime, nil, "/probe", "hold"), start(t, runtime, nil, "/probe", "hold")}
		var blocks []int
		for _, l := range lives {
			found := l.blocks(t)
			if len(found) != 1 {
				t.Errorf("the processes of run %s have users of blocks %v, want one block", l.id, found)
			}
			blocks = append(blocks, found...)
		}
		if len(blocks) == 2 && blocks[0] == blocks[1] {
			t.Errorf("two runs have users of the same block %d", blocks[0])
		}
		for _, l := range lives {
			if kill := testenv.Exec(t, "kill", l.id); kill.Status != 0 {
				t.Error(kill)
			}
			l.end(t).want(t, "cancelled", 130)
		}
	})
}

// blocks are the blocks of 65536 that the users of a run's processes belong to.
func (l live) blocks(t *testing.T) []int {
	t.Helper()
	host, err := os.Readlink("/proc/self/ns/user")
	must(t, err)
	var found []int
	for pid, exe := range l.procs(t) {
		data, err := os.ReadFile("/proc/" + pid + "/status")
		ns, nsErr := os.Readlink("/proc/" + pid + "/ns/user")
		if err != nil || nsErr != nil {
			continue // ended
		}
		status := inside{report: report{"status": strings.Split(string(data), "\n")}}
		uid, err := strconv.Atoi(strings.Fields(status.status("Uid"))[0])
		if err != nil || uid < 1<<17 || ns == host {
			t.Errorf("process %s, %s, runs as uid %d in user namespace %s (the host's is %s)", pid, exe, uid, ns, host)
		}
		if !slices.Contains(found, uid>>16) {
			found = append(found, uid>>16)
		}
	}
	return found
}
