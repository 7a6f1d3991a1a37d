package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/service/admission"
)

func wantKind(t testing.TB, what string, err error, kind string) *engine.Error {
	t.Helper()
	var e *engine.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Errorf("%s = %v, want an error of kind %s", what, err, kind)
		return &engine.Error{}
	}
	return e
}

func TestCreateOrAdopt(t *testing.T) {
	w := newWorld(t)
	m := w.manager(t)
	first, created, err := m.Create(t.Context(), spec("work", "ann"))
	if err != nil || !created || first.State != Ready || !first.Alive {
		t.Fatalf("Create = %+v, %v, %v", first, created, err)
	}
	again, created, err := m.Create(t.Context(), Spec{Name: "work", Owner: "ann", CPUs: 3, MemoryMB: 999})
	if err != nil || created || again.ID != first.ID || again.Limits != first.Limits {
		t.Errorf("Create of what lives = %+v, %v, %v, want the same as it is", again, created, err)
	}
	_, _, err = m.Create(t.Context(), spec("work", "bob"))
	e := wantKind(t, "Create with another owner", err, "name_conflict")
	var f *Failure
	if !errors.As(err, &f) || f.Owner != "ann" || f.ID != first.ID || f.Operation != "create" || !strings.Contains(e.Message, `"ann"`) {
		t.Errorf("the conflict is told as %+v: %q", f, e.Message)
	}
	w.end(first.ID, engine.ReasonTimeout)
	_, _, err = m.Create(t.Context(), spec("work", "bob"))
	wantKind(t, "Create of another's that has ended", err, "name_conflict")
	if sb, err := m.Get(t.Context(), "work"); err != nil || sb.State != Ended || sb.Owner != "ann" {
		t.Errorf("after a conflict there is %+v, %v", sb, err)
	}
	second, created, err := m.Create(t.Context(), spec("work", "ann"))
	if err != nil || !created || second.ID == first.ID {
		t.Errorf("Create of one's own that has ended = %+v, %v, %v", second, created, err)
	}
	if _, err := w.Load(first.ID); err == nil {
		t.Error("the run that had ended is still on record")
	}
	if got := w.living(); len(got) != 1 || got[0] != second.ID {
		t.Errorf("living = %v, want %s", got, second.ID)
	}
}

// TestWhatHasEndedIsNotAdopted creates a sandbox in the place of one whose result is on
// record while its monitor is still there.
func TestWhatHasEndedIsNotAdopted(t *testing.T) {
	w := newWorld(t)
	m := w.manager(t)
	first, _, err := m.Create(t.Context(), spec("work", "ann"))
	if err != nil {
		t.Fatal(err)
	}
	w.tell(first.ID, engine.ReasonTimeout)
	type made struct {
		sandbox Sandbox
		created bool
		err     error
	}
	done := make(chan made, 1)
	go func() {
		s, created, err := m.Create(t.Context(), spec("work", "ann"))
		done <- made{s, created, err}
	}()
	until(t, "the dead one's removal is tried", func() bool { return len(done) > 0 || w.count("keep") > 0 })
	w.lose(first.ID)
	got := <-done
	if got.err != nil || !got.created || got.sandbox.ID == first.ID || got.sandbox.State != Ready {
		t.Errorf("Create over one that has ended = %+v, %v, %v", got.sandbox, got.created, got.err)
	}
	if n := w.count("kill"); n != 0 {
		t.Errorf("what had ended was killed %d times", n)
	}
}

