package sessions

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/integration/testenv"
)

// monitor is the pid of the session's monitor.
func (b *bed) monitor(id string) int {
	b.t.Helper()
	pid := testenv.MonitorOf(b.t, id)
	if pid == 0 {
		b.t.Fatalf("session %s has no monitor", id)
	}
	return pid
}

// TestClientDies kills a client while its exec writes. Another one gets every byte, and
// may go on with stdin.
func TestClientDies(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		e := shell("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; cat; echo end")
		e.ID, e.Stdin = "survivor", true
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), clientVariable+"="+show(client{b.Host, engine.Version, id, e}))
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if said, err := io.ReadAll(io.LimitReader(out, 8)); err != nil || string(said) != "started\n" {
			t.Fatalf("the client said %q, %v", said, err)
		}
		cmd.Process.Kill()
		cmd.Wait()
		c, err := b.Attach(within(t), id, e.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("from the second\n")); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseStdin(); err != nil {
			t.Fatal(err)
		}
		wantExit(t, b.end(c), 0)
		var want strings.Builder
		for i := range 2000 {
			fmt.Fprintf(&want, "line %d\n", i)
		}
		want.WriteString("from the first\nfrom the second\nend\n")
		if stdout, _ := b.output(id, e.ID); stdout != want.String() {
			t.Errorf("stdout has %d bytes, want %d; it ends with %q", len(stdout), want.Len(), stdout[max(0, len(stdout)-100):])
		}
	})
}

// TestMonitorDies kills the monitor. Everything of the session is gone, and it and its
// unfinished execs read as lost.
func TestMonitorDies(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		_, stdout := b.run(id, "echo done")
		if stdout != "done\n" {
			t.Fatalf("stdout = %q", stdout)
		}
		e := shell("echo begun; setsid sleep 600 & sleep 600")
		e.ID = "unfinished"
		c := b.exec(id, e)
		for stdout := ""; stdout != "begun\n"; stdout, _ = b.output(id, e.ID) {
			<-c.Changed()
		}
		if err := unix.Kill(b.monitor(id), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if r := b.end(c); r.Reason != engine.ReasonLost || r.StdoutBytes != 6 {
			t.Errorf("result = %s, want lost", show(r))
		}
		ctx, cancel := context.WithTimeout(within(t), 30*time.Second)
		defer cancel()
		if err := b.groups.Group("run/" + id).WaitEmpty(ctx); err != nil {
			t.Errorf("the sandbox lives on: %v", err)
		}
		_, err := b.Exec(within(t), id, shell("true"))
		wantKind(t, err, "not_running")
		if _, err := b.GC(within(t), false); err != nil {
			t.Fatal(err)
		}
		rec, err := b.Load(id)
		if err != nil || rec.State != engine.Removed || rec.Result == nil || *rec.Result.Reason != engine.ReasonLost {
			t.Errorf("record = %s, %v, want a lost run that is cleaned up", show(rec), err)
		}
		list, err := b.Execs(id)
		if err != nil || len(list) != 2 || list[0].Result.Reason != engine.ReasonExited || list[1].Result.Reason != engine.ReasonLost {
			t.Errorf("execs = %s, %v, want one exited and one lost", show(list), err)
		}
		again, err := b.Exec(within(t), id, e) // a retry learns what became of it
		if err != nil {
			t.Fatal(err)
		}
		if r := b.end(again); r.Reason != engine.ReasonLost {
			t.Errorf("result = %s, want lost", show(r))
		}
		if err := b.Remove(id); err != nil {
			t.Error(err)
		}
	})
}

// TestCollectedByAnotherRoot has a dead run collected by somebody who was given another
// cgroup root, as a timer's unit may be: what runs is ended all the same.
func TestCollectedByAnotherRoot(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		e := shell("setsid sleep 600 & sleep 600")
		e.ID = "unfinished"
		b.exec(id, e)
		other, err := cgroups.Open(filepath.Base(b.dir) + "-other")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := other.Group("").Remove(); err != nil {
				t.Error(err)
			}
		})
		if err := unix.Kill(b.monitor(id), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testenv.WaitFor(t, testenv.Patience, "the monitor's end", func() bool {
			rec, err := b.Load(id)
			return err == nil && !rec.Alive
		})
		host := b.Host
		host.CgroupRoot = other.Root
		if _, err := host.GC(within(t), false); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(b.groups.Group("run/" + id).Dir); !os.IsNotExist(err) {
			t.Errorf("the run's cgroup is still there (%v)", err)
		}
		if rec, err := b.Load(id); err != nil || rec.State != engine.Removed || *rec.Result.Reason != engine.ReasonLost {
			t.Errorf("record = %s, %v, want a lost run that is cleaned up", show(rec), err)
		}
	})
}

