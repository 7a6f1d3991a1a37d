package service

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/integration/testenv"
)

// commandLine is engine sandbox, as somebody at a shell has it.
func (b *bed) commandLine(verb string, args ...string) []string {
	return append([]string{"sandbox", verb, "--socket", b.socket()}, args...)
}

// sandbox runs engine sandbox, and wants a status.
func (b *bed) sandbox(t *testing.T, status int, verb string, args ...string) testenv.Result {
	t.Helper()
	return b.sandboxInput(t, nil, status, verb, args...)
}

func (b *bed) sandboxInput(t *testing.T, stdin io.Reader, status int, verb string, args ...string) testenv.Result {
	t.Helper()
	r := testenv.ExecInput(t, stdin, b.commandLine(verb, args...)...)
	if r.Status != status {
		t.Fatalf("want status %d: %s", status, r)
	}
	return r
}

// newLine is a bed with a service and one sandbox that the command line has made.
func newLine(t *testing.T) *bed {
	b := newBed(t, "")
	b.start()
	b.sandbox(t, 0, "create", "one", "--image", "box", "--runtime", "embedded", "--memory", "256MiB", "--ttl", "10m", "--env", "A=a", "--label", "step=x")
	return b
}

// TestCommandLine goes through the life of a sandbox by engine sandbox.
func TestCommandLine(t *testing.T) {
	b := newLine(t)
	again := b.sandbox(t, 0, "create", "one", "--image", "box", "--json")
	var one struct {
		wire.Sandbox
		Adopted bool
		Execs   []wire.Exec
	}
	if err := json.Unmarshal([]byte(again.Stdout), &one); err != nil || !one.Adopted || one.Limits.MemoryMB != 256 || !strings.Contains(again.Stderr, "adopted") {
		t.Errorf("created again: %s (%v)", again, err)
	}
	if r := b.sandbox(t, 125, "create", "one", "--image", "box", "--owner", "wf:2"); !strings.Contains(r.Stderr, "fix: choose another name") {
		t.Errorf("created as another: %s", r)
	}
	if r := b.sandbox(t, 7, "exec", "--env", "B=b", "--workdir", "/tmp", "one", "--", "sh", "-c", `echo "$A$B" $PWD; echo err >&2; exit 7`); r.Stdout != "ab /tmp\n" || r.Stderr != "err\n" {
		t.Errorf("exec: %s", r)
	}
	b.sandbox(t, 127, "exec", "one", "nonsense")
	b.sandbox(t, 124, "exec", "--timeout", "0.2", "one", "sleep", "60")
	b.sandbox(t, 128+15, "exec", "one", "--", "sh", "-c", "kill -TERM $$")
	b.sandbox(t, 125, "exec", "nobody", "true")

	// What came from a sandbox steers no terminal, and --output-limit is told.
	if r := b.sandbox(t, 0, "exec", "--output-limit", "1MB", "one", "seq", "1", "300000"); !strings.HasSuffix(r.Stdout, "\n300000\n") || !strings.Contains(r.Stderr, "bytes of stdout were not kept here") {
		t.Errorf("more than is kept: %.100q, ending in %.20q", r.Stderr, r.Stdout[max(0, len(r.Stdout)-20):])
	}
	id := strings.TrimSpace(b.sandbox(t, 0, "exec", "--detach", "one", "--", "sh", "-c", `printf '\033[31mred'; sleep 0.3; echo done; sleep 60`).Stdout)
	p := b.person(t, "logs", "-f", "one", id)
	p.begins()
	p.sees(`\x1b[31mreddone`)
	b.sandbox(t, 0, "kill", "--signal", "TERM", "one", id)
	p.leaves(0, p.settings())
	if r := b.sandbox(t, 0, "logs", "one", id); r.Stdout != "\x1b[31mreddone\n" {
		t.Errorf("logs: %s", r)
	}
	if r := b.sandbox(t, 0, "logs", "--json", "one", id); !strings.Contains(r.Stdout, `"kind":"exit"`) {
		t.Errorf("logs --json: %s", r)
	}
	b.looks(t)
	b.ends(t)
}

