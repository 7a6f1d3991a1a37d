package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/integration/testenv"
)

// scope is how much is tested: "sample" or "all".
func scope(t testing.TB) string {
	t.Helper()
	s := os.Getenv("ENGINE_FAULTS")
	if s == "" && testenv.InVM() {
		s = "sample"
	}
	if s == "" {
		t.Skip("takes long, as root: run it with make test-faults, or a sample with make test-vm")
	}
	return s
}

// runtimes are those that the proofs go through.
var runtimes = []string{"direct", "embedded", "runc", "runsc"}

// bed is an engine with directories and a cgroup of its own.
type bed struct {
	t      testing.TB
	dir    string
	root   string // of busybox
	groups cgroups.Hierarchy
}

// newBed makes a bed whose programs are those named by pairs of a name and the
// program to be found under it; the others are the usual ones.
func newBed(t testing.TB, programs ...string) *bed {
	t.Helper()
	testenv.RequireRoot(t)
	dir, err := os.MkdirTemp("", "faults-")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, dir: dir, root: testenv.BusyboxRoot(t)}
	t.Cleanup(b.remove)
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(b.path("bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	as := map[string]string{"engine": "engine", "engine-monitor": "engine-monitor", "engine-init": "engine-init", "engine-guest": "engine-guest", "engine-launch": "engine-launch", "runc": "runc", "runsc": "runsc"}
	for i := 0; i < len(programs); i += 2 {
		as[programs[i]] = programs[i+1]
	}
	for name, program := range as {
		if err := place(testenv.Binary(t, program), b.path("bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	if b.groups, err = cgroups.Open(filepath.Base(dir)); err != nil {
		var missing *cgroups.UnsupportedError
		if errors.As(err, &missing) && !testenv.InVM() && os.Getenv("CI") != "true" {
			t.Skipf("needs a cgroup2 mount: %v", err)
		}
		t.Fatal(err)
	}
	return b
}

// place puts a program into a bed: by a link, where that is possible, but for
// those inside of which the engine notices every change, also of the number of links.
func place(program, at string) error {
	if name := filepath.Base(at); name != "engine-init" && name != "engine-guest" && os.Link(program, at) == nil {
		return nil
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	return os.WriteFile(at, data, 0o755)
}

// newFailpointBed is a bed whose programs know failpoints.
func newFailpointBed(t testing.TB) *bed {
	return newBed(t, "engine", "engine-failpoint", "engine-monitor", "engine-monitor-failpoint")
}

func (b *bed) path(elem ...string) string {
	return filepath.Join(append([]string{b.dir}, elem...)...)
}

func (b *bed) host() engine.Host {
	return engine.Host{
		StateDir: b.path("state"), RunDir: b.path("run"), CgroupRoot: b.groups.Root,
		Monitor: b.path("bin", "engine-monitor"), Init: b.path("bin", "engine-init"), Guest: b.path("bin", "engine-guest"),
	}
}

// remove ends whatever a failed test has left.
func (b *bed) remove() {
	b.groups.Group("").Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := errors.Join(b.groups.Group("").WaitEmpty(ctx), b.groups.Group("").Remove(), os.RemoveAll(b.dir))
	if err != nil {
		b.t.Errorf("cannot remove the bed: %v", err)
	}
}

// outcome is how one call of engine ended.
type outcome struct {
	args           []string
	stdout, stderr string
	status         int
	took           time.Duration
}

func (o outcome) String() string {
	return fmt.Sprintf("$ engine %s\n%s-- stderr --\n%s-- status %d after %v", strings.Join(o.args, " "), o.stdout, o.stderr, o.status, o.took.Round(time.Millisecond))
}

// patience bounds one call of engine.
func patience() time.Duration {
	if testenv.InVM() {
		return testenv.Patience
	}
	return 110 * time.Second // more than the engine waits for a sandbox to be ready
}

// command is engine with the bed's directories.
func (b *bed) command(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.path("bin", "engine"), append([]string{
		"--state-dir", b.path("state"), "--run-dir", b.path("run"), "--cgroup-root", b.groups.Root,
	}, args...)...)
	cmd.Env = append(env, "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.WaitDelay = patience()
	return cmd
}

// engine runs engine. A call that does not come to its end fails the test.
func (b *bed) engine(env []string, args ...string) outcome {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience())
	defer cancel()
	cmd := b.command(ctx, env, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	err := cmd.Run()
	o := outcome{args, stdout.String(), stderr.String(), cmd.ProcessState.ExitCode(), time.Since(start)}
	if o.status < 0 {
		o.status = 128 + 9
	}
	if ctx.Err() != nil {
		b.t.Fatalf("%s\nhangs: %v", o, err)
	}
	return o
}

// job is what is run: it shows a token that no other start shows, and takes a moment.
const job = `head -c 8 /dev/urandom | od -A n -t x1; sleep 0.05; exit 7`

var token = regexp.MustCompile(`(?m)^( [0-9a-f]{2}){8}$`)

// start are the arguments that run job under the runtime.
func (b *bed) start(runtime, id string) []string {
	return b.startJob(runtime, id, job)
}

func (b *bed) startJob(runtime, id, job string) []string {
	args := []string{"run", "--best-effort-limits", "--runtime", runtime, "--rootfs", b.root, "--memory", "256MiB", "--timeout", "60s"}
	if id != "" {
		args = append(args, "--id", id)
	}
	return append(args, "--", "sh", "-c", job)
}

// record is what is on record of the run, nil if nothing is.
func (b *bed) record(id string) *engine.Record {
	b.t.Helper()
	r, err := b.host().Load(id)
	var e *engine.Error
	if errors.As(err, &e) && e.Kind == "not_found" {
		return nil
	}
	if err != nil {
		b.t.Fatalf("cannot load run %s: %v", id, err)
	}
	if r.Result != nil {
		b.host().FillOutput(r.Result)
	}
	return &r
}

// gc is one engine gc that has to do all there is to do, as its dry run said, within
// 10 s. It returns what it did.
func (b *bed) gc() []engine.GCAction {
	b.t.Helper()
	plan := b.engine(nil, "gc", "--json", "--dry-run")
	done := b.engine(nil, "gc", "--json")
	if plan.stdout != done.stdout {
		b.t.Errorf("engine gc --dry-run said\n%sand engine gc did\n%s", plan, done)
	}
	if done.status != 0 || done.took > gcLimit() {
		b.t.Errorf("engine gc failed, or took longer than %v:\n%s", gcLimit(), done)
	}
	var actions []engine.GCAction
	if err := json.Unmarshal([]byte(done.stdout), &actions); err != nil {
		b.t.Fatalf("%s\n%v", done, err)
	}
	if again := b.engine(nil, "gc", "--json"); again.stdout != "[]\n" || again.status != 0 {
		b.t.Errorf("a second engine gc had something left to do:\n%s", again)
	}
	return actions
}

func gcLimit() time.Duration {
	if testenv.InVM() {
		return 30 * time.Second // some ten times slower
	}
	return 10 * time.Second
}

// quiet waits until no process owns the run.
func (b *bed) quiet(id string) {
	b.t.Helper()
	testenv.WaitFor(b.t, patience(), "run "+id+" to be without an owner", func() bool {
		alive, err := journal.Alive(b.path("state"), id)
		if err != nil {
			b.t.Fatal(err)
		}
		return !alive
	})
}

// clean waits, for a moment, until nothing of any run is left.
func (b *bed) clean() {
	b.t.Helper()
	var left []string
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if left = b.left(); len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			b.t.Errorf("left on the host:\n%s", strings.Join(left, "\n"))
			return
		}
	}
}

// left lists what is on the host of runs that are over.
func (b *bed) left() []string {
	b.t.Helper()
	return testenv.Left(b.t, b.groups, b.dir, false)
}

func (b *bed) list(dir string) []string {
	b.t.Helper()
	entries, err := os.ReadDir(b.path(dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
