package initwire

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestExit(t *testing.T) {
	tests := []struct {
		name   string
		script string
		code   int
		signal syscall.Signal
		status int
	}{
		{"success", "exit 0", 0, 0, 0},
		{"failure", "exit 37", 37, 0, 37},
		{"a status of our own is the job's here", "exit 125", 125, 0, 125},
		{"signal", "kill -SEGV $$", -1, syscall.SIGSEGV, 128 + 11},
		{"kill", "kill -KILL $$", -1, syscall.SIGKILL, 128 + 9},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := run(t, shell(tt.script))
			if !o.started || o.last.Type != Exited || o.last.Code != tt.code || o.last.Signal != tt.signal || o.status != tt.status {
				t.Errorf("outcome = %+v, want code %d, signal %d, status %d", o, tt.code, tt.signal, tt.status)
			}
		})
	}
}

func TestStdio(t *testing.T) {
	o := newSandbox(t).run(shell("cat; echo problem >&2"), "from outside")
	if o.stdout != "from outside" || o.err != "problem\n" {
		t.Errorf("stdout = %q, stderr = %q", o.stdout, o.err)
	}
}

func TestEnvironmentIsExact(t *testing.T) {
	env := []string{"A=1", "EMPTY=", "NOEQUALS", "A=2", "LINES=a\nb", "UTF=\xff"}
	for _, n := range []int{0, 16} { // 1 MiB on top
		for i := range n {
			env = append(env, fmt.Sprintf("BIG%d=%s", i, strings.Repeat("x", 64<<10)))
		}
		job := probeJob(t, "environment")
		job.Env = append(job.Env, env...)
		o := run(t, job)
		if want := strings.Join(job.Env, "\x00") + "\x00"; o.stdout != want {
			t.Errorf("environment = %.200q, want %.200q (%d and %d bytes)", o.stdout, want, len(o.stdout), len(want))
		}
	}
}

func TestCPUTimeIsReported(t *testing.T) {
	o := run(t, shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"))
	if o.last.CPU < time.Millisecond || o.last.CPU > bound {
		t.Errorf("CPU time = %v, want that of a loop", o.last.CPU)
	}
}

// script writes an executable for TestProgramLookup and returns its directory.
func script(t *testing.T, name, content string, mode os.FileMode) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(dir+"/"+name, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestProgramLookup(t *testing.T) {
	good := script(t, "tool", "#!/bin/busybox sh\necho good\n", 0o755)
	denied := script(t, "tool", "#!/bin/busybox sh\n", 0o644)
	text := script(t, "tool", "echo no interpreter is named\n", 0o755)
	empty := t.TempDir()
	tests := []struct {
		name string
		arg  string
		env  []string
		cwd  string
		want syscall.Errno // 0: it runs
	}{
		{"path", good + "/tool", nil, "/", 0},
		{"relative path", "./tool", nil, good, 0},
		{"on PATH", "tool", []string{"PATH=" + empty + ":" + good}, "/", 0},
		{"after one that may not be run", "tool", []string{"PATH=" + denied + ":" + good}, "/", 0},
		{"after a file in place of a directory", "tool", []string{"PATH=/etc/passwd:" + good}, "/", 0},
		{"first PATH counts", "tool", []string{"PATH=" + good, "PATH=" + empty}, "/", 0},
		{"empty element is the directory", "tool", []string{"PATH=/nowhere:"}, good, 0},
		{"overlong element is skipped", "tool", []string{"PATH=" + strings.Repeat("/x", 4000) + ":" + good}, "/", 0},
		{"no PATH", "busybox", nil, "/", 0},

		{"missing", "tool", []string{"PATH=" + empty}, "/", syscall.ENOENT},
		{"missing path", "/nowhere/tool", nil, "/", syscall.ENOENT},
		{"below a file", "/etc/passwd/tool", nil, "/", syscall.ENOTDIR},
		{"no name", "", []string{"PATH=" + good}, "/", syscall.ENOENT},
		{"not in the directory without PATH", "tool", nil, good, syscall.ENOENT},
		{"may not be run", "tool", []string{"PATH=" + denied + ":" + empty}, "/", syscall.EACCES},
		{"directory", "/bin", nil, "/", syscall.EACCES},
		{"text without interpreter", "tool", []string{"PATH=" + text + ":" + good}, "/", syscall.ENOEXEC},
		{"arguments too long", good + "/tool", []string{strings.Repeat("x", 1<<20)}, "/", syscall.E2BIG},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := run(t, Job{Args: []string{tt.arg}, Env: tt.env, Cwd: tt.cwd})
			if tt.want == 0 {
				if o.last.Type != Exited || o.last.Code != 0 {
					t.Errorf("outcome = %+v, want success", o)
				}
				return
			}
			status := 126
			if tt.want == syscall.ENOENT || tt.want == syscall.ENOTDIR {
				status = 127
			}
			if o.started || o.last.Type != Failed || o.last.Stage != StageExec || o.last.Errno != tt.want || o.status != status {
				t.Errorf("outcome = %+v, want %v at exec and status %d", o, tt.want, status)
			}
		})
	}
}

