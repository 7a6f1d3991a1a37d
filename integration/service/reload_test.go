package service

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/cmd/engine-runner/link/devplane"
	"github.com/direct-oci/engine/integration/testenv"
)

// reload has the config read again, and waits for the log to say this of it.
func (b *bed) reload(says string) {
	b.t.Helper()
	before := strings.Count(b.log.String(), says)
	if err := b.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		b.t.Fatal(err)
	}
	b.until(says, func() bool { return strings.Count(b.log.String(), says) > before })
}

const inForce = "a new config is in force"

// servePlane serves a control plane until stop is called, and returns the part of a config
// that leads to it.
func (b *bed) servePlane(name string) (config string, plane *devplane.Client, stop func()) {
	b.t.Helper()
	dir := b.path(name)
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- devplane.Serve(ctx, devplane.Options{
			Dir: dir, Listen: "127.0.0.1:0", Plain: true, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		}, func(url string) { ready <- url })
	}()
	stopped := false
	stop = func() {
		if cancel(); stopped {
			return
		}
		if stopped = true; <-ended != nil {
			b.t.Errorf("the plane %s did not end well", name)
		}
	}
	select {
	case url := <-ready:
		config = fmt.Sprintf("controlPlane:\n  url: %s\n  signingSecret: {file: %s}\n", devplane.RunnerURL(url), filepath.Join(dir, devplane.SecretFile))
	case err := <-ended:
		b.t.Fatal(err)
	}
	b.t.Cleanup(stop)
	plane, err := devplane.Dial(dir)
	if err != nil {
		b.t.Fatal(err)
	}
	return config, plane, stop
}

// TestLinkIsSeenAndChanged takes a link through reloads, from none to one plane, past its
// death to another, and to none again, and looks at what health and the figures say.
func TestLinkIsSeenAndChanged(t *testing.T) {
	b := newBed(t, "")
	first, _, stop := b.servePlane("first")
	second, plane, _ := b.servePlane("second")
	c, ctx := b.start(), patient(t)
	figure := func(text string) bool {
		figures, err := c.Metrics(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(figures), text)
	}
	if check, there := b.linkCheck(c); there || figure("engine_link_") {
		t.Errorf("without a control plane: %+v", check)
	}
	b.configure(first + "  identity: runner\n")
	b.reload(inForce)
	b.until("connected", func() bool { return figure("\nengine_link_connected 1\n") })
	if check, there := b.linkCheck(c); !there || !check.OK || !strings.Contains(check.Found, "connected to ws://") {
		t.Errorf("connected: %+v", check)
	}
	stop()
	b.until("not connected", func() bool {
		return figure("\nengine_link_connected 0\n") && figure(`engine_link_failures_total{reason="ended"} 1`)
	})
	if check, there := b.linkCheck(c); !there || !strings.Contains(check.Found, "not connected to ws://") {
		t.Errorf("with a dead plane: %+v", check)
	}
	b.configure(second + "  identity: another\n")
	b.reload("cannot change controlPlane.identity")
	b.configure(second + "  identity: runner\n  maxConcurrent: 3\n")
	b.reload(inForce)
	b.until("connected to the second plane", func() bool {
		list, err := plane.Runners(ctx)
		return err == nil && len(list) == 1 && list[0].Connected && list[0].Capacity.Max == 3 && figure("\nengine_link_connected 1\n")
	})
	b.configure("")
	b.reload(inForce)
	b.until("gone from the second plane", func() bool {
		list, err := plane.Runners(ctx)
		return err == nil && len(list) == 1 && !list[0].Connected
	})
	if check, there := b.linkCheck(c); there || figure("engine_link_") {
		t.Errorf("without a control plane again: %+v", check)
	}
	b.stop()
}

// linkCheck is what health says of the link. The link never makes it fail.
func (b *bed) linkCheck(c *client.Client) (wire.Check, bool) {
	b.t.Helper()
	h, err := c.Health(patient(b.t))
	if err != nil || !h.OK {
		b.t.Fatalf("health: %+v, %v", h, err)
	}
	for _, check := range h.Checks {
		if check.Name == "link" {
			return check, true
		}
	}
	return wire.Check{}, false
}

// TestSandboxesAreReloaded has a sandbox wait for room that a reload makes, and new ones
// made by the new defaults, while one lives through it all.
func TestSandboxesAreReloaded(t *testing.T) {
	b := newBed(t, "  sandboxes: {total: {sandboxes: 1}, ttlSeconds: 600, waitSeconds: 60}\n")
	c, ctx := b.start(), patient(t)
	one := box("one")
	one.TTLSeconds = 0
	lives, err := c.CreateSandbox(ctx, one)
	if err != nil {
		t.Fatal(err)
	}
	program, err := c.StartExec(ctx, "one", wire.ExecRequest{Command: []string{"sleep", "3600"}})
	if err != nil {
		t.Fatal(err)
	}
	created := make(chan error, 1)
	go func() {
		two := box("two")
		two.TTLSeconds = 0
		sb, err := c.CreateSandbox(ctx, two)
		if err == nil && sb.Limits.TTLSeconds != 600 {
			err = fmt.Errorf("it was asked for under the old config, and lives for %v seconds", sb.Limits.TTLSeconds)
		}
		created <- err
	}()
	b.until("two waits", func() bool {
		figures, err := c.Metrics(ctx)
		return err == nil && strings.Contains(string(figures), "\nengine_admission_waiting 1\n")
	})
	b.configure("  sandboxes: {total: {sandboxes: 3}, ttlSeconds: 1200, classes: {tiny: {cpus: 1, memoryMb: 128}}}\n")
	b.reload(inForce)
	select {
	case err := <-created:
		if err != nil {
			t.Errorf("the one that waited: %v", err)
		}
	case <-time.After(testenv.Patience):
		t.Fatal("it goes on to wait though there is room")
	}
	three := wire.SandboxRequest{Name: "three", Image: "box", Runtime: "embedded", Class: "tiny"}
	if sb, err := c.CreateSandbox(ctx, three); err != nil || sb.Limits.TTLSeconds != 1200 || sb.Limits.MemoryMB != 128 {
		t.Errorf("by the new defaults: %+v, %v", sb.Limits, err)
	}
	if sb, err := c.Sandbox(ctx, "one"); err != nil || !sb.Alive || sb.Limits != lives.Limits {
		t.Errorf("the one that lives: %+v, %v", sb, err)
	}
	if e, err := c.Exec(ctx, "one", program.ID); err != nil || e.Result != nil {
		t.Errorf("its program: %+v, %v", e, err)
	}
}