// TestEndOfSessionEndsExecs gives every exec that runs the reason of its session.
func TestEndOfSessionEndsExecs(t *testing.T) {
	b := newBed(t, "embedded")
	for _, tt := range []struct {
		reason engine.Reason
		ttl    time.Duration
	}{{engine.ReasonCancelled, time.Minute}, {engine.ReasonTimeout, time.Second}} {
		id := b.session(func(r *engine.Request) { r.Limits.Timeout = tt.ttl })
		c := b.exec(id, shell("echo last words; exec sleep 600"))
		for stdout := ""; stdout != "last words\n"; stdout, _ = b.output(id, c.ID()) {
			<-c.Changed()
		}
		if tt.reason == engine.ReasonCancelled {
			if err := b.Kill(within(t), id); err != nil {
				t.Fatal(err)
			}
		}
		if r := b.end(c); r.Reason != tt.reason || r.StdoutBytes != 11 || r.TimedOut != (tt.reason == engine.ReasonTimeout) {
			t.Errorf("result = %s, want %s", show(r), tt.reason)
		}
		rec, err := b.Await(within(t), id)
		if err != nil || *rec.Result.Reason != tt.reason {
			t.Errorf("record = %s, %v, want %s", show(rec), err, tt.reason)
		}
	}
}

// TestOutputIsWhole hashes much output of both streams, and what is kept of too much.
func TestOutputIsWhole(t *testing.T) {
	rounds := 300
	if testenv.InVM() {
		rounds = 30
	}
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		e := shell(fmt.Sprintf("i=0; while [ $i -lt %d ]; do seq 1 1000; seq 1 1000 >&2; i=$((i+1)); done", rounds))
		e.OutputKept = 64 << 20
		c := b.exec(id, e)
		wantExit(t, b.end(c), 0)
		stdout, stderr := b.output(id, c.ID())
		var want strings.Builder
		for range rounds {
			for i := 1; i <= 1000; i++ {
				fmt.Fprintln(&want, i)
			}
		}
		if hash(stdout) != hash(want.String()) || hash(stderr) != hash(want.String()) {
			t.Errorf("stdout has %d bytes and stderr %d, want %d", len(stdout), len(stderr), want.Len())
		}
		e.OutputKept, e.ID = 1000, "little"
		r := b.end(b.exec(id, e))
		if r.StdoutBytes != int64(want.Len()) || !r.StdoutTruncated || !r.StderrTruncated {
			t.Errorf("result = %s, want %d bytes, cut", show(r), want.Len())
		}
		if stdout, _ := b.output(id, "little"); stdout != want.String()[:1000] {
			t.Errorf("stdout = %q", stdout)
		}
	})
}

func hash(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// TestLeftBehind has an exec leave a process that holds its streams and writes on. The
// exec ends all the same, with what it wrote itself; the process lives on.
func TestLeftBehind(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		start := time.Now()
		r, stdout := b.run(id, "(trap '' PIPE; while :; do echo more; sleep 0.01; done 2>/dev/null) & (sleep 600) & echo mine")
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("the exec took %v to end", took)
		}
		wantExit(t, r, 0)
		if !strings.Contains(stdout, "mine\n") {
			t.Errorf("stdout = %q", stdout)
		}
		if _, stdout := b.run(id, "ps -o args | grep -c '^sleep 600'"); stdout != "1\n" {
			t.Errorf("%q processes live on, want 1", stdout)
		}
	})
}