func TestSpecsAreRefused(t *testing.T) {
	w := newWorld(t)
	m := w.manager(t)
	with := func(change func(*Spec)) Spec {
		s := spec("work", "ann")
		change(&s)
		return s
	}
	tests := []struct {
		name string
		spec Spec
		kind string
	}{
		{"no name", with(func(s *Spec) { s.Name = "" }), "bad_name"},
		{"a path", with(func(s *Spec) { s.Name = "../x" }), "bad_name"},
		{"a hidden name", with(func(s *Spec) { s.Name = ".x" }), "bad_name"},
		{"no owner", with(func(s *Spec) { s.Owner = "" }), "bad_name"},
		{"an owner with a line feed", with(func(s *Spec) { s.Owner = "a\nb" }), "bad_name"},
		{"no resources", with(func(s *Spec) { s.CPUs, s.MemoryMB = 0, 0 }), "no_resources"},
		{"memory alone", with(func(s *Spec) { s.CPUs = 0 }), "no_resources"},
		{"an unknown class", with(func(s *Spec) { s.Class = "huge" }), "no_resources"},
		{"a negative time to live", with(func(s *Spec) { s.TTL = -1 }), "bad_limit"},
		{"an unknown runtime", with(func(s *Spec) { s.Runtime = "docker" }), "bad_runtime"},
		{"image and directory", with(func(s *Spec) { s.Image, s.Rootfs = "a", "/b" }), "bad_root"},
		{"a variable without a name", with(func(s *Spec) { s.Env = map[string]string{"": "x"} }), "bad_env"},
		{"a tree that is not offered", with(func(s *Spec) { s.Mounts.Resource = "x" }), "bad_mount"},
		{"a callback to the host", with(func(s *Spec) { s.Callback = &Callback{"https://127.0.0.1/", make([]byte, 32)} }), "bad_callback"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := m.Create(t.Context(), tt.spec)
			wantKind(t, "Create", err, tt.kind)
		})
	}
	w.wantNothingLeft(t, m)
}

func TestClampingIsTold(t *testing.T) {
	w := newWorld(t)
	w.config.MaxCPUs, w.config.MaxMemoryMB, w.config.MaxTTL = 2, 1000, time.Minute
	m := w.manager(t)
	sb := mustCreate(t, m, Spec{Name: "work", Owner: "ann", CPUs: 8, MemoryMB: 500, TTL: time.Hour})
	if sb.Limits != (Limits{CPUs: 2, MemoryMB: 500, Pids: 512, TTLSeconds: 60}) {
		t.Errorf("limits = %+v", sb.Limits)
	}
	if got := fmt.Sprint(sb.Clamped); got != "[{cpus 8 2} {ttlSeconds 3600 60}]" {
		t.Errorf("clamped = %s", got)
	}
}

// TestChange has the next sandboxes made by another config, and leaves those that live as
// they are.
func TestChange(t *testing.T) {
	w := newWorld(t)
	w.config.TTL = time.Minute
	m := w.manager(t)
	before := mustCreate(t, m, spec("before", "ann"))
	next := w.config
	next.TTL, next.MaxCPUs, next.Image = time.Hour, 1, "other"
	next.Classes = map[string]Class{"tiny": {1, 64}}
	next.Admission = admission.Config{Total: admission.Limits{Sandboxes: 2}, Wait: time.Millisecond}
	apply, err := m.Change(next)
	if err != nil {
		t.Fatal(err)
	}
	if sb, err := m.Get(t.Context(), "before"); err != nil || m.Gate().Snapshot().Total.Sandboxes != 300 {
		t.Errorf("something has changed before it was applied: %+v, %v", sb, err)
	}
	apply()
	after := mustCreate(t, m, Spec{Name: "after", Owner: "ann", Class: "tiny"})
	if after.Limits.TTLSeconds != 3600 || after.Limits.MemoryMB != 64 || after.Image != "other" {
		t.Errorf("the next one is %+v", after)
	}
	if sb, err := m.Get(t.Context(), "before"); err != nil || sb.Limits != before.Limits || sb.Image != before.Image || sb.State != Ready {
		t.Errorf("one that lives is %+v, %v, and was %+v", sb, err, before)
	}
	_, _, err = m.Create(t.Context(), Spec{Name: "third", Owner: "ann", Class: "tiny"})
	wantKind(t, "Create", err, "queue_full")
	_, _, err = m.Create(t.Context(), Spec{Name: "small", Owner: "ann", Class: "small"})
	wantKind(t, "Create", err, "no_resources")
}

func TestClassesAndEstimates(t *testing.T) {
	w := newWorld(t)
	m := w.manager(t)
	sb := mustCreate(t, m, Spec{Name: "a", Owner: "ann", Class: "heavy"})
	if sb.Limits.CPUs != 4 || sb.Limits.MemoryMB != 8192 {
		t.Errorf("limits of a heavy one = %+v", sb.Limits)
	}
	sb = mustCreate(t, m, Spec{Name: "b", Owner: "ann", MemoryMB: 100, Files: []InputFile{{"x.csv", 1e9}}})
	if sb.Limits.CPUs != 4 || sb.Limits.MemoryMB != 100 || sb.Estimate == nil || *sb.Estimate != (Estimated{4, 10}) {
		t.Errorf("limits = %+v of estimate %+v, want what was declared and what was not", sb.Limits, sb.Estimate)
	}
}

