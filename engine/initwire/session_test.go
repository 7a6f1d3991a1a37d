package initwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// newSession starts engine-init with a session that it serves.
func newSession(t *testing.T, s Session) *sandbox {
	t.Helper()
	sb := newSandbox(t)
	if err := SendSession(sb.conn, s); err != nil {
		t.Fatal(err)
	}
	sb.expect(Serving)
	return sb
}

// exec starts a program, and gives its streams away.
func (s *sandbox) exec(e Exec) *stdio {
	s.t.Helper()
	streams := newStdio(s.t)
	for _, f := range streams.job {
		f.Fd() // makes it blocking, as programs expect
	}
	if e.Cwd == "" {
		e.Cwd = "/"
	}
	if err := SendExec(s.conn, e, streams.job[0], streams.job[1], streams.job[2]); err != nil {
		s.t.Fatal(err)
	}
	for _, f := range streams.job {
		f.Close()
	}
	return streams
}

// shellExec is an exec of a shell's.
func shellExec(id uint32, text string) Exec {
	return Exec{ID: id, Args: []string{busybox, "sh", "-c", text}, Env: []string{"PATH=/run/none"}}
}

// expectOf reads one frame of the exec.
func (s *sandbox) expectOf(id uint32, want FrameType) Frame {
	s.t.Helper()
	f := s.expect(want)
	if f.Exec != id {
		s.t.Fatalf("frame = %+v, want one of exec %d", f, id)
	}
	return f
}

// ends runs an exec alone to its end, and returns its last frame and output.
func (s *sandbox) ends(e Exec) (Frame, string) {
	s.t.Helper()
	streams := s.exec(e)
	streams.in.Close()
	s.expectOf(e.ID, Started)
	f := s.expectOf(e.ID, Exited)
	streams.drained()
	return f, streams.out.String() + streams.err.String()
}

func TestSessionRunsExecs(t *testing.T) {
	s := newSession(t, Session{
		Env:    []string{"A=session", "B=session", "C=1"},
		Filter: allowAll, CPUMask: []byte{1},
		Files: []File{{Path: "/run/secrets/a", Data: []byte("hunter2\n"), Mode: 0o400}},
	})
	e := Exec{ID: 7, Args: []string{busybox, "env"}, Env: []string{"B=exec", "D=2"}}
	if f, out := s.ends(e); f.Code != 0 || out != "B=exec\nD=2\nA=session\nC=1\n" {
		t.Errorf("frame = %+v, output = %q", f, out)
	}
	if f, out := s.ends(shellExec(8, "cat /run/secrets/a; exit 3")); f.Code != 3 || out != "hunter2\n" {
		t.Errorf("frame = %+v, output = %q", f, out)
	}
	if f, _ := s.ends(shellExec(9, "kill -SEGV $$")); f.Code != -1 || f.Signal != syscall.SIGSEGV {
		t.Errorf("frame = %+v, want SIGSEGV", f)
	}
	f, _ := s.ends(shellExec(10, "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"))
	if f.CPU < 10*time.Millisecond {
		t.Errorf("CPU time = %v of a busy loop", f.CPU)
	}
	if f, _ := s.ends(shellExec(11, "exit 0")); f.CPU > 100*time.Millisecond {
		t.Errorf("CPU time = %v, want that of the exec alone", f.CPU)
	}
	_, status := s.ends(Exec{ID: 12, Args: []string{busybox, "cat", "/proc/self/status"}})
	for _, want := range []string{"Seccomp:\t2", "NoNewPrivs:\t1", "Cpus_allowed_list:\t0", "PPid:\t1", "SigIgn:\t0000000000000000"} {
		if !strings.Contains(status, want+"\n") {
			t.Errorf("%q is not in the program's status:\n%s", want, status)
		}
	}
}

