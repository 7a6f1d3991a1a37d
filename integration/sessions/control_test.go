package sessions

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/integration/testenv"
)

// TestPause freezes a session: its programs stand still, no new one starts, and it can
// be killed as it is.
func TestPause(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		c := b.exec(id, shell("while :; do echo tick; sleep 0.02; done"))
		ticks := func() int64 {
			stdout, _ := b.output(id, c.ID())
			return int64(strings.Count(stdout, "tick"))
		}
		testenv.WaitFor(t, testenv.Patience, "the program to tick", func() bool { return ticks() > 3 })
		for range 2 {
			if err := b.Pause(within(t), id); err != nil {
				t.Fatal(err)
			}
		}
		if u, err := b.Usage(id); err != nil || !u.Paused {
			t.Errorf("usage = %s, %v, want paused", show(u), err)
		}
		time.Sleep(100 * time.Millisecond) // what was in the pipe is on record by then
		before := ticks()
		time.Sleep(300 * time.Millisecond)
		if after := ticks(); after != before {
			t.Errorf("%d ticks became %d while the session was paused", before, after)
		}
		_, err := b.Exec(within(t), id, shell("true"))
		wantKind(t, err, "paused")
		for range 2 {
			if err := b.Resume(within(t), id); err != nil {
				t.Fatal(err)
			}
		}
		testenv.WaitFor(t, testenv.Patience, "the program to tick again", func() bool { return ticks() > before })
		if u, err := b.Usage(id); err != nil || u.Paused || u.BusyCPUSecs == nil {
			t.Errorf("usage = %s, %v, want not paused", show(u), err)
		}
		if err := b.Pause(within(t), id); err != nil {
			t.Fatal(err)
		}
		if err := b.Kill(within(t), id); err != nil {
			t.Fatal(err)
		}
		if r := b.end(c); r.Reason != engine.ReasonCancelled {
			t.Errorf("result = %s, want cancelled", show(r))
		}
	})
}

// TestTimeGoesOnWhilePaused has the time to live pass, and a program's timeout.
func TestTimeGoesOnWhilePaused(t *testing.T) {
	b := newBed(t, "embedded")
	id := b.session(func(r *engine.Request) { r.Limits.Timeout = 1500 * time.Millisecond })
	e := shell("sleep 600")
	e.Timeout = 200 * time.Millisecond
	c := b.exec(id, e)
	if err := b.Pause(within(t), id); err != nil {
		t.Fatal(err)
	}
	rec, err := b.Await(within(t), id)
	if err != nil || *rec.Result.Reason != engine.ReasonTimeout {
		t.Errorf("record = %s, %v, want timeout", show(rec), err)
	}
	if r := b.end(c); r.Reason != engine.ReasonTimeout {
		t.Errorf("result = %s, want timeout", show(r))
	}
}

