package systemd

import (
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/integration/testenv"
)

// TestUnitsAreSound asks systemd what it thinks of the units.
func TestUnitsAreSound(t *testing.T) {
	b := boot(t)
	units := []string{"engine.service", "engine.socket", "engine-sandboxes.service", "engine-gc.service", "engine-gc.timer", "engine.slice"}
	cmd := b.command(append([]string{"systemd-analyze", "verify", "--man=no"}, units...)...)
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "" {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// docs/OPERATIONS.md names the score.
	const worst = 5.8
	analysis := b.run(t, "systemd-analyze", "security", "--no-pager", "engine.service")
	found := regexp.MustCompile(`engine.service: ([0-9.]+)`).FindStringSubmatch(analysis)
	if found == nil {
		t.Fatalf("systemd-analyze security has no score:\n%s", analysis)
	}
	if score, err := strconv.ParseFloat(found[1], 64); err != nil || score > worst {
		t.Errorf("the score of engine.service is %s, want at most %v", found[1], worst)
	}
}

// TestFirstCallStartsTheService has nothing but the socket, as after a boot without work.
func TestFirstCallStartsTheService(t *testing.T) {
	b := boot(t)
	b.run(t, "systemctl", "stop", "engine.service", "engine-sandboxes.service")
	if got := b.show(t, "engine.service", "ActiveState"); got != "inactive" {
		t.Fatalf("the stopped service is %s", got)
	}
	if _, err := b.client(t).Version(within(t, testenv.Patience)); err != nil {
		t.Fatalf("the first call: %v\n%s", err, b.journal())
	}
	for _, unit := range []string{"engine.service", "engine-sandboxes.service"} {
		if got := b.show(t, unit, "ActiveState"); got != "active" {
			t.Errorf("after a call %s is %s, want active", unit, got)
		}
	}
	if got := b.show(t, "engine.service", "StatusText"); got != "serving" {
		t.Errorf("the service says %q to systemd, want serving", got)
	}
}

// TestEveryRuntimeBearsTheUnit starts runs through the service, without a network and
// with one: all that the unit closes, runs inherit.
func TestEveryRuntimeBearsTheUnit(t *testing.T) {
	b := boot(t)
	c := b.client(t)
	for _, runtime := range testenv.Runtimes() {
		t.Run(runtime, func(t *testing.T) {
			for _, egress := range [][]string{nil, {"example.com"}} {
				ctx := within(t, 2*testenv.Patience)
				ask := request("echo hi; cat /proc/self/cgroup")
				ask.Runtime, ask.Egress = runtime, egress
				run, err := c.StartRun(ctx, ask)
				if err != nil {
					t.Fatalf("egress %v: %v\n%s", egress, err, b.journal())
				}
				if run, err = c.WaitRun(ctx, run.ID); err != nil {
					t.Fatal(err)
				}
				if r := run.Result; !r.OK || !strings.HasPrefix(r.Stdout, "hi\n") {
					t.Errorf("egress %v: result %+v, error %+v", egress, r, r.Error)
				} else if b.limits && len(r.Unenforced) > 0 {
					t.Errorf("egress %v: %v not enforced", egress, r.Unenforced)
				}
			}
		})
	}
}

// TestOutOfMemoryIsTheSandboxsOwn fills one sandbox, next to another in the same unit.
func TestOutOfMemoryIsTheSandboxsOwn(t *testing.T) {
	b := boot(t)
	if !b.limits {
		t.Skip("this host has no memory controller in cgroup v2: make test-vm has")
	}
	c := b.client(t)
	ctx := within(t, 2*testenv.Patience)
	n := b.count(ctx, t, c, 0, 0)
	run, err := c.StartRun(ctx, request("x=x; while :; do x=$x$x; done"))
	if err == nil {
		run, err = c.WaitRun(ctx, run.ID)
	}
	if err != nil || run.Result.Reason == nil || *run.Result.Reason != string(engine.ReasonOOM) {
		t.Errorf("a run without memory: %+v, %v", run.Result, err)
	}
	if got := b.show(t, "engine-sandboxes.service", "NRestarts"); got != "0" {
		t.Errorf("the unit of the sandboxes was restarted %s times", got)
	}
	b.endAll(ctx, t, c, []*counter{n})
}

// request is a small run of a shell's script.
func request(script string) wire.RunRequest {
	return wire.RunRequest{
		ID: client.NewRunID(), Rootfs: "/srv/root", Runtime: "embedded", Command: []string{"/bin/sh", "-c", script},
		Limits: wire.Limits{MemoryMB: 48, Pids: 16, TmpMB: 1, WorkspaceMB: 1, TimeoutSeconds: testenv.Patience.Seconds()},
	}
}

// TestReload changes the config under the running service, for the worse and the better.
func TestReload(t *testing.T) {
	b := boot(t)
	old, err := os.ReadFile(b.inside(config))
	if err != nil {
		t.Fatal(err)
	}
	pid := b.show(t, "engine.service", "MainPID")
	t.Cleanup(func() {
		if err := os.WriteFile(b.inside(config), old, 0o600); err != nil {
			t.Error(err)
		}
		b.run(t, "systemctl", "reload", "engine")
	})
	for _, tt := range []struct{ more, status string }{
		{"no such key: 1\n", "serving, with the old config: the new one is refused"},
		{"# of no meaning\n", "serving"},
	} {
		if err := os.WriteFile(b.inside(config), append(old[:len(old):len(old)], tt.more...), 0o600); err != nil {
			t.Fatal(err)
		}
		b.run(t, "systemctl", "reload", "engine")
		if got := b.show(t, "engine.service", "StatusText"); got != tt.status {
			t.Errorf("after a reload with %q the service says %q, want %q", tt.more, got, tt.status)
		}
	}
	if got := b.show(t, "engine.service", "MainPID"); got != pid {
		t.Errorf("the reload made process %s of %s", got, pid)
	}
	if _, err := b.client(t).Version(within(t, testenv.Patience)); err != nil {
		t.Error(err)
	}
}

// TestWatchdog stops the service without ending it.
func TestWatchdog(t *testing.T) {
	b := boot(t)
	b.dropIn(t, "WatchdogSec=6\nTimeoutAbortSec=2\n")
	b.run(t, "systemctl", "restart", "engine")
	pid := b.mainPID(t)
	b.run(t, "kill", "-STOP", strconv.Itoa(pid))
	b.waitReplaced(t, pid)
	if _, err := b.client(t).Version(within(t, testenv.Patience)); err != nil {
		t.Error(err)
	}
}

// mainPID is the process of the service, which runs, as the box counts.
func (b *box) mainPID(t testing.TB) int {
	t.Helper()
	pid := b.serving(t)
	if pid == 0 {
		t.Fatalf("the service does not run\n%s", b.journal())
	}
	return pid
}

// serving is the same, or 0 if the service is not up.
func (b *box) serving(t testing.TB) int {
	t.Helper()
	out := b.run(t, "systemctl", "show", "engine.service", "-p", "ActiveState", "-p", "MainPID")
	values := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[name] = value
	}
	pid, err := strconv.Atoi(values["MainPID"])
	if err != nil {
		t.Fatalf("systemctl show: %s", out)
	}
	if values["ActiveState"] != "active" {
		return 0
	}
	return pid
}

