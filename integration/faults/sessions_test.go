package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/integration/testenv"
)

// sessionRuntimes are those that the proofs of sessions go through.
var sessionRuntimes = []string{"direct", "embedded", "runsc"}

// live has the program of these tests go through the life of a session.
func (b *bed) live(env []string, runtime, id string) outcome {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience())
	defer cancel()
	args := []string{"-state", b.path("state"), "-run", b.path("run"), "-cgroup", b.groups.Root, "-runtime", runtime, "-rootfs", b.root, "-id", id}
	cmd := exec.CommandContext(ctx, b.path("bin", "session"), args...)
	cmd.Env = append(env, "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.WaitDelay = patience()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	err := cmd.Run()
	o := outcome{append([]string{"(session)"}, args...), stdout.String(), stderr.String(), cmd.ProcessState.ExitCode(), time.Since(start)}
	if ctx.Err() != nil {
		b.t.Fatalf("%s\nhangs: %v", o, err)
	}
	return o
}

// isOfSession reports whether a step is one that only sessions take.
func isOfSession(s step) bool {
	return s.who == "monitor" && (strings.Contains(s.point, "exec") || strings.Contains(s.point, "renew") || strings.Contains(s.point, "session"))
}

// TestSessionKillMatrix kills a session's monitor, and its sandbox, at each step of a
// session's own: while it opens, starts programs, records their ends, renews, ends. Then
// the same is asked for again, as a client would that does not know what became of it.
func TestSessionKillMatrix(t *testing.T) {
	scope(t)
	for _, runtime := range sessionRuntimes {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, "session", "session-failpoint", "engine-monitor", "engine-monitor-failpoint")
			steps := trace(b, "after-cleaned", func(env []string) {
				if o := b.live(env, runtime, journal.NewID()); o.status != 7 {
					t.Fatalf("%s", o)
				}
			})
			b.clean()
			steps = slices.DeleteFunc(steps, func(s step) bool { return !isOfSession(s) })
			if len(steps) < 10 {
				t.Errorf("a session passes %v, want more steps of its own", steps)
			}
			n := 20
			if testenv.InVM() {
				n = 6
			}
			var all []cell
			for i, s := range steps {
				for j, target := range []string{"monitor", "sandbox"} {
					if scope(t) == "all" || n >= 2*len(steps) || (2*i+j)*n/(2*len(steps)) != (2*i+j+1)*n/(2*len(steps)) {
						all = append(all, cell{step: s, target: target})
					}
				}
			}
			green := 0
			for _, c := range all {
				t.Run(c.point+"@"+c.target, func(t *testing.T) {
					b.of(t).killSession(runtime, c)
					if !t.Failed() {
						green++
					}
				})
			}
			t.Logf("%s: %d of %d cells green, at %d steps", runtime, green, len(all), len(steps))
		})
	}
}

// killSession is one cell of the matrix.
func (b *bed) killSession(runtime string, c cell) {
	b.t.Helper()
	id := journal.NewID()
	first := b.live([]string{"ENGINE_FAILPOINT=" + c.point + "@" + c.target}, runtime, id)
	b.quiet(id)
	b.gc()
	b.clean()
	r := b.record(id)
	if r == nil || r.State != engine.Removed || r.Alive || r.Result == nil || r.Result.Reason == nil || len(r.Problems) > 0 {
		b.t.Fatalf("record = %+v, want one that is removed, dead, whole and with a reason\n%s", r, first)
	}
	if reason := *r.Result.Reason; c.target == "monitor" && reason != engine.ReasonLost {
		b.t.Errorf("reason = %s, want lost\n%s", reason, first)
	}
	if first.status != 7 && (first.status != 125 || !typed.MatchString(first.stderr)) {
		b.t.Errorf("neither success nor an error:\n%s", first)
	}
	if c.point == "renew-recorded" && (r.Deadline == nil || time.Until(*r.Deadline) < 50*time.Minute) {
		b.t.Errorf("deadline = %v, and a later one was recorded", r.Deadline)
	}
	b.judgeExecs(id, first)

	second := b.live(nil, runtime, id)
	b.quiet(id)
	b.clean()
	if got := tokens(first.stdout + second.stdout + b.recorded(id, "token")); len(got) > 1 {
		b.t.Errorf("the program was started %d times:\n%s\n%s", len(got), first, second)
	}
	if second.status != 125 || !typed.MatchString(second.stderr) {
		b.t.Errorf("a session that has ended was used again:\n%s", second)
	}
}