func TestCannotStart(t *testing.T) {
	job := func(change func(*Job)) Job {
		j := shell("echo started")
		change(&j)
		return j
	}
	tests := []struct {
		name  string
		job   Job
		stage Stage
		errno syscall.Errno
	}{
		{"missing directory", job(func(j *Job) { j.Cwd = "/nowhere" }), StageCwd, syscall.ENOENT},
		{"file for a directory", job(func(j *Job) { j.Cwd = "/etc/passwd" }), StageCwd, syscall.ENOTDIR},
		{"unreachable directory", job(func(j *Job) { j.Cwd = "/root" }), StageCwd, syscall.EACCES},
		{"filter the kernel refuses", job(func(j *Job) { j.Filter = make([]byte, 8) }), StageFilter, syscall.EINVAL},
		{"no CPU in the mask", job(func(j *Job) { j.CPUMask = make([]byte, 8) }), StageAffinity, syscall.EINVAL},
		{"secret outside tmpfs", job(func(j *Job) { j.Files = []File{{Path: "/etc/token", Data: nil}} }), StageFiles, syscall.EXDEV},
		{"secret in a missing directory", job(func(j *Job) { j.Files = []File{{Path: "/run/nowhere/token", Data: nil}} }), StageFiles, syscall.ENOENT},
		{"secret through a link", job(func(j *Job) { j.Files = []File{{Path: "/proc/self/cwd/token", Data: nil}} }), StageFiles, syscall.ENOTDIR},
		{"secret over a file", job(func(j *Job) {
			j.Files = []File{{Path: "/run/secrets/a", Data: nil}, {Path: "/run/secrets/a", Data: nil}}
		}), StageFiles, syscall.EEXIST},
		{"file where a directory is missing", job(func(j *Job) { j.Files = []File{{Path: "/run/secrets/a/b", Mode: 0o644}} }), StageFiles, syscall.ENOENT},
		{"directory outside tmpfs", job(func(j *Job) { j.Files = []File{{Path: "/nowhere/a", Mode: 0o644, Parents: true}} }), StageFiles, syscall.EXDEV},
		{"directory of somebody else", job(func(j *Job) { j.Files = []File{{Path: "/run/mine/a", Mode: 0o644, Parents: true}} }), StageFiles, syscall.EACCES},
		{"directory in place of a file", job(func(j *Job) {
			j.Files = []File{{Path: "/run/secrets/a", Mode: 0o644, Parents: true}, {Path: "/run/secrets/a/b", Mode: 0o644, Parents: true}}
		}), StageFiles, syscall.ENOTDIR},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := run(t, tt.job)
			if o.started || o.stdout != "" || o.last.Type != Failed || o.last.Stage != tt.stage || o.last.Errno != tt.errno || o.status != 125 {
				t.Errorf("outcome = %+v, want %v at %v and status 125", o, tt.errno, tt.stage)
			}
		})
	}
}

// TestBadFilesAreRefused sends what encode would not: engine-init checks again, before
// it writes anything.
func TestBadFilesAreRefused(t *testing.T) {
	const good = "/run/secrets/aaaa/bbbb"
	for name, path := range map[string]string{
		"dot-dot": "/run/secrets/../bbbbbb", "dot": "/run/secrets/./bbbbbbb", "ends in dot-dot": "/run/secrets/aaaabb/..",
		"empty name": "/run/secrets//aaaabbbb", "no name": "/run/secrets/aaaabbbb/", "relative": "run/secrets/aaaa/bbbbb",
		"one name": "/run_secrets_aaaa_bbbb", "cut short": "/run/secrets/aaaa\x00bbbb",
	} {
		t.Run(name, func(t *testing.T) {
			job := shell("echo started")
			job.Files = []File{{Path: good, Mode: 0o644, Parents: true}}
			message, err := job.encode(kindJob, 0)
			if err != nil || len(path) != len(good) {
				t.Fatal(err, path)
			}
			s, streams := newSandbox(t), newStdio(t)
			message = bytes.Replace(message, []byte(good), []byte(path), 1)
			if n, err := sendRights(s.conn, message, streams.job[0], streams.job[1], streams.job[2]); err != nil || n != len(message) {
				t.Fatalf("sent %d bytes: %v", n, err)
			}
			if f := s.expect(Failed); f.Stage != StageProtocol || f.Errno != syscall.EPROTO {
				t.Errorf("frame = %+v, want EPROTO at protocol", f)
			}
		})
	}
}