// looks shows a sandbox in the ways there are.
func (b *bed) looks(t *testing.T) {
	t.Helper()
	var one struct {
		wire.Sandbox
		Execs []wire.Exec
	}
	if err := json.Unmarshal([]byte(b.sandbox(t, 0, "inspect", "one").Stdout), &one); err != nil || one.Name != "one" || one.State != "ready" || len(one.Execs) < 4 {
		t.Errorf("inspected %+v (%v)", one, err)
	}
	var list []wire.Sandbox
	if err := json.Unmarshal([]byte(b.sandbox(t, 0, "ls", "--label", "step=x", "--state", "ready", "--json").Stdout), &list); err != nil || len(list) != 1 || list[0].ID != one.ID {
		t.Errorf("listed %+v (%v)", list, err)
	}
	if r := b.sandbox(t, 0, "ls", "--owner", "nobody", "--json"); r.Stdout != "[]\n" {
		t.Errorf("listed of nobody: %s", r)
	}
	if r := b.sandbox(t, 0, "ls"); !strings.Contains(r.Stdout, "step=x") || strings.Count(r.Stdout, "\n") != 2 {
		t.Errorf("listed %s", r)
	}
	if r := b.sandbox(t, 0, "stats", "one"); !strings.HasSuffix(r.Stdout, "ready\n") {
		t.Errorf("stats: %s", r)
	}
}

// ends pauses, renews and removes.
func (b *bed) ends(t *testing.T) {
	t.Helper()
	b.sandbox(t, 0, "pause", "one")
	if r := b.sandbox(t, 125, "exec", "one", "true"); !strings.Contains(r.Stderr, "is paused") {
		t.Errorf("exec while paused: %s", r)
	}
	b.sandbox(t, 0, "resume", "one")
	deadline, err := time.Parse(time.RFC3339, strings.TrimSpace(b.sandbox(t, 0, "renew", "one", "--ttl", "2h").Stdout))
	if err != nil || time.Until(deadline) < 110*time.Minute {
		t.Errorf("renewed until %v (%v)", deadline, err)
	}
	b.sandbox(t, 125, "rm")
	b.sandbox(t, 125, "rm", "one", "--owner", "x")
	if r := b.sandbox(t, 0, "rm", "one", "none"); r.Stdout != "one\nnone\n" {
		t.Errorf("removed %s", r)
	}
	b.sandbox(t, 0, "rm", "one")
	if r := b.sandbox(t, 0, "rm", "--label", "step=x"); r.Stdout != "0\n" {
		t.Errorf("removed by label: %s", r)
	}
	b.kill()
	begun := time.Now()
	if r := b.sandbox(t, 125, "ls", "--json"); !strings.Contains(r.Stdout, `"kind":"no_service"`) || time.Since(begun) > 20*time.Second {
		t.Errorf("without a service: %s", r)
	}
}

// TestCommandLinePipes passes on a stream in many pieces, with the service killed on the
// way, and every byte of it arrives, in its order, and comes back.
func TestCommandLinePipes(t *testing.T) {
	b := newLine(t)
	var text bytes.Buffer
	for i := range 400_000 {
		fmt.Fprintf(&text, "line %d\n", i)
	}
	data := text.Bytes()
	cmd := exec.Command(testenv.Binary(t, "engine"), b.commandLine("exec", "-i", "one", "--", "sh", "-c", "cat; exit 5")...)
	out := &safeBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	half, written := len(data)/2, 0
	for _, part := range [][]byte{data[:half], data[half:]} {
		if _, err := in.Write(part); err != nil {
			t.Fatal(err)
		}
		written += len(part)
		b.until("what was written comes back", func() bool { return len(out.String()) >= written })
		b.kill()
		b.start()
	}
	in.Close()
	cmd.Wait()
	if cmd.ProcessState.ExitCode() != 5 || out.String() != string(data) {
		t.Errorf("%d bytes came back of %d, or others: %v, %.300s", len(out.String()), len(data), cmd.ProcessState, out.String())
	}
	b.taken(t)
	b.cutOff(t)
}

// cutOff ends the service while stdin is on its way: the command line says that nobody
// knows how much of it arrived, and does not send it again.
func (b *bed) cutOff(t *testing.T) {
	t.Helper()
	out := &safeBuffer{}
	cmd := exec.Command(testenv.Binary(t, "engine"), b.commandLine("exec", "-i", "one", "--", "sh", "-c", "head -c 1000 >/dev/null; echo read; sleep 60")...)
	cmd.Stdout, cmd.Stderr = out, out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go in.Write(make([]byte, 1<<20)) // more than all pipes hold
	b.until("the program has read some", func() bool { return strings.Contains(out.String(), "read") })
	b.stop()
	cmd.Wait()
	if cmd.ProcessState.ExitCode() != 125 || !strings.Contains(out.String(), "nobody knows how much") {
		t.Errorf("cut off it ends with %v and says %q", cmd.ProcessState, out)
	}
	b.start()
}