// TestNothingIsLeftOfAFailedCreation fails it at each place where it can.
func TestNothingIsLeftOfAFailedCreation(t *testing.T) {
	tests := []struct {
		name string
		fail func(w *world)
		kind string
	}{
		{"start is refused", func(w *world) { w.refuse = engine.Failed("no_memory", "cannot start").WithFix("wait") }, "container_create_failed"},
		{"it does not come up", func(w *world) { w.notUp = engine.Refused("bad_root", "cannot use") }, "container_create_failed"},
		{"there is no room", func(w *world) { w.config.Admission = admission.Config{Total: admission.Limits{Memory: 1 << 20}} }, "quota"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			tt.fail(w)
			m := w.manager(t)
			_, _, err := m.Create(t.Context(), spec("work", "ann"))
			e := wantKind(t, "Create", err, tt.kind)
			if w.refuse = nil; tt.name == "start is refused" && e.Fix != "wait" {
				t.Errorf("the cause's cure was lost: %+v", e)
			}
			w.wantNothingLeft(t, m)
		})
	}
}

func TestQueuedSandboxesAreSeenAndTornDown(t *testing.T) {
	w := newWorld(t)
	w.config.Admission = admission.Config{Total: admission.Limits{Sandboxes: 1}}
	m := w.manager(t)
	mustCreate(t, m, spec("first", "ann"))
	outcome := make(chan error, 1)
	go func() {
		_, _, err := m.Create(t.Context(), spec("second", "bob"))
		outcome <- err
	}()
	until(t, "the second waits", func() bool {
		sb, err := m.Get(t.Context(), "second")
		return err == nil && sb.State == Queued && m.Gate().Snapshot().Waiting == 1
	})
	if err := m.Teardown(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "Create of what was torn down in the queue", <-outcome, "cancelled")
	go func() {
		_, _, err := m.Create(t.Context(), spec("third", "bob"))
		outcome <- err
	}()
	until(t, "the third waits", func() bool { return m.Gate().Snapshot().Waiting == 1 })
	// One that ends by itself makes room as well.
	first, err := m.Get(t.Context(), "first")
	if err != nil {
		t.Fatal(err)
	}
	w.end(first.ID, engine.ReasonTimeout)
	if err := <-outcome; err != nil {
		t.Errorf("Create once there was room = %v", err)
	}
}

func TestDrainingRefusesCreationAndLetsAdopt(t *testing.T) {
	w := newWorld(t)
	m := w.manager(t)
	mustCreate(t, m, spec("work", "ann"))
	m.Drain(true)
	if _, created, err := m.Create(t.Context(), spec("work", "ann")); err != nil || created {
		t.Errorf("adopting while draining = %v, %v", created, err)
	}
	_, _, err := m.Create(t.Context(), spec("more", "ann"))
	wantKind(t, "Create while draining", err, "draining")
}

// TestAccountingFollowsTheRecords starts a second Manager, as after a restart, and ends
// sandboxes behind the back of both.
func TestAccountingFollowsTheRecords(t *testing.T) {
	w := newWorld(t)
	m := w.manager(t)
	var ids []string
	for i := range 5 {
		ids = append(ids, mustCreate(t, m, spec(fmt.Sprint("s", i), "ann")).ID)
	}
	second := w.manager(t)
	for _, g := range []*Manager{m, second} {
		if got := g.Gate().Snapshot().Used; got != (admission.Limits{Sandboxes: 5, Memory: 5 * 256 << 20, CPUs: 5, Pids: 5 * 512}) {
			t.Errorf("used = %+v, want five sandboxes", got)
		}
	}
	w.end(ids[0], engine.ReasonOOM)
	w.lose(ids[1])
	if err := second.Teardown(t.Context(), ids[2]); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, second, spec("more", "ann"))
	for _, g := range []*Manager{m, second} {
		until(t, "three are accounted for", func() bool { return g.Gate().Snapshot().Used.Sandboxes == 3 })
	}
	if l, err := m.Liveness(t.Context(), ids[0]); err != nil || l != (Liveness{false, true}) {
		t.Errorf("liveness of one that ran out of memory = %+v, %v", l, err)
	}
	if l, err := m.Liveness(t.Context(), ids[3]); err != nil || l != (Liveness{true, false}) {
		t.Errorf("liveness of one that lives = %+v, %v", l, err)
	}
	if l, err := m.Liveness(t.Context(), ids[2]); err != nil || l != (Liveness{}) {
		t.Errorf("liveness of one that is gone = %+v, %v", l, err)
	}
	until(t, "the lost one has a result", func() bool {
		sb, err := m.Get(t.Context(), ids[1])
		return err == nil && sb.State == Ended && sb.Result != nil
	})
}