func TestDeadline(t *testing.T) {
	for name, script := range map[string]string{
		"job sleeps":           "trap '' TERM; sleep 60",
		"job forks for ever":   "while :; do (: &); done",
		"job's children storm": "for i in 1 2 3 4; do while :; do (:) & wait; done & done; wait",
	} {
		t.Run(name, func(t *testing.T) {
			job := shell(script)
			job.Deadline = 300 * time.Millisecond
			start := time.Now()
			o := run(t, job)
			if took := time.Since(start); took < job.Deadline || took > 5*time.Second {
				t.Errorf("ended after %v, want %v", took, job.Deadline)
			}
			if o.last.Type != Deadline || o.status != 124 {
				t.Errorf("outcome = %+v, want DEADLINE and status 124", o)
			}
		})
	}
}

// begin starts a job and returns once it has written to its descriptor 0.
func begin(t *testing.T, job Job) (*sandbox, *stdio) {
	t.Helper()
	s, streams := newSandbox(t), newStdio(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	streams.job[0].Close()
	streams.job[0] = w
	s.send(job, streams)
	s.expect(Started)
	r.SetReadDeadline(time.Now().Add(bound))
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatalf("job is not ready: %v", err)
	}
	return s, streams
}

// TestMonitorDies checks that the end of the control socket ends everything, also
// what has left the job's session and ignores every signal it can.
func TestMonitorDies(t *testing.T) {
	s, streams := begin(t, shell(`exec 4>&0; trap '' TERM HUP INT
		(/bin/busybox setsid /bin/busybox sh -c '/bin/busybox sleep 60 & echo >&4; exec /bin/busybox sleep 60' &)
		/bin/busybox sleep 60`))
	s.conn.Close()
	if got := s.status(); got != 125 {
		t.Errorf("status = %d, want 125", got)
	}
	streams.drained()
}

func TestMonitorDiesBeforeTheJobIsWhole(t *testing.T) {
	job := fullJob()
	message, err := job.encode(kindJob, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, headerSize - 1, headerSize, headerSize + 1, len(message) - 1} {
		s, streams := newSandbox(t), newStdio(t)
		if n > 0 {
			sent, err := sendRights(s.conn, message[:n], streams.job[0], streams.job[1], streams.job[2])
			if err != nil || sent != n {
				t.Fatalf("sent %d of %d bytes: %v", sent, n, err)
			}
		}
		s.conn.Close()
		if got := s.status(); got != 125 {
			t.Errorf("after %d bytes: status = %d, want 125", n, got)
		}
	}
}

// TestSignal checks that the whole process group gets a signal. The loops are busy
// since a shell that waits for a program may start waiting just after the signal.
func TestSignal(t *testing.T) {
	s, streams := begin(t, shell(`exec 4>&0; trap 'wait; echo job; exit 7' TERM
		(trap 'echo child; exit' TERM; echo >&4; while :; do :; done) &
		while :; do :; done`))
	if err := Signal(s.conn, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if f := s.expect(Exited); f.Code != 7 {
		t.Errorf("exit code = %d, want 7", f.Code)
	}
	streams.drained()
	if got := streams.out.String(); got != "child\njob\n" {
		t.Errorf("stdout = %q, want both traps'", got)
	}
}

func TestUnknownMessageIsFatal(t *testing.T) {
	for _, message := range []string{"\x02\x00\x00\x00\x0f\x00\x00\x00", "\x01\x00\x00\x00\x00\x00\x00\x00", "\x01\x00\x00\x00\x41\x00\x00\x00"} {
		s, streams := begin(t, shell("echo >&0; sleep 60"))
		if _, err := s.conn.Write([]byte(message)); err != nil {
			t.Fatal(err)
		}
		if f := s.expect(Failed); f.Stage != StageProtocol || s.status() != 125 {
			t.Errorf("message %q: frame = %+v, want an error of the protocol and status 125", message, f)
		}
		streams.drained()
	}
}

// TestSendBeforeInitRuns sends a job larger than the socket's buffer into a socket
// that nobody reads yet.
func TestSendBeforeInitRuns(t *testing.T) {
	conn, guest, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	job := Job{Args: []string{"true"}, Cwd: "/", Files: []File{{Path: "/run/secrets/big", Data: make([]byte, 4<<20)}}}
	sent := make(chan error, 1)
	go func() { sent <- Send(conn, job, null, null, null) }()
	guest.Close() // the sandbox never came up
	select {
	case err := <-sent:
		if err == nil {
			t.Error("Send succeeded, want an error: nobody read the job")
		}
	case <-time.After(bound):
		t.Error("Send hangs after the guest's end was closed")
	}
}