func TestExecInheritsNothing(t *testing.T) {
	root, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	s := newSandbox(t, root, root)
	if err := SendSession(s.conn, Session{}); err != nil {
		t.Fatal(err)
	}
	s.expect(Serving)
	other := s.exec(shellExec(1, "sleep 60"))
	s.expectOf(1, Started)
	e := shellExec(2, `i=0; while [ $i -lt 300 ]; do test -e /proc/self/fd/$i && echo $i; i=$((i+1)); done`)
	if _, out := s.ends(e); out != "0\n1\n2\n" {
		t.Errorf("descriptors = %q, want 0, 1, 2", out)
	}
	for i, cwd := range []string{"/proc/self/fd/3", "/proc/self/fd/4", "/proc/self/fd/5", "/proc/1/fd/4"} {
		e := shellExec(uint32(10+i), "pwd")
		e.Cwd = cwd
		s.exec(e)
		if f := s.expectOf(e.ID, Failed); f.Stage != StageCwd {
			t.Errorf("directory %s: frame = %+v, want an error", cwd, f)
		}
	}
	other.in.Close()
}

// upTo reads frames up to one of the exec, past those of others.
func (s *sandbox) upTo(id uint32, want FrameType) Frame {
	s.t.Helper()
	for {
		f, err := ReadFrame(s.conn)
		if err != nil || f.Exec == id && f.Type != want {
			s.t.Fatalf("frame = %+v, %v, want %v of exec %d", f, err, want, id)
		}
		if f.Exec == id {
			return f
		}
	}
}

// TestExecThatCannotStart wants the error of each, and the session to go on.
func TestExecThatCannotStart(t *testing.T) {
	s := newSession(t, Session{Env: []string{"PATH=/bin"}})
	tests := []struct {
		name  string
		exec  Exec
		stage Stage
		errno syscall.Errno
	}{
		{"missing program", Exec{Args: []string{"nothing"}}, StageExec, syscall.ENOENT},
		{"no program", Exec{Args: []string{""}}, StageExec, syscall.ENOENT},
		{"directory", Exec{Args: []string{"/bin"}}, StageExec, syscall.EACCES},
		{"too long", Exec{Args: []string{busybox, strings.Repeat("x", 1<<20)}}, StageExec, syscall.E2BIG},
		{"missing directory", Exec{Args: []string{busybox}, Cwd: "/nowhere"}, StageCwd, syscall.ENOENT},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.exec.ID = uint32(i + 1)
			s.exec(tt.exec).drained()
			if f := s.expectOf(tt.exec.ID, Failed); f.Stage != tt.stage || f.Errno != tt.errno {
				t.Errorf("frame = %+v, want %v at %v", f, tt.errno, tt.stage)
			}
			if f, out := s.ends(shellExec(100, "echo on")); f.Code != 0 || out != "on\n" {
				t.Errorf("afterwards: frame = %+v, output %q", f, out)
			}
		})
	}
}

// TestManyExecs starts as many as there may be, and one more.
func TestManyExecs(t *testing.T) {
	s := newSession(t, Session{})
	streams := make([]*stdio, MaxExecs)
	for i := range streams {
		streams[i] = s.exec(Exec{ID: uint32(i + 1), Args: []string{busybox, "cat"}})
		s.expectOf(uint32(i+1), Started)
	}
	s.exec(Exec{ID: MaxExecs + 1, Args: []string{busybox, "cat"}})
	if f := s.expectOf(MaxExecs+1, Failed); f.Errno != syscall.EAGAIN || f.Stage != StageFork {
		t.Errorf("frame = %+v, want EAGAIN at fork", f)
	}
	for _, st := range streams {
		st.in.Close()
	}
	seen := map[uint32]bool{}
	for range streams {
		f := s.expect(Exited)
		if f.Code != 0 || seen[f.Exec] || f.Exec == 0 || f.Exec > MaxExecs {
			t.Fatalf("frame = %+v, seen before: %v", f, seen[f.Exec])
		}
		seen[f.Exec] = true
	}
	if f, _ := s.ends(shellExec(MaxExecs+2, "exit 4")); f.Code != 4 {
		t.Errorf("afterwards: frame = %+v", f)
	}
}

