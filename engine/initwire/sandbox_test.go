package initwire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The tests of this package run the real engine-init, built from cmd/engine-init,
// as process 1 of new user, pid, mount, network and IPC namespaces. The test binary
// starts itself again to prepare them (sandboxMain), and is available inside as a
// job of its own (probeMain).

const (
	bound     = 20 * time.Second // for anything that must not hang
	jobUID    = 65532
	firstUID  = 1879048192 // on the host, of the sandbox's block
	blockSize = 65536
	busybox   = "/bin/busybox"

	sandboxVariable = "INITWIRE_SANDBOX" // path of engine-init
	probeVariable   = "INITWIRE_PROBE"   // name of a probe
)

func TestMain(m *testing.M) {
	if path := os.Getenv(sandboxVariable); path != "" {
		sandboxMain(path)
	}
	if name := os.Getenv(probeVariable); name != "" {
		probeMain(name)
	}
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// sandboxMain is root in the new namespaces. It does what a runtime would, then
// becomes engine-init.
func sandboxMain(initPath string) {
	must := func(what string, err error) {
		if err != nil {
			fmt.Fprintf(os.Stderr, "cannot %s: %v\n", what, err)
			os.Exit(1)
		}
	}
	must("make mounts private", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must("mount /proc", unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""))
	must("mount /run", unix.Mount("run", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"))
	must("create /run/secrets", os.Mkdir("/run/secrets", 0o700))
	must("give away /run/secrets", os.Chown("/run/secrets", jobUID, jobUID))
	// A careless parent: an ignored signal is inherited across execve.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	must("drop groups", syscall.Setgroups(nil))
	must("drop group", syscall.Setgid(jobUID))
	must("drop user", syscall.Setuid(jobUID))
	must("start engine-init", syscall.Exec(initPath, []string{"engine-init"}, nil))
}

var built struct {
	once sync.Once
	dir  string
	err  error
}

// buildInit returns the path of engine-init.
func buildInit(t testing.TB) string {
	t.Helper()
	if _, err := exec.LookPath("musl-gcc"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("cannot build engine-init: musl-gcc is missing")
		}
		t.Skip("musl-gcc is missing: install musl-tools")
	}
	if os.Getuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("cannot start engine-init in namespaces: not root")
		}
		t.Skip("not root: a block of user ids has to be mapped")
	}
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "engine-init"); built.err != nil {
			return
		}
		if built.err = os.Chmod(built.dir, 0o755); built.err != nil {
			return
		}
		if built.err = copyFile(probePath(), "/proc/self/exe"); built.err != nil {
			return
		}
		out, err := exec.Command("make", "-s", "-C", "../../cmd/engine-init", "OUT="+built.dir+"/engine-init").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatalf("cannot build engine-init: %v", built.err)
	}
	return filepath.Join(built.dir, "engine-init")
}

// probePath is where jobs find a copy of the test binary, once buildInit has run.
func probePath() string { return built.dir + "/probe" }

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

// sandbox is one running engine-init, seen by its monitor.
type sandbox struct {
	t    *testing.T
	conn *net.UnixConn
	cmd  *exec.Cmd
}

// newSandbox starts engine-init and waits until it is ready. Extra descriptors leak
// into it from 4 on.
func newSandbox(t *testing.T, leak ...*os.File) *sandbox {
	t.Helper()
	conn, guest, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{sandboxVariable + "=" + buildInit(t)}
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = append([]*os.File{guest}, leak...)
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: firstUID, Size: blockSize}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS |
			syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{},
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	guest.Close()
	s := &sandbox{t, conn, cmd}
	t.Cleanup(func() {
		conn.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	conn.SetReadDeadline(time.Now().Add(bound))
	s.expect(Ready)
	return s
}

// expect reads one frame, of the given type.
func (s *sandbox) expect(want FrameType) Frame {
	s.t.Helper()
	f, err := ReadFrame(s.conn)
	if err != nil || f.Type != want {
		s.t.Fatalf("frame = %+v, %v, want %v", f, err, want)
	}
	return f
}

// status waits for the end of engine-init and returns its exit status, which must
// not be a signal.
func (s *sandbox) status() int {
	s.t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(bound):
		s.t.Fatal("engine-init does not end")
	}
	if ws := s.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		s.t.Fatalf("engine-init died of %v", ws.Signal())
	}
	return s.cmd.ProcessState.ExitCode()
}

// stdio is a job's three streams, collected.
type stdio struct {
	t        *testing.T
	job      [3]*os.File
	in       *os.File
	out, err bytes.Buffer
	readers  sync.WaitGroup
}

func newStdio(t *testing.T) *stdio {
	t.Helper()
	s := &stdio{t: t}
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		return r, w
	}
	var out, err *os.File
	s.job[0], s.in = pipe()
	out, s.job[1] = pipe()
	err, s.job[2] = pipe()
	s.readers.Go(func() { io.Copy(&s.out, out) })
	s.readers.Go(func() { io.Copy(&s.err, err) })
	return s
}

// send hands the job to engine-init, beside the test, as Send's comment asks.
func (s *sandbox) send(job Job, streams *stdio) {
	go func() {
		if err := Send(s.conn, job, streams.job[0], streams.job[1], streams.job[2]); err != nil && !errors.Is(err, syscall.EPIPE) {
			s.t.Errorf("cannot send: %v", err)
		}
		for _, f := range streams.job {
			f.Close()
		}
	}()
}

// drained waits until nobody holds the job's stdout and stderr any more: every
// process of the sandbox is gone.
func (s *stdio) drained() {
	s.t.Helper()
	done := make(chan struct{})
	go func() { s.readers.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(bound):
		s.t.Fatal("a process still holds the job's stdout or stderr")
	}
}

// outcome is a whole conversation.
type outcome struct {
	last        Frame
	started     bool
	stdout, err string
	status      int // of engine-init
}

// run starts job in a new sandbox and waits for everything.
func run(t *testing.T, job Job) outcome {
	t.Helper()
	return newSandbox(t).run(job, "")
}

func (s *sandbox) run(job Job, stdin string) outcome {
	s.t.Helper()
	streams := newStdio(s.t)
	if job.Cwd == "" {
		job.Cwd = "/"
	}
	s.send(job, streams)
	go func() { streams.in.WriteString(stdin); streams.in.Close() }()
	var o outcome
	for {
		f, err := ReadFrame(s.conn)
		if err != nil {
			if err != io.EOF {
				s.t.Fatalf("after %+v: %v", o.last, err)
			}
			break
		}
		o.started = o.started || f.Type == Started
		o.last = f
	}
	o.status = s.status()
	streams.drained()
	o.stdout, o.err = streams.out.String(), streams.err.String()
	return o
}

// shell is a job that runs a script.
func shell(script string) Job {
	return Job{Args: []string{busybox, "sh", "-c", script}, Env: []string{"PATH=/run/none"}, Cwd: "/"}
}

// allowAll is a filter of one instruction.
var allowAll = []byte{6, 0, 0, 0, 0, 0, 0xff, 0x7f} // return SECCOMP_RET_ALLOW
