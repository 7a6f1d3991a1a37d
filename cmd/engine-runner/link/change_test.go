package link

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
)

// until waits for the figures to be as they are wanted.
func (l *Link) until(t *testing.T, fine func(Figures) bool) Figures {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		f := l.Figures()
		if fine(f) {
			return f
		}
		if time.Now().After(deadline) {
			t.Fatalf("the figures stay at %+v", f)
		}
	}
}

// TestFigures follows a link through what they tell: up, at work, its plane dead, the next.
func TestFigures(t *testing.T) {
	h := newHand(t)
	o := options(t.TempDir(), h.url)
	o.times.ping = time.Second
	l, _ := startLink(t, o)
	h.accept() // and says nothing
	f := l.until(t, func(f Figures) bool { return f.Failures[unproved] > 0 })
	if f.Up || f.Connects != 0 || f.Cause == "" || !f.Heard.IsZero() {
		t.Errorf("before a plane has proved itself: %+v", f)
	}
	h.greet()
	h.send(h.invoke("one", "gone", job{}))
	h.result("one")
	h.send(h.invoke("one", "gone", job{N: 2}))
	h.refused()
	h.send(h.invoke("long", "gone", job{Ms: 60_000}))
	h.answered("long")
	quiet, stop := context.WithCancel(context.Background())
	go func() { // whoever reads answers pings
		for {
			if _, _, err := h.conn.Read(quiet); err != nil {
				return
			}
		}
	}()
	f = l.until(t, func(f Figures) bool { return f.RoundTrip > 0 })
	want := map[Verdict]int64{{"invoke", accepted, ""}: 2, {"invoke", "refused", "exists"}: 1}
	for v, n := range want {
		if f.Requests[v] != n {
			t.Errorf("%+v: %d of %v, want %d", v, f.Requests[v], f.Requests, n)
		}
	}
	if !f.Up || f.Connects != 1 || f.Cause != "" || f.Running != 1 || f.Waiting != 1 || time.Since(f.Oldest) > patience || f.In < 5 || f.Out < 5 || f.Bytes == 0 {
		t.Errorf("at work: %+v", f)
	}
	h.send(h.invoke("one", "gone", job{}))
	l.until(t, func(f Figures) bool { return f.Requests[Verdict{"invoke", duplicate, ""}] == 1 })
	stop() // nobody reads: the connection is there, and the plane is not
	f = l.until(t, func(f Figures) bool { return !f.Up })
	if f.Failures[silent]+f.Failures[ended] == 0 || f.Cause == "" || time.Since(f.Heard) > patience || time.Since(f.Since) > patience {
		t.Errorf("with a dead plane: %+v", f)
	}
	h.greet()
	if f := l.until(t, func(f Figures) bool { return f.Up }); f.Connects != 2 {
		t.Errorf("with the next one: %+v", f)
	}
}

// answered reads until the state of this invocation comes.
func (h *hand) answered(id string) {
	h.t.Helper()
	for expect[*wire.State](h).ID != id {
	}
}

// TestChange moves a link to another plane, away from every plane, and back, while an
// invocation is under way and another's result waits: both are answered, and were begun
// once.
func TestChange(t *testing.T) {
	dir, first, second := t.TempDir(), newHand(t), newHand(t)
	o := options(dir, first.url)
	l, _ := startLink(t, o)
	first.greet()
	first.send(first.invoke("done", "gone", job{N: 1}))
	_, before := first.result("done")
	first.send(first.invoke("long", "gone", job{N: 2, Ms: 60_000}))
	first.answered("long")
	change := func(s Settings) {
		t.Helper()
		apply, err := l.Change(s)
		if err != nil {
			t.Fatal(err)
		}
		apply()
	}
	for name, bad := range map[string]Settings{
		"to where no secret may go": {URL: "ws://plane.example/link", Secret: o.Secret},
		"with no certificates":      {URL: second.url, Secret: o.Secret, CAFile: dir + "/none"},
	} {
		var e *engine.Error
		if _, err := l.Change(bad); !errors.As(err, &e) || e.Kind != "bad_config" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if f := l.Figures(); !f.Up || f.URL != first.url {
		t.Errorf("what is refused has changed something: %+v", f)
	}
	change(Settings{})
	first.gone()
	if f := l.until(t, func(f Figures) bool { return !f.Up }); f.URL != "" || f.Failures[ended] != 0 {
		t.Errorf("without a plane: %+v", f)
	}
	s := o.Settings
	s.URL, s.MaxRuns = second.url, 1
	change(s)
	if p := second.greet(); p.Capacity.Max != 1 || p.Capacity.Running != 1 {
		t.Errorf("the limits that it tells are %+v", p.Capacity)
	}
	second.send(second.invoke("more", "gone", job{}))
	if kind := second.refused(); kind != "at_capacity" {
		t.Errorf("above the new limit: %s", kind)
	}
	if _, after := second.result("done"); string(after.Body) != string(before.Body) {
		t.Errorf("the result is another:\n%s\n%s", before.Body, after.Body)
	}
	second.send(second.key.NewRequest(wire.TypeCancel, "long", time.Now(), nil))
	if r, _ := second.result("long"); kindOf(r.Error) != "cancelled" || r.Resumed {
		t.Errorf("what was under way came to %+v", r)
	}
	for call, n := range starts(t, dir) {
		if n != 1 {
			t.Errorf("call %s was begun %d times", call, n)
		}
	}
	select {
	case <-first.conns:
		t.Error("it dials the plane that it was moved away from")
	default:
	}
}