func TestListChooses(t *testing.T) {
	w := newWorld(t)
	m := w.manager(t)
	for i := range 6 {
		s := spec(fmt.Sprint("s", i), []string{"ann", "bob"}[i%2])
		s.Labels = map[string]string{"run": fmt.Sprint(i / 2)}
		s.Tenant = "team"
		mustCreate(t, m, s)
	}
	names := func(f Filter) string {
		list, err := m.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, s := range list {
			all = append(all, s.Name)
		}
		return strings.Join(all, " ")
	}
	w.end(func() string { s, _ := m.Get(t.Context(), "s0"); return s.ID }(), engine.ReasonTimeout)
	for _, tt := range []struct {
		filter Filter
		want   string
	}{
		{Filter{}, "s5 s4 s3 s2 s1 s0"},
		{Filter{Owner: "bob"}, "s5 s3 s1"},
		{Filter{Labels: map[string]string{"run": "1"}}, "s3 s2"},
		{Filter{Labels: map[string]string{"other": ""}}, ""},
		{Filter{Tenant: "team", States: []State{Ended}}, "s0"},
		{Filter{Tenant: "nobody"}, ""},
	} {
		if got := names(tt.filter); got != tt.want {
			t.Errorf("List(%+v) = %q, want %q", tt.filter, got, tt.want)
		}
	}
	n, err := m.TeardownAll(t.Context(), Filter{Labels: map[string]string{"run": "1"}})
	if err != nil || n != 2 {
		t.Errorf("TeardownAll of a run = %d, %v, want 2", n, err)
	}
	n, err = m.TeardownOwner(t.Context(), "bob")
	if err != nil || n != 2 {
		t.Errorf("TeardownOwner = %d, %v, want 2", n, err)
	}
	if got := names(Filter{}); got != "s4 s0" {
		t.Errorf("left are %q", got)
	}
	_, err = m.TeardownAll(t.Context(), Filter{})
	wantKind(t, "TeardownAll of everything", err, "bad_filter")
}

// TestNamesLikeIdsGetInNobodysWay calls a sandbox by the id of another owner's.
func TestNamesLikeIdsGetInNobodysWay(t *testing.T) {
	w := newWorld(t)
	m := w.manager(t)
	theirs := mustCreate(t, m, spec("work", "ann"))
	mine := mustCreate(t, m, spec(theirs.ID, "bob"))
	for _, m := range []*Manager{m, w.manager(t)} {
		if sb, err := m.Get(t.Context(), theirs.ID); err != nil || sb.Name != "work" {
			t.Errorf("by its id one gets %+v, %v", sb, err)
		}
		if sb, err := m.Get(t.Context(), mine.ID); err != nil || sb.Name != theirs.ID {
			t.Errorf("by its id one gets %+v, %v", sb, err)
		}
	}
	if err := m.Teardown(t.Context(), theirs.ID); err != nil {
		t.Fatal(err)
	}
	if got := w.living(); len(got) != 1 || got[0] != mine.ID {
		t.Errorf("living = %v, want bob's alone", got)
	}
}

func TestTeardownIsIdempotent(t *testing.T) {
	w := newWorld(t)
	m := w.manager(t)
	sb := mustCreate(t, m, spec("work", "ann"))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := m.Teardown(t.Context(), sb.ID); err != nil {
				t.Errorf("Teardown = %v", err)
			}
		})
	}
	wg.Wait()
	for _, name := range []string{"work", sb.ID, "never"} {
		if err := m.Teardown(t.Context(), name); err != nil {
			t.Errorf("Teardown of %s, which is gone, = %v", name, err)
		}
	}
	if n := w.count("kill"); n != 1 {
		t.Errorf("it was killed %d times", n)
	}
	w.wantNothingLeft(t, m)
}