// taken interrupts the command line, which ends it and not the program, and takes the
// program up again.
func (b *bed) taken(t *testing.T) {
	t.Helper()
	out := &safeBuffer{}
	p := exec.Command(testenv.Binary(t, "engine"), b.commandLine("exec", "--id", "job", "one", "--", "sh", "-c", "echo begun; sleep 0.5; echo ended; exit 6")...)
	p.Stdout, p.Stderr = out, out
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	b.until("the program has begun", func() bool { return out.String() != "" })
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	p.Wait()
	if p.ProcessState.ExitCode() != 130 || !strings.Contains(out.String(), "goes on") {
		t.Errorf("interrupted it ends with %v and says %q", p.ProcessState, out)
	}
	if r := b.sandbox(t, 6, "exec", "--id", "job", "one", "--", "sh", "-c", "echo begun; sleep 0.5; echo ended; exit 6"); r.Stdout != "begun\nended\n" {
		t.Errorf("taken up again: %s", r)
	}
}

// person is somebody at a terminal in which engine sandbox runs.
type person struct {
	t     *testing.T
	keys  *os.File // the terminal's other side
	tty   *os.File
	cmd   *exec.Cmd
	shown safeBuffer
	seen  int
}

func (b *bed) person(t *testing.T, verb string, args ...string) *person {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keys.Close() })
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	p := &person{t: t, keys: keys, tty: tty}
	p.resize(30, 100)
	p.cmd = exec.Command(testenv.Binary(t, "engine"), b.commandLine(verb, args...)...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = tty, tty, tty
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	go io.Copy(&p.shown, keys)
	return p
}

func (p *person) begins() {
	p.t.Helper()
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { p.cmd.Process.Kill() }) // it has ended if all went well
}

