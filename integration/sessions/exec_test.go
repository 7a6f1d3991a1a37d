package sessions

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine"
)

// TestExecEnds proves that an exec's result tells how its program ended, with its output
// on record, and that the session goes on whatever became of it.
func TestExecEnds(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		r, stdout := b.run(id, "echo hi; echo problem >&2; exit 3")
		wantExit(t, r, 3)
		if stdout != "hi\n" || r.StdoutBytes != 3 || r.StderrBytes != 8 || r.CPUSecs == nil || r.DurationMs <= 0 {
			t.Errorf("stdout = %q, result = %s", stdout, show(r))
		}
		if r, _ := b.run(id, "kill -SEGV $$"); r.Reason != engine.ReasonSignal || r.Signal != "SIGSEGV" || r.ExitCode != nil {
			t.Errorf("result = %s, want SIGSEGV", show(r))
		}
		e := shell("sleep 60 & sleep 60")
		e.Timeout = 200 * time.Millisecond
		start := time.Now()
		r = b.end(b.exec(id, e))
		if took := time.Since(start); r.Reason != engine.ReasonTimeout || !r.TimedOut || took < e.Timeout || took > 30*time.Second {
			t.Errorf("result = %s after %v, want a timeout after %v", show(r), took, e.Timeout)
		}
		_, err := b.Exec(within(t), id, engine.Exec{Command: []string{"nothing"}})
		wantKind(t, err, "command_not_found")
		_, err = b.Exec(within(t), id, engine.Exec{Command: []string{"true"}, Workdir: "/nowhere"})
		wantKind(t, err, "bad_workdir")
		c := b.exec(id, engine.Exec{Command: []string{"sh", "-c", "pwd; echo $A $HOME"}, Workdir: "/tmp", Env: []string{"A=1", "HOME=/x"}})
		wantExit(t, b.end(c), 0)
		if stdout, _ := b.output(id, c.ID()); stdout != "/tmp\n1 /x\n" {
			t.Errorf("stdout = %q", stdout)
		}
		if err := b.Kill(within(t), id); err != nil {
			t.Fatal(err)
		}
		rec, err := b.Load(id)
		if err != nil || rec.Result == nil || *rec.Result.Reason != engine.ReasonCancelled {
			t.Errorf("record = %s, %v, want cancelled", show(rec), err)
		}
	})
}

// TestManyExecsAtOnce runs a hundred programs side by side, each with its own output.
func TestManyExecsAtOnce(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session(func(r *engine.Request) { r.Limits.Pids = 1000 })
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				e := shell(fmt.Sprintf("for j in 1 2 3 4 5; do echo out %d $j; echo err %d $j >&2; done; exit %d", i, i, i))
				e.ID = fmt.Sprintf("exec-%d", i)
				c, err := b.Exec(within(t), id, e)
				if err != nil {
					t.Errorf("exec %d: %v", i, err)
					return
				}
				defer c.Close()
				r, err := c.Wait(within(t))
				if err != nil || r.Reason != engine.ReasonExited || *r.ExitCode != i {
					t.Errorf("exec %d: result = %s, %v", i, show(r), err)
				}
				stdout, stderr := b.output(id, e.ID)
				var out, errs strings.Builder
				for j := 1; j <= 5; j++ {
					fmt.Fprintf(&out, "out %d %d\n", i, j)
					fmt.Fprintf(&errs, "err %d %d\n", i, j)
				}
				if stdout != out.String() || stderr != errs.String() {
					t.Errorf("exec %d: stdout = %q, stderr = %q", i, stdout, stderr)
				}
			})
		}
		wg.Wait()
		list, err := b.Execs(id)
		if err != nil || len(list) != 100 {
			t.Errorf("%d execs are on record, %v, want 100", len(list), err)
		}
	})
}

// TestSameExecHappensOnce proves that a client's id stands for one exec.
func TestSameExecHappensOnce(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		e := shell("echo once >>/workload/count; cat /workload/count; sleep 0.2")
		e.ID = "a.b:c_d-1"
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				c, err := b.Exec(within(t), id, e)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if r, err := c.Wait(within(t)); err != nil || r.Reason != engine.ReasonExited {
					t.Errorf("result = %s, %v", show(r), err)
				}
			})
		}
		wg.Wait()
		c := b.exec(id, e) // it has ended long since
		wantExit(t, b.end(c), 0)
		if !c.Joined() {
			t.Error("an exec that has ended was started again")
		}
		if stdout, _ := b.output(id, e.ID); stdout != "once\n" {
			t.Errorf("stdout = %q, want one run", stdout)
		}
		e.Command = append(e.Command, "other")
		_, err := b.Exec(within(t), id, e)
		wantKind(t, err, "exists")
	})
}

// TestSessionSocketIsRoots connects as somebody else, past the directory's mode.
func TestSessionSocketIsRoots(t *testing.T) {
	b := newBed(t, "embedded")
	id := b.session()
	path := b.RunDir + "/" + id + "/session.sock"
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode = %v, %v, want 0600", info.Mode(), err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if got := askAs(t, 65534, path); got != "" {
		t.Errorf("another user was answered %q", got)
	}
	if got := askAs(t, 0, path); !strings.Contains(got, `"done"`) {
		t.Errorf("root was answered %q, want done", got)
	}
}
