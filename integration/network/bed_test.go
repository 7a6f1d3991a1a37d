package network

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/integration/testenv"
)

// everything reports whether all is to be tested, and not a sample.
func everything() bool { return os.Getenv("ENGINE_NETWORK") == "all" }

// requireScope skips a test that nobody asked for.
func requireScope(t testing.TB) {
	t.Helper()
	if !testenv.InVM() && os.Getenv(testenv.HostMarker) != "1" && os.Getenv("ENGINE_NETWORK") == "" {
		t.Skip("takes long, as root: run it with make test-network, or a sample with make test-vm")
	}
}

// eachRuntime runs f under the runtimes: in the test machine all four, elsewhere those
// that run beside cgroup v1 too.
func eachRuntime(t *testing.T, f func(t *testing.T, runtime string)) {
	t.Helper()
	requireScope(t)
	runtimes := testenv.Runtimes()
	if !pure() {
		runtimes = slices.DeleteFunc(runtimes, func(r string) bool { return r == "crun" })
	}
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) { f(t, runtime) })
	}
}

// someRuntimes is eachRuntime for what the gateway alone decides: a sample of the
// runtimes is one with the host's kernel and gVisor.
func someRuntimes(t *testing.T, f func(t *testing.T, runtime string)) {
	t.Helper()
	eachRuntime(t, func(t *testing.T, runtime string) {
		if everything() || runtime == "embedded" || runtime == "runsc" {
			f(t, runtime)
		}
	})
}

// pure reports whether this host has cgroup v2 alone.
func pure() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// bed is an engine with directories and a cgroup of its own, in a world of its own.
type bed struct {
	t      testing.TB
	dir    string
	root   string // of the sandboxes
	groups cgroups.Hierarchy
	world  *world
}

func newBed(t testing.TB) *bed {
	t.Helper()
	requireScope(t)
	testenv.RequireRoot(t)
	dir, err := os.MkdirTemp("", "network-")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, dir: dir, root: filepath.Join(dir, "root")}
	if b.groups, err = cgroups.Open(filepath.Base(dir)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.remove)
	if err := errors.Join(os.Chmod(dir, 0o711), b.fillRoot()); err != nil {
		t.Fatal(err)
	}
	b.world = newWorld(t, dir)
	return b
}

func (b *bed) fillRoot() error {
	for _, d := range []string{"bin", "etc", "tmp"} {
		if err := os.MkdirAll(filepath.Join(b.root, d), 0o755); err != nil {
			return err
		}
	}
	for program, at := range map[string]string{"netprobe": "bin/netprobe", "busybox": "bin/busybox"} {
		data, err := os.ReadFile(testenv.Binary(b.t, program))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(b.root, at), data, 0o755); err != nil {
			return err
		}
	}
	return os.Symlink("busybox", filepath.Join(b.root, "bin/sh"))
}

// remove ends whatever a failed test has left.
func (b *bed) remove() {
	b.groups.Group("").Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := errors.Join(b.groups.Group("").WaitEmpty(ctx), b.groups.Group("").Remove(), os.RemoveAll(b.dir))
	if err != nil {
		b.t.Errorf("cannot remove the bed: %v", err)
	}
}

func (b *bed) path(elem ...string) string {
	return filepath.Join(append([]string{b.dir}, elem...)...)
}

func (b *bed) engineHost() engine.Host {
	return engine.Host{
		StateDir: b.path("state"), RunDir: b.path("run"), CgroupRoot: b.groups.Root,
		Monitor: testenv.Binary(b.t, "engine-monitor"), Init: testenv.Binary(b.t, "engine-init"), Guest: testenv.Binary(b.t, "engine-guest"),
	}
}

// command is engine with the bed's directories.
func (b *bed) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 2*testenv.Patience)
	b.t.Cleanup(cancel)
	bin := filepath.Dir(testenv.Binary(b.t, "engine"))
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "engine"), append([]string{
		"--state-dir", b.path("state"), "--run-dir", b.path("run"), "--cgroup-root", b.groups.Root,
	}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// engine runs engine to its end, in the place that plays the host.
func (b *bed) engine(args ...string) (output string, err error) {
	b.t.Helper()
	cmd := b.command(args...)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	b.world.host.do(b.t, cmd.Start)
	err = cmd.Wait()
	return text.String(), err
}

// session is a run of the probe that a test talks to.
type session struct {
	*bed
	id     string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	said   chan string // lines of its stdout, closed at its end
	stderr bytes.Buffer
}

// start starts a run of the probe.
func (b *bed) start(runtime string, flags ...string) *session {
	b.t.Helper()
	atOnce := "32"
	if testenv.InVM() {
		atOnce = "4" // one processor, emulated
	}
	return b.startProgram(runtime, flags, "/bin/netprobe", "-j", atOnce)
}

func (b *bed) startProgram(runtime string, flags []string, argv ...string) *session {
	b.t.Helper()
	s := &session{bed: b, id: journal.NewID(), said: make(chan string, 8192)}
	args := []string{"run", "--best-effort-limits", "--quiet", "--id", s.id, "--runtime", runtime, "--rootfs", b.root, "--timeout", "110s"}
	s.cmd = b.command(slices.Concat(args, flags, []string{"--"}, argv)...)
	s.cmd.Stderr = &s.stderr
	stdin, err := s.cmd.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	s.stdin = stdin
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	b.world.host.do(b.t, s.cmd.Start)
	go func() {
		defer close(s.said)
		lines := bufio.NewScanner(stdout)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			s.said <- lines.Text()
		}
	}()
	return s
}

