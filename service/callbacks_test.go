package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/service/callback"
	"github.com/direct-oci/engine/service/outbox"
)

var hookSecret = []byte("c4nary-of-the-callback-key")

// hook takes callbacks. It notes each event once, in the order they came.
type hook struct {
	*httptest.Server
	mu   sync.Mutex
	got  map[string][]string // by sandbox id: what each event says
	last map[string]uint64
	errs []string
	down bool
}

func newHook(t testing.TB) *hook {
	h := &hook{got: map[string][]string{}, last: map[string]uint64{}}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hook) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	data, _ := io.ReadAll(req.Body)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	var b struct {
		SandboxID string
		Sequence  uint64
		Event     callbackEvent
	}
	if err := callback.Verify(hookSecret, req.Header, data, time.Now(), time.Minute); err != nil {
		h.errs = append(h.errs, err.Error())
	}
	if err := json.Unmarshal(data, &b); err != nil {
		h.errs = append(h.errs, err.Error())
	}
	switch last := h.last[b.SandboxID]; {
	case b.Sequence <= last:
		return // again, because the answer was lost
	case b.Sequence != last+1:
		h.errs = append(h.errs, fmt.Sprintf("event %d of %s came after %d", b.Sequence, b.SandboxID, last))
	}
	h.last[b.SandboxID] = b.Sequence
	text := b.Event.Type + " " + b.Event.ExecID
	for _, p := range b.Event.Output {
		text += p.Stream + "=" + string(p.Data) + ";"
	}
	if b.Event.Type == "dropped" {
		text += fmt.Sprintf("%d events %d bytes", b.Event.Events, b.Event.Bytes)
	}
	h.got[b.SandboxID] = append(h.got[b.SandboxID], strings.TrimSpace(text))
}

func (h *hook) setDown(down bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = down
}

// said is what came of a sandbox, in order.
func (h *hook) said(id string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.got[id], "\n")
}

func (h *hook) check(t testing.TB) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, err := range h.errs {
		t.Error(err)
	}
}

// hooked is a world whose sandboxes may call back to this host.
func hooked(t testing.TB) (*world, *hook) {
	w := newWorld(t)
	w.config.Callbacks = callback.Config{HTTP: true, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Pause: 20 * time.Millisecond}
	return w, newHook(t)
}

func (h *hook) spec(name string) Spec {
	s := spec(name, "ann")
	s.Callback = &Callback{h.URL + "/events?token=1", hookSecret}
	return s
}

const wholeLife = `created
ready
exec.started x1
exec.output x1stdout=one ;stderr=two ;stdout=three ;stderr=four;
exec.exit x1
exec.started x2
exec.output x2stdout=one ;stderr=two ;stdout=three ;stderr=four;
exec.exit x2
ended`

