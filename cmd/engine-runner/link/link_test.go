package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/cmd/engine-runner/lock"
	"github.com/direct-oci/engine/engine"
)

func TestURLs(t *testing.T) {
	for url, good := range map[string]bool{
		"wss://plane.example/link": true, "wss://127.0.0.1:7443/link": true, "ws://127.0.0.1:1/link": true, "ws://[::1]:1": true, "ws://localhost:1/x": true,
		"ws://plane.example/link": false, "ws://10.0.0.1/": false, "https://plane.example": false, "wss://": false, "wss:///x": false, "": false,
		"wss://user:word@plane.example": false, "wss://plane.example/?token=x": false, "ws://localhost.evil.example/": false, "ws://127.0.0.1.evil.example/": false,
	} {
		if err := wire.CheckURL(url); (err == nil) != good {
			t.Errorf("CheckURL(%q) = %v", url, err)
		}
	}
	o := options(t.TempDir(), "ws://plane.example")
	var e *engine.Error
	if _, err := Open(o); !errors.As(err, &e) || e.Kind != "bad_config" {
		t.Errorf("Open = %v", err)
	}
	o = options(t.TempDir(), "ws://127.0.0.1:1")
	o.Identity = "a\nb"
	if _, err := Open(o); !errors.As(err, &e) || e.Kind != "bad_config" {
		t.Errorf("Open = %v", err)
	}
}

func TestBackoff(t *testing.T) {
	b := backoff{least: time.Second, most: time.Minute}
	for i := range 20 {
		want := min(time.Second<<i, time.Minute)
		if got := b.next(); got < want/2 || got > want {
			t.Errorf("wait %d = %v, want between %v and %v", i, got, want/2, want)
		}
	}
	b.reset()
	if got := b.next(); got > time.Second {
		t.Errorf("after reset: %v", got)
	}
}

// TestInvocation goes from hello to ack.
func TestInvocation(t *testing.T) {
	dir, h := t.TempDir(), newHand(t)
	h.start(options(dir, h.url))
	proof := h.greet()
	if len(proof.Capabilities) != 3 || proof.Capabilities[1].Name != "kept" || string(proof.Capabilities[1].Params) != `{"type":"object"}` || proof.Capacity.Max != 8 {
		t.Errorf("proof = %+v", proof)
	}
	h.send(h.invoke("i:1", "gone", job{N: 7, Lines: 3}))
	if s := expect[*wire.State](h); s.ID != "i:1" || s.State != wire.Running {
		t.Errorf("state = %+v", s)
	}
	if l := expect[*wire.Log](h); l.ID != "i:1" || l.First != 1 || !strings.HasPrefix(l.Lines[0], "0") {
		t.Errorf("log = %+v", l)
	}
	r, sealed := h.result("i:1")
	if r.Error != nil || string(r.Output) != `{"n":7,"text":""}` || r.Resumed || r.Receipt == nil || r.Call != callID(identity, "i:1") || r.Lines != 3 {
		t.Errorf("result = %+v", r)
	}
	if _, again := h.result("i:1"); string(again.Body) != string(sealed.Body) {
		t.Error("what is sent again without an acknowledgement differs")
	}
	h.send(h.key.Ack("i:1", sealed.Body))
	for c := expect[*wire.Capacity](h); c.OutboxBytes > 0 || c.Running > 0; c = expect[*wire.Capacity](h) {
	}
	if left, err := filepath.Glob(filepath.Join(dir, "link/calls/*")); err != nil || len(left) > 0 {
		t.Errorf("left in the outbox: %q, %v", left, err)
	}
}