// judgeExecs checks what is on record of a dead session's programs, and that nobody was
// told of an end that is not there.
func (b *bed) judgeExecs(id string, told outcome) {
	b.t.Helper()
	execs, err := b.host().Execs(id)
	if err != nil {
		b.t.Fatal(err)
	}
	on := map[string]bool{}
	for _, e := range execs {
		if e.Result == nil {
			b.t.Errorf("exec %s of a dead session has no result", e.ID)
			continue
		}
		exited := e.Result.Reason == engine.ReasonExited
		on[e.ID] = exited
		if exited && (e.Result.ExitCode == nil || *e.Result.ExitCode != 7) {
			b.t.Errorf("exec %s: result = %+v, want exit code 7", e.ID, *e.Result)
		}
		if e.ID == "token" && exited && len(tokens(b.recorded(id, e.ID))) != 1 {
			b.t.Errorf("exited, and the output on record is %q", b.recorded(id, e.ID))
		}
	}
	for _, name := range []string{"token", "input"} {
		if strings.Contains(told.stdout, name+" exited\n") && !on[name] {
			b.t.Errorf("a client was told that exec %s had exited, and it is not on record\n%s", name, told)
		}
	}
}

// recorded is what is on record of an exec's stdout.
func (b *bed) recorded(id, name string) string {
	out, err := journal.ReadOutput(b.host().ExecOutputPath(id, name), math.MaxInt64)
	if err != nil {
		return "" // it was never begun
	}
	return out.Stdout
}

// TestSessionEverySyscall lets the n-th system call of a session's monitor fail.
func TestSessionEverySyscall(t *testing.T) {
	scope(t)
	for _, fault := range faults {
		if scope(t) == "sample" && testenv.InVM() && fault != "ENOSPC" && fault != "EMFILE" {
			continue // all of them take their time there
		}
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, "session", "session-failpoint")
			real := testenv.Binary(t, "engine-monitor")
			b.wrap("engine-monitor", real, "", 0, fault)
			b.live(nil, "embedded", journal.NewID())
			_, calls := b.hit()
			sample := 16
			if testenv.InVM() {
				sample = 4
			}
			step, cells := stride(t, calls, sample), 0
			for n := 1 + step/2; ; n += step {
				b.wrap("engine-monitor", real, "", n, fault)
				call := 0
				t.Run(fmt.Sprintf("call-%d", n), func(t *testing.T) {
					b := b.of(t)
					id := journal.NewID()
					o := b.live(nil, "embedded", id)
					if o.status != 7 && (o.status != 125 || !typed.MatchString(o.stderr)) {
						t.Errorf("neither success nor an error:\n%s", o)
					}
					if o.status != 7 && b.record(id) != nil {
						b.engine(nil, "kill", id) // its client has given up on it
					}
					call, _ = b.hit()
					b.quiet(id)
					b.gc()
					b.clean()
					if r := b.record(id); r != nil {
						b.judgeExecs(id, o)
					}
					if t.Failed() {
						t.Logf("it was system call number %d\n%s", call, o)
					}
				})
				if call < 0 {
					break // the monitor had ended before
				}
				cells++
			}
			t.Logf("%s: %d cells, %d system calls in a session", fault, cells, calls)
		})
	}
}

// session starts a session in this process, of the embedded runtime.
func (b *bed) session() (engine.Host, string) {
	b.t.Helper()
	fields := strings.Fields(b.engine(nil, "version").stdout)
	if len(fields) < 2 {
		b.t.Fatal("engine version does not tell it")
	}
	engine.Version = fields[1]
	h := b.host()
	h.MinFreeDisk, h.MinFreeMemory = -1, -1
	limits := engine.DefaultLimits()
	limits.Memory, limits.Timeout = 256<<20, 10*time.Minute
	r := engine.Request{Runtime: "embedded", Rootfs: b.root, Session: &engine.Session{}, Limits: limits, BestEffortLimits: true}
	ctx, cancel := context.WithTimeout(context.Background(), patience())
	defer cancel()
	run, err := h.Start(ctx, r, nil, engine.Stdio{})
	if err == nil {
		_, err = h.AwaitReady(ctx, run.ID())
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience())
		defer cancel()
		if err := h.Kill(ctx, run.ID()); err != nil {
			b.t.Error(err)
		}
		b.quiet(run.ID())
		b.clean()
	})
	return h, run.ID()
}

// try runs a script in a session to its end.
func (b *bed) try(h engine.Host, id, script string) (engine.ExecResult, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience())
	defer cancel()
	c, err := h.Exec(ctx, id, engine.Exec{Command: []string{"sh", "-c", script}, OutputKept: 10e6})
	if err != nil {
		return engine.ExecResult{}, err
	}
	defer c.Close()
	return c.Wait(ctx)
}