// finding is what the probe says of one line.
type finding struct {
	Probe string  `json:"probe"`
	Got   string  `json:"got"`
	Text  string  `json:"text"`
	Ms    float64 `json:"ms"`
}

func (f finding) String() string {
	return fmt.Sprintf("%s: %s %q after %.0f ms", f.Probe, f.Got, f.Text, f.Ms)
}

// tell gives the probe lines to try.
func (s *session) tell(lines ...string) {
	s.t.Helper()
	if _, err := io.WriteString(s.stdin, strings.Join(lines, "\n")+"\n"); err != nil {
		s.t.Fatalf("run %s does not listen: %v\n%s", s.id, err, s.stderr.String())
	}
}

// next is the next finding; ok is false at the end of the probe.
func (s *session) next() (f finding, ok bool) {
	s.t.Helper()
	select {
	case line, ok := <-s.said:
		if !ok {
			return f, false
		}
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			s.t.Fatalf("run %s said %q: %v", s.id, line, err)
		}
		return f, true
	case <-time.After(testenv.Patience):
		s.t.Fatalf("run %s says nothing\n%s", s.id, s.stderr.String())
		return f, false
	}
}

// ask tries one line and waits for its end.
func (s *session) ask(line string) finding {
	s.t.Helper()
	s.tell(line)
	f, ok := s.next()
	if !ok || f.Probe != line {
		s.t.Fatalf("run %s was asked %q and said %v\n%s", s.id, line, f, s.stderr.String())
	}
	return f
}

// want is ask for a certain answer.
func (s *session) want(line, got string) finding {
	s.t.Helper()
	f := s.ask(line)
	if f.Got != got {
		s.t.Errorf("%v, want %s", f, got)
	}
	return f
}

// ready waits until the program runs.
func (s *session) ready() *session {
	s.t.Helper()
	s.ask("say ready")
	return s
}

// end closes the program's input and waits for the run's result.
func (s *session) end() engine.Result {
	s.t.Helper()
	s.stdin.Close()
	return s.over()
}

// over waits for the end of a run, which somebody else causes.
func (s *session) over() engine.Result {
	s.t.Helper()
	for range s.said { // the rest
	}
	s.cmd.Wait() // its status is in the result
	return s.result()
}

func (s *session) result() engine.Result {
	s.t.Helper()
	rec, err := s.engineHost().Load(s.id)
	if err != nil || rec.Result == nil {
		s.t.Fatalf("run %s has no result (%v)\n%s", s.id, err, s.stderr.String())
	}
	return *rec.Result
}

// probe runs lines in a sandbox and returns what became of each.
func (b *bed) probe(runtime string, flags, lines []string) (map[string]finding, engine.Result) {
	b.t.Helper()
	s := b.start(runtime, flags...)
	go func() {
		io.WriteString(s.stdin, strings.Join(lines, "\n")+"\n")
		s.stdin.Close()
	}()
	found := map[string]finding{}
	for f, ok := s.next(); ok; f, ok = s.next() {
		found[f.Probe] = f
	}
	r := s.over()
	if len(found) != len(lines) {
		b.t.Fatalf("run %s answered %d of %d lines: %s\n%s", s.id, len(found), len(lines), why(r), s.stderr.String())
	}
	return found, r
}

func why(r engine.Result) string {
	data, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// audit are the lines of a run's record of decisions.
func (s *session) audit() []map[string]any {
	s.t.Helper()
	data, err := os.ReadFile(s.path("state/runs", s.id, "network.log"))
	if err != nil {
		s.t.Fatal(err)
	}
	var lines []map[string]any
	for line := range strings.Lines(string(data)) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			s.t.Fatalf("network.log of run %s has %q: %v", s.id, line, err)
		}
		lines = append(lines, v)
	}
	return lines
}