func (p *person) resize(rows, columns uint16) {
	p.t.Helper()
	if err := unix.IoctlSetWinsize(int(p.keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *person) settings() unix.Termios {
	p.t.Helper()
	s, err := unix.IoctlGetTermios(int(p.tty.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return *s
}

func (p *person) types(keys string) {
	p.t.Helper()
	if _, err := io.WriteString(p.keys, keys); err != nil {
		p.t.Fatal(err)
	}
}

// sees waits for a text on the terminal, behind what was seen before.
func (p *person) sees(text string) {
	p.t.Helper()
	testenv.WaitFor(p.t, testenv.Patience, fmt.Sprintf("the terminal shows %q", text), func() bool {
		at := strings.Index(p.shown.String()[p.seen:], text)
		if at >= 0 {
			p.seen += at + len(text)
		}
		return at >= 0
	})
}

// leaves wants the program's end, its status, and the terminal as it was.
func (p *person) leaves(status int, before unix.Termios) {
	p.t.Helper()
	p.cmd.Wait()
	if got := p.cmd.ProcessState.ExitCode(); got != status {
		p.t.Errorf("the status is %d, want %d; shown was %q", got, status, p.shown.String())
	}
	if now := p.settings(); now != before {
		p.t.Errorf("the terminal is left with %+v, was %+v", now, before)
	}
}

// TestCommandLineTerminal is a shell at a terminal: its size, its keys, a service that is
// killed meanwhile, and the terminal as it was afterwards.
func TestCommandLineTerminal(t *testing.T) {
	b := newLine(t)
	p := b.person(t, "exec", "-it", "one", "--", "sh")
	before := p.settings()
	p.begins()
	p.types("stty size; echo si''ze\r")
	p.sees("30 100")
	p.sees("size")
	p.resize(40, 120)
	p.types("until [ \"$(stty size)\" = '40 120' ]; do :; done; echo re''sized\r")
	p.sees("resized")
	p.types("echo slee''ping; sleep 1000\r") // no shell reads keys from then on
	p.sees("sleeping")
	p.types("\x03")
	p.types("echo ba''ck\r")
	p.sees("back")
	b.kill()
	p.types("echo mean''while\r")
	b.start()
	p.sees("meanwhile")
	p.types("exit 7\r")
	p.leaves(7, before)

	// A program that ignores what it is told does not hold the command line.
	p = b.person(t, "exec", "-it", "one", "--", "sh", "-c", "trap '' TERM INT; echo rea''dy; while :; do sleep 1; done")
	before = p.settings()
	p.begins()
	p.sees("ready")
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} { // two of one kind might be one to the kernel
		if err := p.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	p.leaves(130, before)
	if r := b.sandbox(t, 125, "exec", "-it", "one", "sh"); !strings.Contains(r.Stderr, "stdin is no terminal") {
		t.Errorf("-t without a terminal: %s", r)
	}
	if r := b.sandbox(t, 0, "exec", "-t", "one", "stty", "size"); r.Stdout != "24 80\r\n" {
		t.Errorf("-t alone: %s", r)
	}
}

// TestCommandLineCopies copies a directory in and out again.
func TestCommandLineCopies(t *testing.T) {
	b := newLine(t)
	src, back := b.path("src"), b.path("back")
	if err := os.MkdirAll(src+"/sub", 0o750); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"file": 0o640, "sub/run": 0o755} {
		if err := os.WriteFile(filepath.Join(src, name), bytes.Repeat([]byte(name), 100_000), mode); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"near": "sub/run", "out": "/etc/passwd"} {
		if err := os.Symlink(to, filepath.Join(src, link)); err != nil {
			t.Fatal(err)
		}
	}
	if r := b.sandbox(t, 0, "cp", src, "one:/workload"); !strings.Contains(r.Stderr, "out is left out") {
		t.Errorf("copied in: %s", r)
	}
	b.sandbox(t, 0, "exec", "one", "--", "sh", "-c", "ln -s /etc /workload/src/sub/away && ln -s ../.. /workload/src/sub/up")
	if r := b.sandbox(t, 0, "cp", "one:/workload/src", back); r.Stdout != "" {
		t.Errorf("copied out: %s", r)
	}
	var names []string
	if err := filepath.WalkDir(back, func(path string, d os.DirEntry, err error) error {
		name, _ := filepath.Rel(back, path)
		names = append(names, name)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{".", "file", "near", "sub", "sub/run"}; !slices.Equal(names, want) {
		t.Errorf("back came %q, want %q", names, want)
	}
	for name, mode := range map[string]os.FileMode{"file": 0o640, "sub/run": 0o755} {
		text, err := os.ReadFile(filepath.Join(back, name))
		info, statErr := os.Stat(filepath.Join(back, name))
		if err != nil || statErr != nil || len(text) != len(name)*100_000 || info.Mode().Perm() != mode {
			t.Errorf("%s came back with %d bytes and %v (%v)", name, len(text), info, err)
		}
	}
	// Into what is there: under its own name, or only what is in it; and single files.
	b.sandbox(t, 0, "cp", "one:/workload/src/.", back)
	b.sandbox(t, 0, "cp", "one:/workload/src", back)
	b.sandbox(t, 0, "cp", src+"/file", "one:/tmp")
	b.sandbox(t, 0, "cp", "one:/tmp/file", back+"/other")
	for _, name := range []string{"src/sub/run", "other"} {
		if _, err := os.Stat(filepath.Join(back, name)); err != nil {
			t.Error(err)
		}
	}
	b.sandbox(t, 125, "cp", "one:/tmp/none", back)
	b.sandbox(t, 125, "cp", src, back)
	hostileService(t, b)
}

// hostileService copies from something that answers as a service and sends an archive of
// its own making.
func hostileService(t *testing.T, b *bed) {
	t.Helper()
	l, err := net.Listen("unix", b.path("hostile.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	canary := b.path("canary")
	if err := os.WriteFile(canary, []byte("alive"), 0o600); err != nil {
		t.Fatal(err)
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/stat") {
			io.WriteString(w, `{"type":"directory","name":"x","mode":493}`)
			return
		}
		out := tar.NewWriter(w)
		out.WriteHeader(&tar.Header{Name: "good", Typeflag: tar.TypeReg, Mode: 0o6755})
		out.WriteHeader(&tar.Header{Name: "way", Typeflag: tar.TypeSymlink, Linkname: "sub/../.."})
		out.WriteHeader(&tar.Header{Name: r.URL.Query().Get("path")[1:] + "/../canary", Typeflag: tar.TypeReg, Size: 4, Mode: 0o644})
		io.WriteString(out, "evil")
		out.Close()
	}))
	for _, path := range []string{"x/..", "x/../..", "way"} {
		r := testenv.Exec(t, "sandbox", "cp", "--socket", b.path("hostile.sock"), "one:/"+path+"/.", b.path("taken"))
		text, err := os.ReadFile(canary)
		if err != nil || string(text) != "alive" {
			t.Errorf("%s: a file outside holds %q (%v): %s", path, text, err, r)
		}
	}
	if info, err := os.Stat(b.path("taken/good")); err != nil || info.Mode() != 0o755 {
		t.Errorf("the good file is %v, %v", info, err)
	}
	if _, err := os.Lstat(b.path("taken/way")); err == nil {
		t.Error("a link leads out")
	}
}