// fair fails the test unless an exec that was short of something exited, or met an error
// that says of what.
func (b *bed) fair(what string, r engine.ExecResult, err error, says string) (ok bool) {
	b.t.Helper()
	var e *engine.Error
	switch {
	case err == nil && r.Reason == engine.ReasonExited && r.ExitCode != nil && *r.ExitCode == 7 && r.Error == nil:
		return true
	case err == nil && r.Error != nil && strings.Contains(r.Error.Message, says):
	case errors.As(err, &e) && e.Class == engine.ClassEngine && e.Kind != "internal" && strings.Contains(e.Message, says):
	default:
		b.t.Errorf("%s: neither success nor an error that says %q: result = %+v, error = %v", what, says, r, err)
	}
	return false
}

// TestSessionDiskFull fills the disk of the records by an exec's own output, and then
// leaves too little of it for the records of execs. The session lives on, and is as
// good as new once there is room.
func TestSessionDiskFull(t *testing.T) {
	scope(t)
	b := newBed(t)
	b.small("state", 1<<20)
	h, id := b.session()
	r, err := b.try(h, id, "yes | head -c 3000000; exit 7")
	if err != nil || r.Reason != engine.ReasonExited || r.ExitCode == nil || *r.ExitCode != 7 || r.StdoutBytes != 3000000 || !r.StdoutTruncated {
		t.Errorf("result = %+v, %v; want exit code 7, and 3000000 bytes, truncated", r, err)
	}
	if r.Error == nil || !strings.Contains(r.Error.Message, "no space left") {
		t.Errorf("nothing says that the disk was full: %v", r.Error)
	}
	execs, err := h.Execs(id)
	if err != nil || len(execs) != 1 {
		t.Fatalf("execs = %+v, %v", execs, err)
	}
	// What it wrote is in the way: it goes as the oldest would.
	if err := os.RemoveAll(b.path("state/runs", id, "exec", execs[0].ID, "output.log")); err != nil {
		t.Fatal(err)
	}
	filler, failed := b.path("state/filler"), 0
	for free := 0; free <= 48<<10; free += 4 << 10 {
		os.Remove(filler)
		var st unix.Statfs_t
		if err := unix.Statfs(b.path("state"), &st); err != nil {
			t.Fatal(err)
		}
		fill := make([]byte, max(int64(st.Bavail)*st.Bsize-int64(free), 0))
		if err := os.WriteFile(filler, fill, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := b.try(h, id, "yes | head -c 5000; exit 7")
		if !b.fair(fmt.Sprintf("with %d bytes free", free), r, err, "no space left") {
			failed++
		}
		os.Remove(filler)
		if r, err := b.try(h, id, "exit 7"); !b.fair("with room again", r, err, "") {
			t.Errorf("with room again: result = %+v, %v", r, err)
		}
	}
	if failed == 0 {
		t.Error("no exec was short of room: this test proves nothing")
	}
}

// TestSessionFewDescriptors leaves a session's monitor with too few descriptors.
func TestSessionFewDescriptors(t *testing.T) {
	scope(t)
	b := newBed(t)
	h, id := b.session()
	monitors := b.processesOf(id)
	if len(monitors) != 1 {
		t.Fatalf("monitors = %v, want one", monitors)
	}
	if r, err := b.try(h, id, "exit 7"); !b.fair("at first", r, err, "") {
		t.Fatalf("at first: result = %+v, %v", r, err)
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", monitors[0]))
	if err != nil {
		t.Fatal(err)
	}
	var usual unix.Rlimit
	if err := unix.Prlimit(monitors[0], unix.RLIMIT_NOFILE, nil, &usual); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for more := 1; more < 14; more++ { // at least one, to be heard at all
		few := usual
		few.Cur = uint64(len(open) + more)
		if err := unix.Prlimit(monitors[0], unix.RLIMIT_NOFILE, &few, nil); err != nil {
			t.Fatal(err)
		}
		r, err := b.try(h, id, "echo; exit 7")
		if !b.fair(fmt.Sprintf("with %d more descriptors", more), r, err, "too many open files") {
			failed++
		}
		if err := unix.Prlimit(monitors[0], unix.RLIMIT_NOFILE, &usual, nil); err != nil {
			t.Fatal(err)
		}
		if r, err := b.try(h, id, "exit 7"); !b.fair("with enough again", r, err, "") {
			t.Errorf("with enough again: result = %+v, %v", r, err)
		}
	}
	if failed == 0 {
		t.Error("no exec was short of descriptors: this test proves nothing")
	}
}

// processesOf are the monitors of a run.
func (b *bed) processesOf(id string) []int {
	b.t.Helper()
	procs, err := os.ReadFile(b.groups.Group("mon").Dir + "/cgroup.procs")
	if err != nil {
		b.t.Fatal(err)
	}
	var pids []int
	for _, field := range strings.Fields(string(procs)) {
		line, _ := os.ReadFile("/proc/" + field + "/cmdline") // it may have ended
		if pid, err := strconv.Atoi(field); err == nil && bytes.Contains(line, []byte(id)) {
			pids = append(pids, pid)
		}
	}
	return pids
}