// TestStdinWaits writes to a program that does not read: the writer waits, and nothing
// else does.
func TestStdinWaits(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		e := shell("while [ ! -e /tmp/go ]; do sleep 0.05; done; sha256sum")
		e.Stdin = true
		c := b.exec(id, e)
		data := strings.Repeat("0123456789abcdef", 512<<10)
		var written atomic.Int64
		wrote := make(chan error, 1)
		go func() {
			wrote <- errors.Join(inPieces(c, data, &written), c.CloseStdin())
		}()
		// It comes to a halt far before the end.
		last := int64(-1)
		testenv.WaitFor(t, 10*time.Second, "the writer to wait", func() bool {
			time.Sleep(300 * time.Millisecond)
			n := written.Load()
			halted := n == last && n > 0
			last = n
			return halted
		})
		if last > 4<<20 {
			t.Errorf("%d bytes were taken for a program that reads none", last)
		}
		if _, stdout := b.run(id, "touch /tmp/go; echo other"); stdout != "other\n" {
			t.Errorf("another exec wrote %q meanwhile", stdout)
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		wantExit(t, b.end(c), 0)
		if stdout, _ := b.output(id, c.ID()); !strings.HasPrefix(stdout, hash(data)) {
			t.Errorf("the program read something else: %q", stdout)
		}
	})
}

// inPieces writes data, and counts what was taken.
func inPieces(w io.Writer, data string, written *atomic.Int64) error {
	for piece := range slices.Chunk([]byte(data), 32<<10) {
		n, err := w.Write(piece)
		if written.Add(int64(n)); err != nil {
			return err
		}
	}
	return nil
}

// TestUnreadStdinEnds ends an exec to which somebody still writes.
func TestUnreadStdinEnds(t *testing.T) {
	b := newBed(t, "embedded")
	id := b.session()
	e := shell("sleep 600")
	e.Stdin = true
	c := b.exec(id, e)
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, 32<<20))
		wrote <- err
	}()
	if err := c.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if r := b.end(c); r.Signal != "SIGKILL" {
		t.Errorf("result = %s, want SIGKILL", show(r))
	}
	if err := <-wrote; err == nil {
		t.Error("32 MiB were written to a program that read nothing")
	}
	_, err := b.Exec(within(t), id, shell("true"))
	if err != nil {
		t.Error(err)
	}
}

// TestRecordsAreBounded runs more execs than stay on record, ten at a time.
func TestRecordsAreBounded(t *testing.T) {
	if testing.Short() || testenv.InVM() {
		t.Skip("takes minutes under emulation: run it with make test-sessions")
	}
	b := newBed(t, "embedded")
	id := b.session()
	monitor := b.monitor(id)
	begin := make(chan int)
	done := make(chan error)
	const execs = 10000
	for range 10 {
		go func() {
			for i := range begin {
				e := engine.Exec{ID: fmt.Sprint("e", i), Command: []string{"true"}}
				c, err := b.Exec(within(t), id, e)
				if err == nil {
					var r engine.ExecResult
					r, err = c.Wait(within(t))
					c.Close()
					if err == nil && (r.ExitCode == nil || *r.ExitCode != 0) {
						err = fmt.Errorf("exec %d: %s", i, show(r))
					}
				}
				done <- err
			}
		}()
	}
	go func() {
		for i := range execs {
			begin <- i
		}
		close(begin)
	}()
	before := held(t, monitor)
	open := len(fds(t, monitor))
	for i := range execs {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if i == 2000 {
			before += ", then " + held(t, monitor)
		}
	}
	testenv.WaitFor(t, 10*time.Second, "the oldest to be gone", func() bool {
		list, err := journal.Execs(b.StateDir, id)
		return err == nil && len(list) == 1000 && !slices.Contains(list, "e0")
	})
	testenv.WaitFor(t, 10*time.Second, "the monitor to hold no more descriptors than before", func() bool {
		return len(fds(t, monitor)) <= open
	})
	t.Logf("monitor: %s after 2000 execs, %s after %d", before, held(t, monitor), execs)
}

func fds(t *testing.T, pid int) []os.DirEntry {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// held says what a process has.
func held(t *testing.T, pid int) string {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	var rss string
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmRSS:") {
			rss = strings.Join(strings.Fields(line)[1:], " ")
		}
	}
	return fmt.Sprintf("%s, %d descriptors", rss, len(fds(t, pid)))
}
