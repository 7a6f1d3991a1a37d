package service

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
)

// box asks for a small sandbox.
func box(name string) wire.SandboxRequest {
	return wire.SandboxRequest{Name: name, Owner: "wf:1", Image: "box", Runtime: "embedded", CPUs: 1, MemoryMB: 256, TTLSeconds: 300}
}

// execute runs a shell script in a sandbox and returns what it wrote to stdout.
func execute(t *testing.T, c *client.Client, id, text string) (string, *wire.ExecResult) {
	t.Helper()
	ctx := patient(t)
	e, err := c.StartExec(ctx, id, wire.ExecRequest{Command: []string{"sh", "-c", text}})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for ev, err := range c.FollowExec(ctx, id, e.ID, "") {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Stream == "stdout" {
			out.Write(ev.Data)
		}
		if ev.Kind == "exit" {
			return out.String(), ev.Result
		}
	}
	t.Fatal("the stream ended without an exit")
	return "", nil
}

// TestSandboxes goes through the life of one that stays.
func TestSandboxes(t *testing.T) {
	b := newBed(t, "")
	c, ctx := b.start(), patient(t)
	ask := box("one")
	ask.Labels, ask.Env = map[string]string{"step": "a"}, map[string]string{"A": "a"}
	ask.Secrets = map[string]string{"SECRET": "canary-of-a-sandbox"}
	one, err := c.CreateSandbox(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	if one.State != "ready" || !one.Alive || one.Owner != "wf:1" || one.Deadline == nil {
		t.Errorf("created %+v", one)
	}
	if again, err := c.CreateSandbox(ctx, ask); err != nil || again.ID != one.ID {
		t.Errorf("adopted %+v, %v", again, err)
	}
	other := ask
	other.Owner = "wf:2"
	var conflict *client.Error
	if _, err := c.CreateSandbox(ctx, other); !errors.As(err, &conflict) || conflict.Kind != "name_conflict" || conflict.Status != 409 || conflict.Sandbox == nil || conflict.Sandbox.Owner != "wf:1" {
		t.Errorf("another owner's: %+v", conflict)
	}
	if out, res := execute(t, c, "one", `echo "$A$SECRET"; exit 3`); out != "acanary-of-a-sandbox\n" || *res.ExitCode != 3 {
		t.Errorf("wrote %q and came to %+v", out, res)
	}
	if list, err := c.Sandboxes(ctx, client.SandboxFilter{Labels: map[string]string{"step": "a"}}); err != nil || len(list.Sandboxes) != 1 {
		t.Errorf("listed %+v, %v", list, err)
	}
	if renewed, err := c.RenewSandbox(ctx, one.ID, time.Hour); err != nil || time.Until(renewed.Deadline) < 50*time.Minute {
		t.Errorf("renewed to %v, %v", renewed.Deadline, err)
	}
	if paused, err := c.PauseSandbox(ctx, "one"); err != nil || paused.State != "paused" {
		t.Errorf("paused: %+v, %v", paused.State, err)
	}
	if resumed, err := c.ResumeSandbox(ctx, "one"); err != nil || resumed.State != "ready" {
		t.Errorf("resumed: %+v, %v", resumed.State, err)
	}
	n := 0
	for stats, err := range c.FollowStats(ctx, "one") {
		if err != nil {
			t.Fatal(err)
		}
		if n++; stats.Usage.BusyCPUSecs == nil && stats.MemoryBytes == nil && stats.Pids == nil && n == 1 {
			t.Logf("this host measures nothing of it: %+v", stats)
		}
		if n == 2 {
			break
		}
	}
	if e, err := c.Estimate(ctx, []wire.InputFile{{Name: "a.csv", Size: 1e9}}); err != nil || e.MemoryGB != 10 || e.CPUs != 4 {
		t.Errorf("estimated %+v, %v", e, err)
	}
	if err := c.RemoveSandbox(ctx, "one"); err != nil {
		t.Error(err)
	}
	if err := c.RemoveSandbox(ctx, "one"); err != nil {
		t.Errorf("removed twice: %v", err)
	}
	if alive, err := c.Liveness(ctx, "one"); err != nil || alive.Alive {
		t.Errorf("it lives: %+v, %v", alive, err)
	}
	if strings.Contains(b.log.String(), "canary") {
		t.Errorf("the log has a secret:\n%s", b.log)
	}
}

// TestMounts shows a sandbox what its plan names of the config's stores.
func TestMounts(t *testing.T) {
	b := newBed(t, "")
	steps := b.path("trees/shop/steps")
	if err := os.MkdirAll(steps, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.path("trees/shop/data"), []byte("data\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.configure("  sandboxes:\n    stores: {trees: " + b.path("trees") + ", uid: 4001, gid: 4001}\n")
	c, ctx := b.start(), patient(t)
	ask := box("one")
	ask.Mounts = &wire.Mounts{Resource: "shop", Step: "first"}
	if _, err := c.CreateSandbox(ctx, ask); err != nil {
		t.Fatal(err)
	}
	if out, res := execute(t, c, "one", "cat /shop/data && echo made >/shop/steps/first/output/x && ! touch /shop/y 2>/dev/null"); out != "data\n" || !(*res.ExitCode == 0) {
		t.Errorf("wrote %q and came to %+v", out, res)
	}
	if text, err := os.ReadFile(steps + "/first/output/x"); err != nil || string(text) != "made\n" {
		t.Errorf("on the host is %q, %v", text, err)
	}
	ask = box("two")
	ask.Mounts = &wire.Mounts{Resource: "../shop", ReadOnly: true}
	if _, err := c.CreateSandbox(ctx, ask); !client.IsKind(err, "bad_mount") {
		t.Errorf("a path for an id: %v", err)
	}
}

// TestSandboxesByOwner tears down all of one owner, and leaves the other's.
func TestSandboxesByOwner(t *testing.T) {
	b := newBed(t, "")
	c, ctx := b.start(), patient(t)
	for i, owner := range []string{"wf:1", "wf:1", "wf:2"} {
		ask := box(fmt.Sprintf("box-%d", i))
		ask.Owner = owner
		if _, err := c.CreateSandbox(ctx, ask); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.RemoveSandboxes(ctx, client.SandboxFilter{}); !client.IsKind(err, "bad_filter") {
		t.Errorf("all of them: %v", err)
	}
	if r, err := c.RemoveSandboxes(ctx, client.SandboxFilter{Owner: "wf:1"}); err != nil || r.Count != 2 {
		t.Errorf("removed %d, %v", r.Count, err)
	}
	if list, err := c.Sandboxes(ctx, client.SandboxFilter{}); err != nil || len(list.Sandboxes) != 1 || list.Sandboxes[0].Owner != "wf:2" {
		t.Errorf("left %+v, %v", list, err)
	}
}

// TestExecsSurviveTheService follows a program while the service is killed: no byte is
// lost, the program goes on, and its stdin reaches it from the next service.
func TestExecsSurviveTheService(t *testing.T) {
	b := newBed(t, "")
	c, ctx := b.start(), patient(t)
	if _, err := c.CreateSandbox(ctx, box("one")); err != nil {
		t.Fatal(err)
	}
	text := `i=0; while [ $i -lt 3000 ]; do echo "line $i of the stream"; i=$((i+1)); [ $((i % 40)) = 0 ] && sleep 0.05; done; read last; echo "$last" >&2; exit 7`
	e, err := c.StartExec(ctx, "one", wire.ExecRequest{ID: "wf:1:step:fn", Command: []string{"sh", "-c", text}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	got, want := sha256.New(), sha256.New()
	for i := range 3000 {
		fmt.Fprintf(want, "line %d of the stream\n", i)
	}
	var seen sync.WaitGroup
	seen.Add(1)
	var last string
	var result *wire.ExecResult
	followed := make(chan error, 1)
	go func() {
		once := sync.OnceFunc(seen.Done)
		for ev, err := range c.FollowExec(ctx, "one", e.ID, "") {
			if err != nil {
				followed <- err
				return
			}
			once()
			switch {
			case ev.Kind == "exit":
				result = ev.Result
			case ev.Stream == "stdout":
				got.Write(ev.Data)
			default:
				last += string(ev.Data)
			}
		}
		followed <- nil
	}()
	seen.Wait()
	for range 3 {
		b.kill()
		b.start()
	}
	if n, err := c.WriteStdin(ctx, "one", e.ID, strings.NewReader("good bye\n"), true); err != nil || n != 9 {
		t.Fatalf("wrote %d bytes, %v", n, err)
	}
	if err := <-followed; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Sum(nil), want.Sum(nil)) || last != "good bye\n" {
		t.Errorf("what was followed is not what was written (last: %q)", last)
	}
	if result == nil || result.ExitCode == nil || *result.ExitCode != 7 {
		t.Errorf("came to %+v", result)
	}
	again, err := c.StartExec(ctx, "one", wire.ExecRequest{ID: e.ID, Command: []string{"sh", "-c", text}, Stdin: true})
	if err != nil || again.Result == nil {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	if _, err := c.StartExec(ctx, "one", wire.ExecRequest{ID: e.ID, Command: []string{"true"}}); !client.IsKind(err, "exists") {
		t.Errorf("another with its id: %v", err)
	}
}

// TestAttach is a terminal on a WebSocket.
func TestAttach(t *testing.T) {
	b := newBed(t, "")
	c, ctx := b.start(), patient(t)
	if _, err := c.CreateSandbox(ctx, box("one")); err != nil {
		t.Fatal(err)
	}
	e, err := c.StartExec(ctx, "one", wire.ExecRequest{Command: []string{"sh", "-c", `read a; stty size; read b; echo "$a-$b"; exit 5`}, TTY: &wire.WindowSize{Rows: 24, Columns: 80}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.Attach(ctx, "one", e.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Control(ctx, wire.Control{Type: "resize", Rows: 30, Columns: 100}); err != nil {
		t.Fatal(err)
	}
	if err := a.Write(ctx, []byte("one\n")); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	cursor := ""
	for !strings.Contains(text.String(), "30 100") {
		ev, err := a.Next(ctx)
		if err != nil {
			t.Fatalf("%v after %q", err, text.String())
		}
		text.Write(ev.Data)
		cursor = ev.Cursor
	}
	a.Close()
	// Another goes on where the first one ended.
	if a, err = c.Attach(ctx, "one", e.ID, cursor); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Write(ctx, []byte("two\n")); err != nil {
		t.Fatal(err)
	}
	text.Reset()
	for {
		ev, err := a.Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v after %q", err, text.String())
		}
		text.Write(ev.Data)
		if ev.Kind == "exit" && (ev.Result.ExitCode == nil || *ev.Result.ExitCode != 5) {
			t.Errorf("came to %+v", ev.Result)
		}
	}
	if !strings.Contains(text.String(), "one-two") || strings.Contains(text.String(), "30 100") {
		t.Errorf("then it wrote %q", text.String())
	}
	// A signal by the plain way.
	e, err = c.StartExec(ctx, "one", wire.ExecRequest{Command: []string{"sleep", "100"}})
	if err != nil {
		t.Fatal(err)
	}
	// It reads /dev/null, and nothing else is taken for read.
	if _, err := c.WriteStdin(ctx, "one", e.ID, strings.NewReader("x"), false); !client.IsKind(err, "bad_session") {
		t.Errorf("stdin of a program without one: %v", err)
	}
	if a, err = c.Attach(ctx, "one", e.ID, ""); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Write(ctx, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Next(ctx); err == nil || !strings.Contains(err.Error(), "/dev/null") {
		t.Errorf("the same by a WebSocket: %v", err)
	}
	if err := c.SignalExec(ctx, "one", e.ID, "TERM"); err != nil {
		t.Fatal(err)
	}
	if ended, err := c.WaitExec(ctx, "one", e.ID); err != nil || ended.Result.Signal != "SIGTERM" {
		t.Errorf("ended as %+v, %v", ended.Result, err)
	}
}

// TestFiles goes through all that can be done to the files of a sandbox.
func TestFiles(t *testing.T) {
	b := newBed(t, "")
	c, ctx := b.start(), patient(t)
	if _, err := c.CreateSandbox(ctx, box("one")); err != nil {
		t.Fatal(err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 200<<10)
	mode := uint32(0o640)
	info, err := c.WriteFile(ctx, "one", "/workload/a/b", bytes.NewReader(large), client.WriteOptions{Parents: true, Mode: &mode})
	if err != nil || info.Size != int64(len(large)) || info.Mode != 0o640 || info.Type != "file" {
		t.Fatalf("wrote %+v, %v", info, err)
	}
	if _, err := c.WriteFile(ctx, "one", "/workload/a/b", strings.NewReader("x"), client.WriteOptions{Exclusive: true}); !client.IsKind(err, "exists") {
		t.Errorf("wrote what is there: %v", err)
	}
	r, err := c.ReadFile(ctx, "one", "/workload/a/b")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if r.Close(); err != nil || !bytes.Equal(got, large) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	if _, err := c.ReadFile(ctx, "one", "/workload/none"); !client.IsKind(err, "no_file") {
		t.Errorf("read nothing: %v", err)
	}
	if _, err := c.WriteFile(ctx, "one", "/etc/x", strings.NewReader("x"), client.WriteOptions{}); !client.IsKind(err, "file_denied") {
		t.Errorf("wrote to a read-only place: %v", err)
	}
	watch, stop := context.WithCancel(ctx)
	defer stop()
	events, watching := make(chan wire.FileEvent, 100), make(chan bool)
	go func() {
		defer close(events)
		close(watching)
		for e, err := range c.WatchFiles(watch, "one", "/workload", true) {
			if err != nil {
				return
			}
			events <- e
		}
	}()
	<-watching
	b.until("the watch has begun", func() bool {
		if err := c.Mkdir(ctx, "one", wire.MkdirRequest{Path: "/workload/c/d", Parents: true}); err != nil {
			t.Fatal(err)
		}
		if err := c.RemoveFile(ctx, "one", "/workload/c", true); err != nil {
			t.Fatal(err)
		}
		select {
		case e := <-events:
			return e.Path == "/workload/c" && e.Directory
		case <-time.After(50 * time.Millisecond):
			return false
		}
	})
	stop()
	if err := c.MoveFile(ctx, "one", wire.MoveRequest{From: "/workload/a/b", To: "/workload/e"}); err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for e, err := range c.ListFiles(ctx, "one", "/workload") {
		if err != nil {
			t.Fatal(err)
		}
		names[e.Name] = e.Type
	}
	if names["a"] != "directory" || names["e"] != "file" || len(names) != 2 {
		t.Errorf("listed %v", names)
	}
	archives(t, c)
	if list, err := c.Execs(ctx, "one"); err != nil || len(list.Execs) != 0 {
		t.Errorf("the service's own programs are listed: %+v, %v", list, err)
	}
}

// TestNamesAreBytes keeps a name that is no UTF-8 as it is on every way in and out.
func TestNamesAreBytes(t *testing.T) {
	b := newBed(t, "")
	c, ctx := b.start(), patient(t)
	if _, err := c.CreateSandbox(ctx, box("one")); err != nil {
		t.Fatal(err)
	}
	const odd, dir = "caf\xe9 \xff", "/workload/d\xfe"
	if err := c.Mkdir(ctx, "one", wire.MkdirRequest{Path: dir}); err != nil {
		t.Fatal(err)
	}
	if info, err := c.WriteFile(ctx, "one", dir+"/first", strings.NewReader("x"), client.WriteOptions{}); err != nil || info.NameBytes != nil {
		t.Fatalf("wrote %+v, %v", info, err)
	}
	if err := c.MoveFile(ctx, "one", wire.MoveRequest{From: dir + "/first", To: dir + "/" + odd}); err != nil {
		t.Fatal(err)
	}
	info, err := c.StatFile(ctx, "one", dir+"/"+odd, false)
	if err != nil || info.Name != odd || info.Size != 1 {
		t.Errorf("looked at %+v, %v", info, err)
	}
	listed := ""
	for e, err := range c.ListFiles(ctx, "one", dir) {
		if listed += e.Name; err != nil {
			t.Fatal(err)
		}
	}
	if listed != odd {
		t.Errorf("listed %q, want %q", listed, odd)
	}
	r, err := c.ReadFile(ctx, "one", dir+"/"+listed)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); r.Close() != nil || err != nil || string(got) != "x" {
		t.Errorf("read %q, %v", got, err)
	}
	out, err := c.ExportFiles(ctx, "one", "/workload")
	if err != nil {
		t.Fatal(err)
	}
	archive, err := io.ReadAll(out)
	if out.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ImportFiles(ctx, "one", "/tmp/copy", bytes.NewReader(archive)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.StatFile(ctx, "one", "/tmp/copy/d\xfe/"+odd, false); err != nil {
		t.Errorf("an archive loses the name: %v", err)
	}
	if err := c.RemoveFile(ctx, "one", dir+"/"+odd, false); err != nil {
		t.Error(err)
	}
	if _, err := c.ReadFile(ctx, "one", dir+"/"+odd); !client.IsKind(err, "no_file") || !strings.Contains(err.Error(), `/caf\xe9 \xff"`) {
		t.Errorf("the error does not name the file: %v", err)
	}
}

// archives takes a directory out and puts it in again elsewhere.
func archives(t *testing.T, c *client.Client) {
	t.Helper()
	ctx := patient(t)
	out, err := c.ExportFiles(ctx, "one", "/workload")
	if err != nil {
		t.Fatal(err)
	}
	archive, err := io.ReadAll(out)
	if out.Close(); err != nil {
		t.Fatal(err)
	}
	found := 0
	for in := tar.NewReader(bytes.NewReader(archive)); ; found++ {
		if _, err := in.Next(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	done, err := c.ImportFiles(ctx, "one", "/tmp/copy", bytes.NewReader(archive))
	if err != nil || found < 2 || done.Entries < 2 {
		t.Fatalf("took out %d and put in %+v, %v", found, done, err)
	}
	if info, err := c.StatFile(ctx, "one", "/tmp/copy/e", false); err != nil || info.Mode != 0o640 {
		t.Errorf("what was put in is %+v, %v", info, err)
	}
	if _, err := c.ImportFiles(ctx, "one", "/tmp/copy", strings.NewReader("no archive at all")); !client.IsKind(err, "bad_archive") {
		t.Errorf("put in nonsense: %v", err)
	}
}