// TestDeadline proves that a session ends when its record says, and that renewing moves
// that, in both directions.
func TestDeadline(t *testing.T) {
	b := newBed(t, "embedded")
	id := b.session(func(r *engine.Request) { r.Limits.Timeout = 2 * time.Second })
	start := time.Now()
	deadline, err := b.Renew(within(t), id, time.Hour)
	if err != nil || deadline.Sub(start) < time.Hour || deadline.Sub(start) > time.Hour+time.Minute {
		t.Fatalf("deadline = %v, %v, want one in an hour from %v", deadline, err, start)
	}
	rec, err := b.Load(id)
	if err != nil || rec.Deadline == nil || !rec.Deadline.Equal(deadline) {
		t.Fatalf("record = %s, %v, want deadline %v", show(rec), err, deadline)
	}
	time.Sleep(2500 * time.Millisecond)
	if _, stdout := b.run(id, "echo alive"); stdout != "alive\n" {
		t.Errorf("after its first deadline: stdout = %q", stdout)
	}
	if deadline, err = b.Renew(within(t), id, 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	rec, err = b.Await(within(t), id)
	if err != nil || *rec.Result.Reason != engine.ReasonTimeout || !rec.Result.TimedOut {
		t.Errorf("record = %s, %v, want timeout", show(rec), err)
	}
	if late := time.Since(deadline); late > 5*time.Second {
		t.Errorf("the session ended %v after its deadline", late)
	}
	_, err = b.Renew(within(t), id, time.Hour)
	wantKind(t, err, "not_running")
}

// TestIdle ends a session that nobody uses, and none that somebody does.
func TestIdle(t *testing.T) {
	b := newBed(t, "embedded")
	id := b.session(func(r *engine.Request) { r.Session.IdleTimeout = 700 * time.Millisecond })
	if _, stdout := b.run(id, "sleep 1.5; echo busy"); stdout != "busy\n" {
		t.Errorf("a program's output = %q", stdout)
	}
	for range 5 {
		time.Sleep(300 * time.Millisecond)
		if err := b.Resume(within(t), id); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	rec, err := b.Await(within(t), id)
	if err != nil || *rec.Result.Reason != engine.ReasonIdle || engine.ExitStatus(*rec.Result) != 124 {
		t.Errorf("record = %s, %v, want idle", show(rec), err)
	}
	if took := time.Since(start); took < 500*time.Millisecond || took > 20*time.Second {
		t.Errorf("the session was idle for %v", took)
	}
}

// TestRaw gives a program's streams to its caller, and puts nothing of them on record.
func TestRaw(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		e := engine.Exec{ID: "raw", Command: []string{"sh", "-c", "echo told >&2; cat"}, Raw: true}
		c := b.exec(id, e)
		data := strings.Repeat("some bytes\x00\xff", 300<<10)
		go func() {
			io.WriteString(c, data)
			c.CloseStdin()
		}()
		got, err := io.ReadAll(c)
		if err != nil || string(got) != data {
			t.Errorf("%d bytes came back of %d, %v", len(got), len(data), err)
		}
		r := b.end(c)
		wantExit(t, r, 0)
		stdout, stderr := b.output(id, "raw")
		if stdout != "" || stderr != "told\n" || r.StdoutBytes != 0 {
			t.Errorf("on record are stdout = %q and stderr = %q: %s", stdout, stderr, show(r))
		}
		// The program of a caller that goes away sees its streams end.
		e.ID, e.Command = "left", []string{"sh", "-c", "cat >/dev/null"} // one that wrote could meet its reader's end first
		if err := b.exec(id, e).Close(); err != nil {
			t.Fatal(err)
		}
		again, err := b.Attach(within(t), id, "left")
		if err != nil {
			t.Fatal(err)
		}
		wantExit(t, b.end(again), 0)
		if n, err := again.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("a later caller read %d bytes, %v", n, err)
		}
	})
}

// TestRefusals wants what cannot be done refused by kind.
func TestRefusals(t *testing.T) {
	b := newBed(t, "embedded")
	id := b.session()
	ctx := within(t)
	_, err := b.Exec(ctx, id, engine.Exec{})
	wantKind(t, err, "bad_command")
	_, err = b.Exec(ctx, id, engine.Exec{ID: "../x", Command: []string{"true"}})
	wantKind(t, err, "bad_id")
	_, err = b.Exec(ctx, id, engine.Exec{Command: []string{"true"}, Env: []string{"A"}})
	wantKind(t, err, "bad_env")
	_, err = b.Exec(ctx, "aaaaaaaaaaaaaaaa", shell("true"))
	wantKind(t, err, "not_found")
	_, err = b.Attach(ctx, id, "nothing")
	wantKind(t, err, "not_found")
	_, err = b.Attach(ctx, id, "../../../lock")
	wantKind(t, err, "not_found")
	_, err = b.LoadExec(id, "..")
	wantKind(t, err, "not_found")
	wantKind(t, b.SignalExec(ctx, id, "nothing", 9), "not_found")
	c := b.exec(id, shell("sleep 600"))
	wantKind(t, b.SignalExec(ctx, id, c.ID(), 65), "bad_signal")
	wantKind(t, c.Resize(engine.WindowSize{Rows: 1, Columns: 1}), "bad_session")
	_, err = b.Renew(ctx, id, 0)
	wantKind(t, err, "bad_limit")
	_, err = b.Start(ctx, b.request(func(r *engine.Request) { r.Command = []string{"true"} }), nil, engine.Stdio{})
	wantKind(t, err, "bad_session")
	wantKind(t, b.Remove(id), "running")
}