// waitReplaced waits until the service is up as another process.
func (b *box) waitReplaced(t testing.TB, pid int) {
	t.Helper()
	testenv.WaitFor(t, testenv.Patience, "another service in place of process "+strconv.Itoa(pid), func() bool {
		now := b.serving(t)
		return now != 0 && now != pid
	})
}

// dropIn changes the service's unit for one test.
func (b *box) dropIn(t testing.TB, text string) {
	t.Helper()
	const dir = "/run/systemd/system/engine.service.d"
	b.run(t, "mkdir", "-p", dir)
	path := b.inside(dir + "/test.conf")
	if err := os.WriteFile(path, []byte("[Service]\n"+text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
		b.run(t, "systemctl", "daemon-reload")
	})
	b.run(t, "systemctl", "daemon-reload")
}

// TestTimerCollects kills the monitor of a run while no service is there.
func TestTimerCollects(t *testing.T) {
	b := boot(t)
	c := b.client(t)
	ctx := within(t, 2*testenv.Patience)
	run, err := c.StartRun(ctx, request("sleep 600"))
	if err != nil {
		t.Fatal(err)
	}
	b.waitRunning(t, c, run.ID)
	b.run(t, "systemctl", "stop", "engine.socket", "engine.service")
	b.killMonitors(t)
	b.run(t, "systemctl", "start", "engine-gc.service")
	b.run(t, "systemctl", "start", "engine.socket")
	if run, err = c.Run(ctx, run.ID); err != nil {
		t.Fatal(err)
	}
	if run.State != string(engine.Removed) || run.Result == nil || run.Result.Reason == nil || *run.Result.Reason != string(engine.ReasonLost) {
		t.Errorf("after the timer's service the run is %s with %+v, want removed and lost", run.State, run.Result)
	}
	b.run(t, "systemctl", "start", "engine-gc.timer")
	if got := b.show(t, "engine-gc.timer", "ActiveState"); got != "active" {
		t.Errorf("the timer is %s", got)
	}
	b.run(t, "systemctl", "stop", "engine-gc.timer")
}

// killMonitors kills every monitor in the box.
func (b *box) killMonitors(t testing.TB) {
	t.Helper()
	data, err := os.ReadFile(b.inside("/sys/fs/cgroup/" + sandboxes + "/mon/cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	pids := strings.Fields(string(data)) // of this side: it is read from here
	if len(pids) == 0 {
		t.Fatal("there is no monitor")
	}
	for _, field := range pids {
		pid, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
}

// waitRunning waits until a run's program is there.
func (b *box) waitRunning(t testing.TB, c *client.Client, id string) {
	t.Helper()
	testenv.WaitFor(t, testenv.Patience, "run "+id, func() bool {
		run, err := c.Run(within(t, testenv.Patience), id)
		if err != nil || run.Result != nil {
			t.Fatalf("run %s does not run: %+v, %v", id, run.Result, err)
		}
		return run.State == string(engine.Running)
	})
}