// TestRefusalsAreResults wants what the capability package refuses to be answered, and
// an approval to be carried through.
func TestRefusalsAreResults(t *testing.T) {
	dir, h := t.TempDir(), newHand(t)
	o := options(dir, h.url)
	h.start(o)
	h.greet()
	h.send(h.invoke("no", "kept", job{}))
	if r, _ := h.result("no"); r.Error == nil || r.Error.Kind != "not_approved" || r.Output != nil && string(r.Output) != "null" {
		t.Errorf("result = %+v", r)
	}
	h.send(h.key.NewRequest(wire.TypeReview, "look", time.Now(), h.body("kept", job{N: 1})))
	sealed := expect[*wire.Sealed](h)
	for sealed.Type != wire.TypeReviewed {
		sealed = expect[*wire.Sealed](h)
	}
	review, err := wire.DecodeReview(sealed.Body)
	if err != nil || !h.key.Unbroken(*sealed) || review.Hazard != "write" || !strings.Contains(review.Text, "stronger") {
		t.Fatalf("review = %+v, %v", review, err)
	}
	s, err := approval.New(review.Bound, review.Title, "alice", time.Now().Add(-time.Minute), time.Now().Add(time.Hour), 1)
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := s.Sign(alice())
	if err != nil {
		t.Fatal(err)
	}
	var call wire.Call
	if err := json.Unmarshal(h.body("kept", job{N: 1}), &call); err != nil {
		t.Fatal(err)
	}
	call.Approval = &envelope
	body, err := json.Marshal(call)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"", "approval_used"} {
		id := fmt.Sprint("approved-", i)
		h.send(h.key.NewRequest(wire.TypeInvoke, id, time.Now(), body))
		if r, _ := h.result(id); kindOf(r.Error) != want {
			t.Errorf("result = %+v, want kind %q", r, want)
		}
	}
	if n := len(starts(t, dir)); n != 1 {
		t.Errorf("%d were begun, want one", n)
	}
}

func kindOf(e *engine.Error) string {
	if e == nil {
		return ""
	}
	return e.Kind
}

// TestWrongSecret lets each end meet another that does not know the secret.
func TestWrongSecret(t *testing.T) {
	h := newHand(t)
	h.key = wire.NewKey([]byte("another secret of many bytes"), identity)
	h.start(options(t.TempDir(), h.url))
	h.accept()
	hello := expect[*wire.Hello](h)
	nonce := wire.NewNonce(32)
	h.send(wire.Challenge{Type: wire.TypeChallenge, Protocol: wire.Protocol, Nonce: nonce, MAC: h.key.Greet(wire.Plane, hello.Nonce, nonce)})
	if m, err := h.read(); err == nil {
		t.Errorf("a plane without the secret was told %T: %+v", m, m)
	}
	// What a runner says of itself is worth nothing as a plane's proof.
	h.key = wire.NewKey([]byte(secret), identity)
	h.accept()
	hello = expect[*wire.Hello](h)
	h.send(wire.Challenge{Type: wire.TypeChallenge, Protocol: wire.Protocol, Nonce: nonce, MAC: h.key.Greet(wire.Runner, hello.Nonce, nonce)})
	if m, err := h.read(); err == nil {
		t.Errorf("a plane with a runner's proof was told %T: %+v", m, m)
	}
	h.greet() // and it comes again
}

func TestShortSecret(t *testing.T) {
	h := newHand(t)
	o := options(t.TempDir(), h.url)
	o.Secret = func(context.Context) ([]byte, error) { return []byte("too short"), nil }
	h.start(o)
	select {
	case <-h.conns:
		t.Error("a runner with a secret of nine bytes dials")
	case <-time.After(300 * time.Millisecond):
	}
}