func TestSignalsReachOneExec(t *testing.T) {
	s := newSession(t, Session{})
	for id := uint32(1); id <= 2; id++ {
		s.exec(shellExec(id, fmt.Sprintf(`trap 'exit %d' TERM; while :; do :; done`, id)))
		s.expectOf(id, Started)
	}
	if err := SignalExec(s.conn, 3, syscall.SIGTERM); err != nil { // of none
		t.Fatal(err)
	}
	// One that is sent right behind its exec waits for the program.
	for id := uint32(10); id < 30; id++ {
		s.exec(Exec{ID: id, Args: []string{busybox, "sleep", "60"}})
		if err := SignalExec(s.conn, id, syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		s.expectOf(id, Started)
		if f := s.expectOf(id, Exited); f.Signal != syscall.SIGUSR1 {
			t.Fatalf("frame = %+v, want SIGUSR1", f)
		}
	}
	for _, id := range []uint32{2, 1} {
		// A shell that has not come to its trap yet would die of it.
		for f := (Frame{}); f.Type != Exited; {
			if err := SignalExec(s.conn, id, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			f = s.expect(Exited)
			if f.Exec != id || f.Code != int(id) && f.Signal != syscall.SIGTERM {
				t.Fatalf("frame = %+v, want the end of exec %d", f, id)
			}
		}
	}
}

func TestExecDeadlines(t *testing.T) {
	s := newSession(t, Session{})
	e := shellExec(1, "trap '' TERM INT; sleep 60 & sleep 60")
	e.Deadline = 300 * time.Millisecond
	start := time.Now()
	s.exec(e)
	s.expectOf(1, Started)
	s.exec(shellExec(2, "sleep 60")) // goes on
	s.expectOf(2, Started)
	f := s.expectOf(1, Exited)
	if took := time.Since(start); f.Signal != syscall.SIGKILL || took < e.Deadline || took > 5*time.Second {
		t.Errorf("frame = %+v after %v, want SIGKILL after %v", f, took, e.Deadline)
	}
	for _, d := range []time.Duration{time.Hour, 300 * time.Millisecond} {
		if err := SetDeadline(s.conn, d); err != nil {
			t.Fatal(err)
		}
	}
	s.expect(Deadline)
	if got := s.status(); got != 124 {
		t.Errorf("status = %d, want 124", got)
	}
}

// TestSessionEndsWithTheMonitor also cuts the socket within a message.
func TestSessionEndsWithTheMonitor(t *testing.T) {
	whole, err := Job{Args: []string{"true"}, Cwd: "/"}.encode(kindExec, 5)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, headerSize, len(whole) - 1} {
		s := newSession(t, Session{})
		streams := s.exec(shellExec(1, `trap '' TERM HUP; (/bin/busybox setsid /bin/busybox sleep 60 &); sleep 60`))
		s.expectOf(1, Started)
		if n > 0 {
			if _, err := sendRights(s.conn, whole[:n], os.Stdin, os.Stdin, os.Stdin); err != nil {
				t.Fatal(err)
			}
		}
		s.conn.Close()
		if got := s.status(); got != 125 {
			t.Errorf("after %d bytes: status = %d, want 125", n, got)
		}
		streams.drained()
	}
}

// TestSlowMessagesHoldUpNothing leaves a message unfinished while an exec ends and the
// session's deadline passes.
func TestSlowMessagesHoldUpNothing(t *testing.T) {
	s := newSession(t, Session{Deadline: 1500 * time.Millisecond})
	s.exec(shellExec(1, "sleep 0.3"))
	s.expectOf(1, Started)
	whole, err := Job{Args: []string{"true"}, Cwd: "/"}.encode(kindExec, 5)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sendRights(s.conn, whole[:headerSize+1], os.Stdin, os.Stdin, os.Stdin); err != nil {
		t.Fatal(err)
	}
	s.expectOf(1, Exited)
	s.expect(Deadline)
}

// TestStoppedStartsHoldUpNothing has a program stop every other process of the session,
// those included that are about to become programs, starts another one beside those, and
// then takes the monitor away.
func TestStoppedStartsHoldUpNothing(t *testing.T) {
	buildInit(t)
	s := newSession(t, Session{})
	s.exec(Exec{ID: 1, Args: []string{probePath()}, Env: []string{probeVariable + "=stop others"}})
	s.expectOf(1, Started)
	// A long search for the program leaves time to be stopped in.
	path := "PATH=" + strings.Repeat("/nowhere:", 10000) + "/bin"
	var streams []*stdio
	stuck := false
	for id := uint32(2); !stuck && id < 200; id++ {
		streams = append(streams, s.exec(Exec{ID: id, Args: []string{"busybox", "true"}, Env: []string{path}}))
		s.conn.SetReadDeadline(time.Now().Add(time.Second))
		_, err := ReadFrame(s.conn)
		stuck = errors.Is(err, os.ErrDeadlineExceeded)
		if err != nil && !stuck {
			t.Fatal(err)
		}
	}
	if !stuck {
		t.Error("no start was stopped: this test proves nothing")
	}
	// Whoever stopped it is gone, and it still is stopped: others start beside it.
	s.conn.SetReadDeadline(time.Now().Add(bound / 4))
	if err := SignalExec(s.conn, 1, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.upTo(1, Exited)
	beside := s.exec(shellExec(1000, "echo beside"))
	s.upTo(1000, Started)
	if f := s.upTo(1000, Exited); f.Code != 0 {
		t.Errorf("beside a stopped start: frame = %+v", f)
	}
	streams = append(streams, beside)
	if !testing.Short() {
		s.conn.SetReadDeadline(time.Now().Add(2 * bound))
		f, err := ReadFrame(s.conn)
		for err == nil && f.Type == Exited {
			f, err = ReadFrame(s.conn)
		}
		if err != nil || f.Type != Failed || f.Errno != syscall.ETIMEDOUT {
			t.Errorf("frame = %+v, %v, want a start that took too long", f, err)
		}
	}
	s.conn.Close()
	if got := s.status(); got != 125 {
		t.Errorf("status = %d, want 125", got)
	}
	for _, st := range streams {
		st.drained()
	}
}

func TestMalformedMessagesEndTheSession(t *testing.T) {
	exec, err := Job{Args: []string{"true"}, Cwd: "/"}.encode(kindExec, 1)
	if err != nil {
		t.Fatal(err)
	}
	job, err := Job{Args: []string{"true"}, Cwd: "/"}.encode(kindJob, 0)
	if err != nil {
		t.Fatal(err)
	}
	session, err := Job{Cwd: "/"}.encode(kindSession, 0)
	if err != nil {
		t.Fatal(err)
	}
	change := func(message []byte, at int, to byte) []byte {
		b := append([]byte(nil), message...)
		b[at] = to
		return b
	}
	tests := []struct {
		name    string
		message []byte
		rights  int
	}{
		{"a job", job, 3},
		{"a second session", session, 0},
		{"exec without descriptors", exec, 0},
		{"exec with two", exec, 2},
		{"exec without id", change(exec, 44, 0), 3},
		{"exec with a filter", change(exec, 20, 1), 3},
		{"exec of another version", change(exec, 4, 2), 3},
		{"parts do not fill it", change(exec, 12, 2), 3},
		{"signal 0", Job{}.header(kindSignal, 1, 0, 0), 0},
		{"signal 65", Job{}.header(kindSignal, 1, 65, 0), 0},
		{"signal with descriptors", Job{}.header(kindSignal, 1, 15, 0), 3},
		{"signal to none", Job{}.header(kindSignal, 0, 15, 0), 0},
		{"deadline with an id", Job{}.header(kindDeadline, 1, 0, 0), 0},
		{"unknown", Job{}.header(5, 0, 0, 0), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSession(t, Session{})
			streams := s.exec(shellExec(9, "sleep 60"))
			s.expectOf(9, Started)
			files := make([]*os.File, tt.rights)
			for i := range files {
				files[i] = os.Stdin
			}
			if _, err := sendRights(s.conn, tt.message, files...); err != nil {
				t.Fatal(err)
			}
			if f := s.expectOf(0, Failed); f.Stage != StageProtocol || s.status() != 125 {
				t.Errorf("frame = %+v, want an error of the protocol and status 125", f)
			}
			streams.drained()
		})
	}
}

// TestIDInUseEndsTheSession: two execs of one id could not be told apart.
func TestIDInUseEndsTheSession(t *testing.T) {
	s := newSession(t, Session{})
	s.exec(shellExec(1, "sleep 60"))
	s.expectOf(1, Started)
	s.exec(shellExec(1, "sleep 60"))
	if f := s.expectOf(0, Failed); f.Stage != StageProtocol || f.Errno != syscall.EEXIST {
		t.Errorf("frame = %+v, want EEXIST", f)
	}
}

// TestMutatedSessionMessages damages messages to a session. engine-init ends by itself
// or goes on, and never dies of a signal.
func TestMutatedSessionMessages(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	whole, err := Job{Args: []string{busybox, "true"}, Env: []string{"A=1"}, Cwd: "/", Deadline: time.Second}.encode(kindExec, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rounds {
		s := newSession(t, Session{Env: []string{"A=2", "B"}})
		message := mutate(random, whole)
		if len(message) == 0 {
			continue
		}
		if _, err := sendRights(s.conn, message[:min(len(message), headerSize)], os.Stdin, os.Stdin, os.Stdin); err != nil {
			t.Fatal(err)
		}
		if len(message) > headerSize {
			s.conn.Write(message[headerSize:]) // it may be gone already: its status tells
		}
		s.conn.CloseWrite()
		for {
			f, err := ReadFrame(s.conn)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("seed %d, round %d: after %+v: %v\nmessage %q", seed, i, f, err, message)
			}
		}
		if got := s.status(); got != 125 {
			t.Fatalf("seed %d, round %d: status = %d, want 125\nmessage %q", seed, i, got, message)
		}
		s.conn.Close()
	}
}

// TestSessionDoesNotGrow runs many short execs and looks at what engine-init holds.
func TestSessionDoesNotGrow(t *testing.T) {
	rounds := 10000
	if testing.Short() {
		rounds = 500
	}
	s := newSession(t, Session{Env: []string{"A=1"}})
	held := func() string {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "VmSize:")
		size, _, _ := strings.Cut(rest, "\n")
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s, %d descriptors", strings.TrimSpace(size), len(fds))
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	s.conn.SetReadDeadline(time.Now().Add(10 * bound))
	var first string
	for i := range rounds {
		e := Exec{ID: uint32(i + 1), Args: []string{busybox, "true"}, Cwd: "/"}
		if err := SendExec(s.conn, e, null, null, null); err != nil {
			t.Fatal(err)
		}
		s.expectOf(e.ID, Started)
		s.expectOf(e.ID, Exited)
		if i == 100 {
			first = held()
		}
	}
	if last := held(); last != first {
		t.Errorf("after %d execs engine-init has %s, and had %s", rounds, last, first)
	}
}

func TestExecMessagesAreChecked(t *testing.T) {
	long := make([]string, MaxExecEnv+1)
	for name, e := range map[string]Exec{
		"no id":         {Args: []string{"a"}, Cwd: "/"},
		"no arguments":  {ID: 1, Cwd: "/"},
		"relative":      {ID: 1, Args: []string{"a"}, Cwd: "x"},
		"environment":   {ID: 1, Args: []string{"a"}, Cwd: "/", Env: long},
		"NUL":           {ID: 1, Args: []string{"a\x00"}, Cwd: "/"},
		"long deadline": {ID: 1, Args: []string{"a"}, Cwd: "/", Deadline: MaxDeadline + 1},
	} {
		if err := SendExec(nil, e, nil, nil, nil); err == nil {
			t.Errorf("%s: sent", name)
		}
	}
	if SignalExec(nil, 0, 9) == nil || SignalExec(nil, 1, 0) == nil || SignalExec(nil, 1, 65) == nil || SetDeadline(nil, -1) == nil {
		t.Error("a message that engine-init refuses was sent")
	}
	b := Job{Deadline: 1}.header(kindDeadline, 0, 0, 0)
	if got := binary.LittleEndian.Uint64(b[32:]); got != 1 {
		t.Errorf("deadline of 1ns = %d ms, want 1: zero would mean none", got)
	}
}
