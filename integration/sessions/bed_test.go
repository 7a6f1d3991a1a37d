package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/integration/testenv"
)

// scope names what is to be run outside of the test machine.
const scope = "ENGINE_SESSIONS"

// requireScope skips a test that nobody asked for.
func requireScope(t testing.TB) {
	t.Helper()
	if !testenv.InVM() && os.Getenv(testenv.HostMarker) != "1" && os.Getenv(scope) == "" {
		t.Skip("starts sandboxes, as root: run it with make test-sessions, or make test-vm")
	}
	testenv.RequireRoot(t)
}

// eachRuntime runs f under the runtimes: in the test machine all four, elsewhere those
// that run beside cgroup v1 too.
func eachRuntime(t *testing.T, f func(t *testing.T, b *bed)) {
	t.Helper()
	requireScope(t)
	runtimes := testenv.Runtimes()
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		runtimes = slices.DeleteFunc(runtimes, func(r string) bool { return r == "crun" })
	}
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) { f(t, newBed(t, runtime)) })
	}
}

// bed is an engine with directories and a cgroup of its own.
type bed struct {
	t       testing.TB
	runtime string
	dir     string
	root    string // of the sandboxes
	groups  cgroups.Hierarchy
	engine.Host
}

func newBed(t testing.TB, runtime string) *bed {
	t.Helper()
	requireScope(t)
	dir, err := os.MkdirTemp("", "sessions-")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, runtime: runtime, dir: dir, root: testenv.BusyboxRoot(t)}
	if b.groups, err = cgroups.Open(filepath.Base(dir)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.remove)
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	b.Host = engine.Host{
		StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), CgroupRoot: b.groups.Root,
		Monitor: testenv.Binary(t, "engine-monitor"), Init: testenv.Binary(t, "engine-init"),
		Guest:       testenv.Binary(t, "engine-guest"),
		MinFreeDisk: -1, MinFreeMemory: -1,
	}
	engine.Version = testenv.Version(t)
	testenv.InstallBeside(t, runtime)
	return b
}

// remove ends whatever a test has left.
func (b *bed) remove() {
	for _, r := range b.records() {
		if r.Alive {
			if err := b.Kill(within(b.t), r.ID); err != nil {
				b.t.Logf("cannot end run %s: %v", r.ID, err)
			}
		}
	}
	testenv.WaitFor(b.t, testenv.Patience, "the runs to be cleaned up", func() bool {
		return !slices.ContainsFunc(b.records(), func(r engine.Record) bool { return r.Alive })
	})
	if _, err := b.GC(within(b.t), false); err != nil {
		b.t.Error(err)
	}
	for _, left := range []string{filepath.Join(b.groups.Root, "run", "*"), filepath.Join(b.RunDir, "????????????????")} {
		found, err := filepath.Glob(left)
		for _, path := range found {
			if name := filepath.Base(path); journal.ValidID(name) {
				b.t.Errorf("%s is left", path)
			}
		}
		if err != nil {
			b.t.Error(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := errors.Join(b.groups.Group("").WaitEmpty(ctx), b.groups.Group("").Remove(), os.RemoveAll(b.dir)); err != nil {
		b.t.Errorf("cannot remove the bed: %v", err)
	}
}

func (b *bed) records() []engine.Record {
	list, err := b.List()
	if err != nil {
		b.t.Fatal(err)
	}
	return list
}

// within is a context that ends when a test has waited for long enough.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	t.Cleanup(cancel)
	return ctx
}

// request is a session's, changed by a test.
func (b *bed) request(change ...func(*engine.Request)) engine.Request {
	r := engine.Request{
		Runtime: b.runtime, Rootfs: b.root, Session: &engine.Session{}, Limits: engine.DefaultLimits(),
		BestEffortLimits: true,
	}
	r.Limits.Timeout = 10 * time.Minute
	for _, c := range change {
		c(&r)
	}
	return r
}

// session starts a session, waits until it is ready, and returns its id.
func (b *bed) session(change ...func(*engine.Request)) string {
	b.t.Helper()
	run, err := b.Start(within(b.t), b.request(change...), nil, engine.Stdio{})
	if err != nil {
		b.t.Fatal(err)
	}
	rec, err := b.AwaitReady(within(b.t), run.ID())
	if err != nil {
		b.t.Fatal(err)
	}
	if rec.Deadline == nil || rec.State != engine.Running {
		b.t.Fatalf("record = %+v, want a deadline and state running", rec)
	}
	return run.ID()
}

// exec starts a program.
func (b *bed) exec(session string, e engine.Exec) *engine.ExecConn {
	b.t.Helper()
	c, err := b.Exec(within(b.t), session, e)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	return c
}

// shell is an exec of a script.
func shell(script string) engine.Exec {
	return engine.Exec{Command: []string{"sh", "-c", script}}
}

// end waits for an exec's result.
func (b *bed) end(c *engine.ExecConn) engine.ExecResult {
	b.t.Helper()
	r, err := c.Wait(within(b.t))
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// output is what is on record of an exec.
func (b *bed) output(session, exec string) (stdout, stderr string) {
	b.t.Helper()
	out, err := journal.ReadOutput(b.ExecOutputPath(session, exec), math.MaxInt64)
	if err != nil {
		b.t.Fatal(err)
	}
	return out.Stdout, out.Stderr
}

// run runs a script to its end, and returns its result and stdout.
func (b *bed) run(session, script string) (engine.ExecResult, string) {
	b.t.Helper()
	c := b.exec(session, shell(script))
	r := b.end(c)
	stdout, _ := b.output(session, c.ID())
	return r, stdout
}

// wantExit fails the test unless the exec exited with this code.
func wantExit(t testing.TB, r engine.ExecResult, code int) {
	t.Helper()
	if r.Reason != engine.ReasonExited || r.ExitCode == nil || *r.ExitCode != code || r.Error != nil {
		t.Fatalf("result = %s, want exit code %d", show(r), code)
	}
}

func show(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// wantKind fails the test unless the error is of this kind.
func wantKind(t testing.TB, err error, kind string) {
	t.Helper()
	var e *engine.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Fatalf("error = %v, want kind %s", err, kind)
	}
}