// TestHostileFrames sends what must not have an effect.
func TestHostileFrames(t *testing.T) {
	dir, h := t.TempDir(), newHand(t)
	h.start(options(dir, h.url))
	good := func() wire.Request { return h.invoke("good-"+wire.NewNonce(4), "gone", job{}) }
	old := h.key.NewRequest(wire.TypeInvoke, "old", time.Now().Add(-6*time.Minute), h.body("gone", job{}))
	early := h.key.NewRequest(wire.TypeInvoke, "early", time.Now().Add(6*time.Minute), h.body("gone", job{}))
	within := h.key.NewRequest(wire.TypeInvoke, "within", time.Now().Add(-4*time.Minute), h.body("gone", job{N: 1}))
	others := wire.NewKey([]byte(secret), "runner-2").NewRequest(wire.TypeInvoke, "others", time.Now(), h.body("gone", job{}))
	asCancel := good()
	asCancel.Type = wire.TypeReview

	h.greet()
	for name, r := range map[string]wire.Request{"old": old, "early": early} {
		h.send(r)
		if kind := h.refused(); kind != "stale" {
			t.Errorf("%s: %s", name, kind)
		}
	}
	bad := h.key.NewRequest(wire.TypeInvoke, "bad", time.Now(), []byte(`{"project":"shop"}`))
	h.send(bad)
	if kind := h.refused(); kind != "bad_arguments" {
		t.Errorf("a body that is no call: %s", kind)
	}
	h.send(within)
	if r, _ := h.result("within"); r.Error != nil {
		t.Errorf("signed four minutes ago: %+v", r)
	}
	reused := h.key.NewRequest(wire.TypeCancel, "reused", time.Now(), nil)
	h.send(reused)
	h.send(reused)
	if first, second := h.refused(), h.refused(); first != "not_found" || second != "replayed" {
		t.Errorf("a cancel, twice: %s, then %s", first, second)
	}
	other := h.key.NewRequest(wire.TypeInvoke, "within", time.Now(), h.body("gone", job{N: 2}))
	h.send(other)
	if kind := h.refused(); kind != "exists" {
		t.Errorf("another body under the same id: %s", kind)
	}
	h.conn.CloseNow()

	change := func(edit func(*wire.Request)) []byte {
		r := good()
		edit(&r)
		data, err := wire.Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for name, frame := range map[string][]byte{
		"a changed body":      change(func(r *wire.Request) { r.Body[len(r.Body)/2] ^= 1 }),
		"a changed id":        change(func(r *wire.Request) { r.ID += "x" }),
		"a changed time":      change(func(r *wire.Request) { r.Time++ }),
		"a changed nonce":     change(func(r *wire.Request) { r.Nonce = wire.NewNonce(16) }),
		"a changed type":      change(func(r *wire.Request) { r.Type = wire.TypeReview }),
		"another MAC":         change(func(r *wire.Request) { r.MAC = strings.Repeat("0", 64) }),
		"for another runner":  change(func(r *wire.Request) { *r = others }),
		"no JSON":             []byte(`{"type":"invoke"`),
		"an unknown type":     []byte(`{"type":"exec","command":"id"}`),
		"an unknown member":   append(change(func(*wire.Request) {})[:1], append([]byte(`"extra":1,`), change(func(*wire.Request) {})[1:]...)...),
		"a member by case":    []byte(strings.Replace(string(change(func(*wire.Request) {})), `"nonce"`, `"Nonce"`, 1)),
		"a runner's message":  []byte(`{"type":"capacity","max":1,"running":0,"draining":false,"outboxBytes":0,"outboxMax":0}`),
		"a second challenge":  []byte(`{"type":"challenge","protocol":1,"nonce":"` + wire.NewNonce(32) + `","mac":"` + wire.NewNonce(32) + `"}`),
		"a false ack":         []byte(`{"type":"ack","id":"within","mac":"` + wire.NewNonce(32) + `"}`),
		"more than a message": make([]byte, wire.MaxMessage+2),
	} {
		h.greet()
		h.conn.Write(h.context(), websocket.MessageText, frame)
		if err := h.gone(); websocket.CloseStatus(err) == websocket.StatusNormalClosure {
			t.Errorf("%s: %v", name, err)
		}
	}
	h.greet()
	h.conn.Write(h.context(), websocket.MessageBinary, change(func(*wire.Request) {}))
	h.gone()

	h.greet()
	if r, _ := h.result("within"); r.Error != nil {
		t.Errorf("after all that: %+v", r)
	}
	if got := starts(t, dir); len(got) != 1 {
		t.Errorf("begun: %v, want the one", got)
	}
	kinds := audited(t, dir)
	for _, want := range []string{"stale", "bad_arguments", "replayed", "exists", "bad_mac"} {
		if !strings.Contains(kinds, want) {
			t.Errorf("the audit log has %q, want %s among them", kinds, want)
		}
	}
}

// TestReplayAfterRestart sends again what was done, to the next process.
func TestReplayAfterRestart(t *testing.T) {
	dir, h := t.TempDir(), newHand(t)
	o := options(dir, h.url)
	stop := h.start(o)
	h.greet()
	first := h.invoke("one", "gone", job{N: 1})
	h.send(first)
	h.send(first)
	_, sealed := h.result("one")
	h.send(h.key.Ack("one", sealed.Body))
	for c := expect[*wire.Capacity](h); c.OutboxBytes > 0; c = expect[*wire.Capacity](h) {
	}
	for _, restart := range []bool{false, true} {
		if restart {
			stop()
			h.start(o)
			h.greet()
		}
		h.send(first)
		if kind := h.refused(); kind != "replayed" {
			t.Errorf("restart %v: the same request: %s", restart, kind)
		}
		h.send(h.invoke("one", "gone", job{N: 1}))
		if kind := h.refused(); kind != "answered" {
			t.Errorf("restart %v: the same id, signed anew: %s", restart, kind)
		}
		moved := h.key.NewRequest(wire.TypeInvoke, "two", time.Now(), first.Body)
		if moved.Nonce = first.Nonce; h.key.Signed(moved) {
			t.Error("the nonce is not signed")
		}
	}
	if got := starts(t, dir); len(got) != 1 || got[callID(identity, "one")] != 1 {
		t.Errorf("begun: %v, want once", got)
	}
}

// TestResultsWait stops the process between a result and its acknowledgement.
func TestResultsWait(t *testing.T) {
	dir, h := t.TempDir(), newHand(t)
	o := options(dir, h.url)
	stop := h.start(o)
	h.greet()
	h.send(h.invoke("one", "gone", job{N: 1}))
	_, before := h.result("one")
	stop()
	h.start(o)
	h.greet()
	if _, after := h.result("one"); string(after.Body) != string(before.Body) {
		t.Errorf("the result is another after a restart:\n%s\n%s", before.Body, after.Body)
	}
	if got := starts(t, dir); got[callID(identity, "one")] != 1 {
		t.Errorf("begun: %v, want once", got)
	}
}

func TestCancel(t *testing.T) {
	dir, h := t.TempDir(), newHand(t)
	h.start(options(dir, h.url))
	h.greet()
	h.send(h.invoke("long", "gone", job{Ms: 60_000}))
	expect[*wire.State](h)
	h.send(h.key.NewRequest(wire.TypeCancel, "long", time.Now(), nil))
	if r, _ := h.result("long"); kindOf(r.Error) != "cancelled" {
		t.Errorf("result = %+v", r)
	}
}

// TestLimits asks for more than may be under way, or wait.
func TestLimits(t *testing.T) {
	dir, h := t.TempDir(), newHand(t)
	o := options(dir, h.url)
	o.MaxRuns, o.MaxOutbox = 2, 2*reserve+1<<20
	h.start(o)
	h.greet()
	for _, id := range []string{"a", "b"} {
		h.send(h.invoke(id, "gone", job{Ms: 60_000}))
		expect[*wire.State](h)
	}
	// A flood: everything is answered, nothing of it is kept.
	for range 500 {
		h.send(h.invoke("x-"+wire.NewNonce(8), "gone", job{}))
		if kind := h.refused(); kind != "at_capacity" {
			t.Fatalf("a third one: %s", kind)
		}
	}
	files, err := os.ReadDir(filepath.Join(dir, "link/calls"))
	if err != nil || len(files) != 2 {
		t.Errorf("%d files in the outbox, %v, want two", len(files), err)
	}
	h.send(h.key.NewRequest(wire.TypeCancel, "a", time.Now(), nil))
	h.result("a")
	// With its result it would take more than there is.
	body := append(h.body("gone", job{}), []byte(strings.Repeat(" ", 2<<20))...)
	h.send(h.key.NewRequest(wire.TypeInvoke, "bigger", time.Now(), body))
	if kind := h.refused(); kind != "outbox_full" {
		t.Errorf("with a full outbox: %s", kind)
	}
	h.send(h.invoke("small", "gone", job{}))
	if r, _ := h.result("small"); r.Error != nil {
		t.Errorf("result = %+v", r)
	}
}

// TestTooLargeResult wants an answer all the same.
func TestTooLargeResult(t *testing.T) {
	dir, h := t.TempDir(), newHand(t)
	o := options(dir, h.url)
	o.times.ping, o.times.write = patience, patience
	h.start(o)
	h.greet()
	h.send(h.invoke("large", "gone", job{Bytes: wire.MaxBody}))
	if r, _ := h.result("large"); kindOf(r.Error) != "result_too_large" || r.Receipt == nil {
		t.Errorf("result = %+v", r)
	}
	h.send(h.invoke("just", "gone", job{Bytes: wire.MaxBody - 10_000}))
	if r, _ := h.result("just"); r.Error != nil || len(r.Output) < wire.MaxBody-10_000 {
		t.Errorf("result of %d bytes, %+v", len(r.Output), r.Error)
	}
}

// TestSlowPlane has a run log more than a plane reads that has stopped to.
func TestSlowPlane(t *testing.T) {
	dir, h := t.TempDir(), newHand(t)
	o := options(dir, h.url)
	o.times.write, o.times.ping = time.Minute, time.Minute
	h.start(o)
	h.greet()
	h.send(h.invoke("noisy", "gone", job{Lines: 200_000, Bytes: 1000}))
	// Nothing is read. The run ends all the same, which the outbox shows.
	deadline := time.Now().Add(patience)
	for {
		if found, _ := filepath.Glob(filepath.Join(dir, "link/calls/*.result")); len(found) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the run waits for the plane")
		}
		time.Sleep(5 * time.Millisecond)
	}
	var got, dropped, next int64
	for {
		m, err := h.read()
		if err != nil {
			t.Fatal(err)
		}
		if l, ok := m.(*wire.Log); ok {
			if l.First < next {
				t.Fatalf("line %d after %d", l.First, next)
			}
			got, dropped, next = got+int64(len(l.Lines)), l.Dropped, l.First+int64(len(l.Lines))
		}
		if s, ok := m.(*wire.Sealed); ok {
			r, err := wire.DecodeResult(s.Body)
			if err != nil || r.Lines != 200_000 || got+dropped != r.Lines || dropped == 0 || next != r.Lines+1 {
				t.Errorf("%d lines came and %d were dropped of %d, the last is %d: %v", got, dropped, r.Lines, next-1, err)
			}
			return
		}
	}
}

