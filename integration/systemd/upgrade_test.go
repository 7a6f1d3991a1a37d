package systemd

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/integration/testenv"
)

// TestUpgradeInPlace puts another version's programs in the place of those that are in
// use, and goes back, while sandboxes of all runtimes live.
func TestUpgradeInPlace(t *testing.T) {
	b := boot(t)
	c := b.client(t)
	ctx := within(t, 10*time.Minute)
	first, err := c.Version(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.install(programs()); err != nil {
			t.Error(err)
		}
		b.run(t, "systemctl", "restart", "engine")
	})
	old := b.countAll(ctx, t, c, len(runtimes), func(int) time.Duration { return 0 })
	if err := b.install(next()); err != nil {
		t.Fatal(err)
	}
	b.run(t, "systemctl", "daemon-reload")
	b.run(t, "systemctl", "restart", "engine")
	if v, err := c.Version(ctx); err != nil || v.Version != "next" || v.Version == first.Version {
		t.Fatalf("after the upgrade of %s the service is %+v, %v", first.Version, v, err)
	}
	for _, n := range old {
		handle(ctx, t, c, n)
	}
	recent := b.count(ctx, t, c, len(old), 0)
	if err := b.install(programs()); err != nil {
		t.Fatal(err)
	}
	b.run(t, "systemctl", "restart", "engine")
	if v, err := c.Version(ctx); err != nil || v.Version != first.Version {
		t.Fatalf("after going back the service is %+v, %v, want %s", v, err, first.Version)
	}
	handle(ctx, t, c, recent)
	b.endAll(ctx, t, c, append(old, recent))
}

// handle does with a sandbox what needs its monitor.
func handle(ctx context.Context, t *testing.T, c *client.Client, n *counter) {
	t.Helper()
	program, err := c.StartExec(ctx, n.name, wire.ExecRequest{Command: []string{"/bin/sh", "-c", "read line; echo got $line"}, Stdin: true})
	if err == nil {
		_, err = c.WriteStdin(ctx, n.name, program.ID, strings.NewReader("this\n"), true)
	}
	if err == nil {
		program, err = c.WaitExec(ctx, n.name, program.ID)
	}
	if err != nil || program.Result.ExitCode == nil || *program.Result.ExitCode != 0 || program.Result.StdoutBytes != int64(len("got this\n")) {
		t.Errorf("sandbox %s: a program with stdin: %+v, %v", n.name, program.Result, err)
	}
	if s, err := c.PauseSandbox(ctx, n.name); err != nil || s.State != "paused" {
		t.Errorf("sandbox %s: pause: %s, %v", n.name, s.State, err)
	}
	if s, err := c.ResumeSandbox(ctx, n.name); err != nil || s.State != "ready" {
		t.Errorf("sandbox %s: resume: %s, %v", n.name, s.State, err)
	}
	if r, err := c.RenewSandbox(ctx, n.name, 30*time.Minute); err != nil || time.Until(r.Deadline) < 29*time.Minute {
		t.Errorf("sandbox %s: renew: %v, %v", n.name, r.Deadline, err)
	}
	if _, err := c.SandboxStats(ctx, n.name); err != nil {
		t.Errorf("sandbox %s: stats: %v", n.name, err)
	}
}

// TestDrain lets nothing new start, across a restart, and touches nothing that lives.
func TestDrain(t *testing.T) {
	b := boot(t)
	c := b.client(t)
	ctx := within(t, 5*time.Minute)
	n := b.count(ctx, t, c, 0, 0)
	t.Cleanup(func() {
		if _, err := c.SetDraining(ctx, false); err != nil {
			t.Error(err)
		}
	})
	if d, err := c.SetDraining(ctx, true); err != nil || d.Live != 1 {
		t.Fatalf("draining: %+v, %v", d, err)
	}
	b.run(t, "systemctl", "restart", "engine")
	ask := wire.SandboxRequest{Name: "late", Owner: t.Name(), Rootfs: "/srv/root", CPUs: 0.2, MemoryMB: 64}
	if _, err := c.CreateSandbox(ctx, ask); !client.IsKind(err, "draining") {
		t.Errorf("a sandbox of a service that drains: %v, want kind draining", err)
	}
	if _, err := c.StartRun(ctx, request("true")); !client.IsKind(err, "draining") {
		t.Errorf("a run of a service that drains: %v, want kind draining", err)
	}
	handle(ctx, t, c, n)
	b.endAll(ctx, t, c, []*counter{n})
	testenv.WaitFor(t, testenv.Patience, "the service to be drained", func() bool {
		d, err := c.Draining(ctx)
		if err != nil || !d.Draining {
			t.Fatalf("draining: %+v, %v", d, err)
		}
		return d.Live == 0
	})
}

// TestStopIsGraceful stops the service while it is listened to, and lets a deadline pass
// before it is there again.
func TestStopIsGraceful(t *testing.T) {
	b := boot(t)
	c := b.client(t)
	ctx := within(t, 10*time.Minute)
	long, short := b.count(ctx, t, c, 0, 0), b.count(ctx, t, c, 1, 10*time.Second)
	start := time.Now()
	b.run(t, "systemctl", "stop", "engine.socket", "engine.service")
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if got := b.show(t, "engine.service", "Result"); got != "success" {
		t.Errorf("the service ended with %s, want success", got)
	}
	_, err := output(b.command("engine", "wait", "--cgroup-root", "/sys/fs/cgroup/"+sandboxes, short.box.ID))
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 124 {
		t.Errorf("engine wait, of the sandbox whose time is over: %v, want exit status 124", err)
	}
	b.run(t, "systemctl", "start", "engine.socket")
	b.endAll(ctx, t, c, []*counter{long, short})
}

// TestKillOfTheUnitSparesSandboxes uses systemctl kill, which means every process of a unit.
func TestKillOfTheUnitSparesSandboxes(t *testing.T) {
	b := boot(t)
	c := b.client(t)
	ctx := within(t, 5*time.Minute)
	counters := b.countAll(ctx, t, c, len(runtimes), func(int) time.Duration { return 0 })
	for _, signal := range []string{"TERM", "KILL"} {
		pid := b.mainPID(t)
		b.run(t, "systemctl", "kill", "--signal="+signal, "engine.service")
		b.waitReplaced(t, pid)
	}
	b.run(t, "systemctl", "daemon-reexec")
	b.endAll(ctx, t, c, counters)
}