func TestReaperAsksOnceAndKeepsWhatItDoesNotKnow(t *testing.T) {
	w := newWorld(t)
	m := w.manager(t)
	for i, owner := range []string{"lives", "gone", "gone", "unknown"} {
		mustCreate(t, m, spec(fmt.Sprint("s", i), owner))
	}
	asked := map[string]int{}
	lives := func(_ context.Context, owner string) (bool, error) {
		asked[owner]++
		if owner == "unknown" {
			return false, errors.New("the database does not answer")
		}
		return owner == "lives", nil
	}
	if n, err := m.Reap(t.Context(), time.Hour, lives); n != 0 || err != nil || len(asked) != 0 {
		t.Errorf("Reap of young ones = %d, %v, asked %v", n, err, asked)
	}
	n, err := m.Reap(t.Context(), 0, lives)
	if n != 2 || err == nil || !strings.Contains(err.Error(), "database") {
		t.Errorf("Reap = %d, %v, want 2 and what could not be asked", n, err)
	}
	if fmt.Sprint(asked) != "map[gone:1 lives:1 unknown:1]" {
		t.Errorf("asked %v", asked)
	}
	list, err := m.Managed(t.Context())
	if err != nil || len(list) != 2 || list[0].Owner != "lives" || list[1].Owner != "unknown" || time.Since(time.UnixMilli(list[0].CreatedAtMs)) > time.Minute {
		t.Errorf("Managed = %+v, %v", list, err)
	}
}

func TestEndedOnesAreForgottenInTime(t *testing.T) {
	w := newWorld(t)
	w.config.KeepEnded = time.Millisecond
	m := w.manager(t)
	sb := mustCreate(t, m, spec("work", "ann"))
	w.end(sb.ID, engine.ReasonTimeout)
	until(t, "nothing is on record", func() bool {
		list, err := m.List(t.Context(), Filter{})
		return err == nil && len(list) == 0
	})
	until(t, "nothing is held", func() bool { return m.Gate().Snapshot().Used.Sandboxes == 0 })
	w.wantNothingLeft(t, m)
}

// TestEndedOnesAreFew has one tenant end more sandboxes than stay on record; another's stays.
func TestEndedOnesAreFew(t *testing.T) {
	w := newWorld(t)
	m := w.manager(t)
	first := mustCreate(t, m, spec("other", "bob"))
	w.end(first.ID, engine.ReasonTimeout)
	for i := range maxEnded + 3 {
		w.end(mustCreate(t, m, spec(fmt.Sprint("work-", i), "ann")).ID, engine.ReasonTimeout)
	}
	until(t, "the surplus is gone", func() bool {
		list, err := m.List(t.Context(), Filter{Owner: "ann"})
		return err == nil && len(list) == maxEnded
	})
	if _, err := m.Get(t.Context(), "other"); err != nil {
		t.Errorf("another tenant's: %v", err)
	}
}

// TestDamagedRecordsHarmNobodyElse puts rubbish in the place of a record.
func TestDamagedRecordsHarmNobodyElse(t *testing.T) {
	w := newWorld(t)
	m := w.manager(t)
	mustCreate(t, m, spec("good", "ann"))
	mustCreate(t, m, spec("bad", "ann"))
	path := filepath.Join(w.config.StateDir, "sandboxes", "bad", recordName)
	if err := os.WriteFile(path, []byte(`{"schema":1`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := m.Get(t.Context(), "bad")
	wantKind(t, "Get", err, "no_record")
	_, _, err = m.Create(t.Context(), spec("bad", "ann"))
	wantKind(t, "Create", err, "no_record")
	if list, err := m.List(t.Context(), Filter{}); err != nil || len(list) != 1 || list[0].Name != "good" {
		t.Errorf("List = %+v, %v", list, err)
	}
	if err := m.Teardown(t.Context(), "bad"); err != nil {
		t.Errorf("Teardown = %v", err)
	}
	mustCreate(t, m, spec("bad", "bob"))
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"schema":1,"id":"abcdefghijklmnop","name":"work","owner":"ann","request":{"id":"abcdefghijklmnop","session":{}}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRecord("work", data)
		if err != nil {
			return
		}
		w := &world{fake: &fake{dir: t.TempDir()}}
		m := &Manager{engine: w.fake}
		if _, err := m.describe(r); err != nil {
			t.Errorf("describe of a record that was read = %v", err)
		}
	})
}