func TestDrain(t *testing.T) {
	dir, h := t.TempDir(), newHand(t)
	o := options(dir, h.url)
	drain := make(chan struct{})
	o.Stop = drain
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { l.Run(context.Background()); close(ended) }()
	h.greet()
	h.send(h.invoke("one", "gone", job{Ms: 300}))
	expect[*wire.State](h)
	close(drain)
	for c := expect[*wire.Capacity](h); !c.Draining; c = expect[*wire.Capacity](h) {
	}
	h.send(h.invoke("two", "gone", job{}))
	if kind := h.refused(); kind != "draining" {
		t.Errorf("while draining: %s", kind)
	}
	_, sealed := h.result("one")
	h.send(h.key.Ack("one", sealed.Body))
	if err := h.gone(); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("the connection ended with %v", err)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("Run does not return")
	}
}

// TestTwoRunners wants the second one on a directory refused.
func TestTwoRunners(t *testing.T) {
	dir, h := t.TempDir(), newHand(t)
	o := options(dir, h.url)
	h.start(o)
	h.greet()
	var e *engine.Error
	if _, err := Open(o); !errors.As(err, &e) || e.Kind != "no_outbox" || !strings.Contains(e.Message, "another runner") {
		t.Errorf("Open = %v", err)
	}
}