func live(t testing.TB, m *Manager, name string) {
	t.Helper()
	for _, id := range []string{"x1", "x2"} {
		if _, err := m.Exec(t.Context(), name, engine.Exec{ID: id, Command: []string{"x"}}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCallbacksTellAWholeLifeInOrder(t *testing.T) {
	w, h := hooked(t)
	w.onExec = talkative
	m := w.manager(t)
	sb := mustCreate(t, m, h.spec("work"))
	live(t, m, "work")
	until(t, "it is told that both ended", func() bool { return strings.HasSuffix(h.said(sb.ID), "exec.exit x2") })
	if err := m.Teardown(t.Context(), "work"); err != nil {
		t.Fatal(err)
	}
	until(t, "it is told that it ended", func() bool { return h.said(sb.ID) == wholeLife })
	h.check(t)
	w.wantNothingLeft(t, m)
}

// TestCallbacksOutliveReceiversAndManagers takes the receiver away, replaces the Manager
// again and again, and tears the sandbox down before anything was taken.
func TestCallbacksOutliveReceiversAndManagers(t *testing.T) {
	w, h := hooked(t)
	w.onExec = talkative
	h.setDown(true)
	m := w.manager(t)
	sb := mustCreate(t, m, h.spec("work"))
	m.Close()
	m = w.manager(t)
	live(t, m, "work")
	m.Close()
	m = w.manager(t)
	if err := m.Teardown(t.Context(), "work"); err != nil {
		t.Fatal(err)
	}
	m.Close()
	if said := h.said(sb.ID); said != "" {
		t.Fatalf("a receiver that was down was told %q", said)
	}
	h.setDown(false)
	m = w.manager(t)
	until(t, "all is told", func() bool { return h.said(sb.ID) == wholeLife })
	h.check(t)
	w.wantNothingLeft(t, m)
}

// TestTwoManagersSendOnce has two of them on one state directory.
func TestTwoManagersSendOnce(t *testing.T) {
	w, h := hooked(t)
	w.onExec = talkative
	a, b := w.manager(t), w.manager(t)
	var ids []string
	for i := range 10 {
		m := []*Manager{a, b}[i%2]
		name := fmt.Sprint("s", i)
		ids = append(ids, mustCreate(t, m, h.spec(name)).ID)
		live(t, b, name)
	}
	if n, err := a.TeardownOwner(t.Context(), "ann"); n != 10 || err != nil {
		t.Fatalf("TeardownOwner = %d, %v", n, err)
	}
	for _, id := range ids {
		until(t, "all is told of "+id, func() bool { return h.said(id) == wholeLife })
	}
	h.check(t)
	w.wantNothingLeft(t, a)
}

// TestFullOutboxLosesOutputAndSaysSo tears down a sandbox whose receiver was never
// there, with more output than the outbox holds.
func TestFullOutboxLosesOutputAndSaysSo(t *testing.T) {
	w, h := hooked(t)
	w.config.Callbacks.Capacity = 40_000
	w.onExec = func(engine.Exec) []piece { return []piece{{journal.Stdout, strings.Repeat("x", 20_000)}} }
	h.setDown(true)
	m := w.manager(t)
	sb := mustCreate(t, m, h.spec("work"))
	for i := range 4 {
		if _, err := m.Exec(t.Context(), "work", engine.Exec{ID: fmt.Sprint("x", i), Command: []string{"x"}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Teardown(t.Context(), "work"); err != nil {
		t.Fatal(err)
	}
	h.setDown(false)
	until(t, "its end is told", func() bool { return strings.HasSuffix(h.said(sb.ID), "\nended") })
	said := h.said(sb.ID)
	if !strings.Contains(said, "dropped 3 events 60000 bytes\nended") {
		t.Errorf("it was told\n%.3000s\nand not that three events of 60000 bytes were lost", strings.ReplaceAll(said, strings.Repeat("x", 20_000), "…"))
	}
	for i := range 4 {
		if !strings.Contains(said, fmt.Sprint("exec.exit x", i)) {
			t.Errorf("the exit of x%d is missing", i)
		}
	}
	h.check(t)
	w.wantNothingLeft(t, m)
}

// TestCallbackSecretIsInOneFile looks for it everywhere below the state directory.
func TestCallbackSecretIsInOneFile(t *testing.T) {
	w, h := hooked(t)
	m := w.manager(t)
	sb := mustCreate(t, m, h.spec("work"))
	encoded, _ := json.Marshal(hookSecret)
	var holders []string
	err := filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if strings.Contains(string(data), string(hookSecret)) || strings.Contains(string(data), strings.Trim(string(encoded), `"`)) {
			holders = append(holders, path)
			if info, err := d.Info(); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v (%v)", path, info.Mode(), err)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(holders) != 1 || filepath.Base(holders[0]) != targetName {
		t.Errorf("the secret is in %v", holders)
	}
	for _, dir := range []string{"callbacks", "callbacks/" + sb.ID, "sandboxes", "sandboxes/work"} {
		if info, err := os.Stat(filepath.Join(w.config.StateDir, dir)); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("directory %s has mode %v (%v)", dir, info.Mode(), err)
		}
	}
}

// TestKilledSenders kills processes that send, while others create and tear down. What
// comes is whole and in order all the same.
func TestKilledSenders(t *testing.T) {
	w, h := hooked(t)
	w.onExec = talkative
	m := w.manager(t)
	sb := mustCreate(t, m, h.spec("work"))
	m.Close()
	for i := range 6 {
		cmd, _ := order{Dir: w.dir, Do: "send"}.process(t)
		time.Sleep(time.Duration(60+40*i) * time.Millisecond)
		if i == 2 {
			exec, err := w.fake.Exec(t.Context(), sb.ID, engine.Exec{ID: "x1", Command: []string{"x"}})
			if err != nil {
				t.Fatal(exec, err)
			}
		}
		if i == 4 {
			w.fake.Exec(t.Context(), sb.ID, engine.Exec{ID: "x2", Command: []string{"x"}})
		}
		cmd.Process.Kill()
		cmd.Wait()
	}
	m = w.manager(t)
	if err := m.Teardown(t.Context(), "work"); err != nil {
		t.Fatal(err)
	}
	until(t, "all is told", func() bool { return strings.HasSuffix(h.said(sb.ID), "\nended") })
	if said := h.said(sb.ID); said != wholeLife {
		t.Errorf("it was told\n%s\nwant\n%s", said, wholeLife)
	}
	h.check(t)
	w.wantNothingLeft(t, m)
}

// TestOutputIsToldOnceAcrossManagers has a program go on while Managers come and go.
func TestOutputIsToldOnceAcrossManagers(t *testing.T) {
	w, h := hooked(t)
	m := w.manager(t)
	sb := mustCreate(t, m, h.spec("work"))
	w.onExec = func(engine.Exec) []piece { return nil }
	if _, err := m.Exec(t.Context(), "work", engine.Exec{ID: "x", Command: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	// The same program, as if it still ran and wrote.
	rec := engine.ExecRecord{ID: "slow", Started: time.Now()}
	put(w.run(sb.ID, "exec", "slow.rec"), rec)
	out, err := journal.CreateOutput(w.ExecOutputPath(sb.ID, "slow"), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := out.Append(journal.Stdout, fmt.Appendf(nil, "part%d", i)); err != nil {
			t.Fatal(err)
		}
		until(t, "the part is told", func() bool { return strings.Contains(h.said(sb.ID), fmt.Sprint("part", i)) })
		m.Close()
		m = w.manager(t)
	}
	if err := out.Close(false); err != nil {
		t.Fatal(err)
	}
	rec.Result = &engine.ExecResult{Reason: engine.ReasonExited}
	put(w.run(sb.ID, "exec", "slow.rec"), rec)
	until(t, "its exit is told", func() bool { return strings.HasSuffix(h.said(sb.ID), "exec.exit slow") })
	if n := strings.Count(h.said(sb.ID), "part"); n != 3 {
		t.Errorf("parts were told %d times, want 3:\n%s", n, h.said(sb.ID))
	}
	h.check(t)
}

// TestToldProgramsAreNotReadAgain has a program that runs on, beside others whose exit was
// told: a sandbox keeps a thousand of those, and is looked at ten times a second.
func TestToldProgramsAreNotReadAgain(t *testing.T) {
	w, h := hooked(t)
	w.onExec = talkative
	m := w.manager(t)
	sb := mustCreate(t, m, h.spec("work"))
	live(t, m, "work")
	put(w.run(sb.ID, "exec", "endless.rec"), engine.ExecRecord{ID: "endless", Started: time.Now()})
	for i := range 100 {
		id := fmt.Sprint("done-", i)
		put(w.run(sb.ID, "exec", id+".rec"), engine.ExecRecord{ID: id, Started: time.Now(), Result: &engine.ExecResult{Reason: engine.ReasonExited}})
	}
	until(t, "all is told", func() bool { return strings.Count(h.said(sb.ID), "exec.exit done-") == 100 })
	before := w.execLoads.Load()
	time.Sleep(5 * feedEvery)
	if n := w.execLoads.Load() - before; n > 50 {
		t.Errorf("%d records of programs were read within %v", n, 5*feedEvery)
	}
	h.check(t)
}

// TestMarksOfForgottenProgramsGo keeps a long-lived outbox from remembering every
// program that ever ran. One that was forgotten before its exit was seen has an exit.
func TestMarksOfForgottenProgramsGo(t *testing.T) {
	w, h := hooked(t)
	w.onExec = talkative
	m := w.manager(t)
	sb := mustCreate(t, m, h.spec("work"))
	live(t, m, "work")
	put(w.run(sb.ID, "exec", "endless.rec"), engine.ExecRecord{ID: "endless", Started: time.Now()})
	until(t, "all is told", func() bool { return strings.HasSuffix(h.said(sb.ID), "exec.started endless") })
	for _, id := range []string{"x1", "x2", "endless"} {
		os.Remove(w.run(sb.ID, "exec", id+".rec"))
	}
	until(t, "the exit is told", func() bool { return strings.HasSuffix(h.said(sb.ID), "exec.exit endless") })
	m.Close()
	box, err := outbox.Open(filepath.Join(m.callbacks.path(sb.ID), boxName), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	if marks := box.Marks(); len(marks) != 1 || marks[""] == nil {
		t.Errorf("marks = %q, want the sandbox's alone", marks)
	}
	h.check(t)
}

// TestUntakenEventsAreBounded has a tenant tear down sandboxes whose events nobody takes: in
// the end it gets no other with a callback, while others do.
func TestUntakenEventsAreBounded(t *testing.T) {
	w, h := hooked(t)
	m := w.manager(t)
	leave := func(tenant string, size int64) {
		t.Helper()
		id := journal.NewID()
		if err := m.callbacks.write(callback.Target{Sandbox: id, Tenant: tenant, URL: h.spec("x").Callback.URL, Secret: hookSecret}); err != nil {
			t.Fatal(err)
		}
		box := filepath.Join(m.callbacks.path(id), boxName)
		if err := errors.Join(os.WriteFile(box, nil, 0o600), os.Truncate(box, size)); err != nil {
			t.Fatal(err)
		}
	}
	leave("bob", maxLeftBytes)
	work := h.spec("work")
	work.Owner, work.Tenant = "wf", "ann"
	for range 2 {
		leave("ann", maxLeftBytes/2-1)
	}
	mustCreate(t, m, work)
	leave("ann", 2)
	work.Name = "more"
	if _, _, err := m.Create(t.Context(), work); !isKind(err, "quota") {
		t.Errorf("one more: %v, want quota", err)
	}
	if work.Callback = nil; mustCreate(t, m, work).Name != "more" {
		t.Error("without a callback it is refused too")
	}
}