// TestLockOfTheDead lets go of the outbox's lock a moment later, as a child does that a
// killed runner has just forked.
func TestLockOfTheDead(t *testing.T) {
	dir, h := t.TempDir(), newHand(t)
	o := options(dir, h.url)
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	held, err := os.Create(filepath.Join(o.Dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Hold(held); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, func() { held.Close() })
	h.start(o)
	h.greet()
}

// TestDeadPlane lets a plane hang without a word: the runner notices.
func TestDeadPlane(t *testing.T) {
	h := newHand(t)
	h.start(options(t.TempDir(), h.url))
	h.accept()
	h.greet() // the first one has had no answer in time
	h.greet() // nor have the pings of the second, since nothing is read
}

// TestCapabilitiesChange wants news of what is offered.
func TestCapabilitiesChange(t *testing.T) {
	dir, h := t.TempDir(), newHand(t)
	o := options(dir, h.url)
	var runner atomic.Pointer[capability.Runner]
	runner.Store(newRunner(dir))
	o.Runner = runner.Load
	h.start(o)
	h.greet()
	next := newRunner(dir)
	project := next.Projects["shop"]
	project.Built = project.Built[:1]
	next.Projects["shop"] = project
	runner.Store(next)
	if c := expect[*wire.Capabilities](h); len(c.Capabilities) != 1 || c.Capabilities[0].Name != "gone" {
		t.Errorf("capabilities = %+v", c)
	}
}
