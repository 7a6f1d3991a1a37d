package service

import (
	"errors"
	"testing"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/service/admission"
)

// TestRunsShareTheRoom checks that ordinary runs and sandboxes are admitted by one account,
// also by a service that was restarted, and that what failed or ended gives its room back.
func TestRunsShareTheRoom(t *testing.T) {
	w := newWorld(t)
	w.config.Admission = admission.Config{Total: admission.Limits{Sandboxes: 2}, Queue: -1}
	m := w.manager(t)
	run := func(m *Manager, id string, start func() error) error {
		req := engine.Request{ID: id, Labels: map[string]string{TenantLabel: "ann"}, Limits: engine.DefaultLimits()}
		if start == nil {
			start = func() error { return w.Start(t.Context(), req, nil) }
		}
		return m.StartRun(t.Context(), req, start)
	}
	used := func(m *Manager) int { return m.Gate().Snapshot().Used.Sandboxes }

	broken := errors.New("broken")
	if err := run(m, "aaaaaaaaaaaaaaaa", func() error { return broken }); !errors.Is(err, broken) || used(m) != 0 {
		t.Errorf("a run that does not start: %v, and %d are held", err, used(m))
	}
	if err := run(m, "bbbbbbbbbbbbbbbb", nil); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, m, spec("s", "ann"))
	wantKind(t, "a third", run(m, "cccccccccccccccc", nil), "queue_full")
	if s := m.Gate().Snapshot(); len(s.Tenants) == 0 || s.Tenants[0].Name != "ann" {
		t.Errorf("tenants = %+v, want ann", s.Tenants)
	}
	if err := run(m, "bbbbbbbbbbbbbbbb", nil); err != nil { // the same again joins it
		t.Errorf("joining a run where there is no room: %v", err)
	}
	if err := m.look(); err != nil || used(m) != 2 {
		t.Errorf("after a look %d are held, %v, want the run that lives to keep its room", used(m), err)
	}
	second := w.manager(t)
	if used(second) != 2 {
		t.Errorf("after a restart %d are held, want 2", used(second))
	}
	wantKind(t, "a third after a restart", run(second, "cccccccccccccccc", nil), "queue_full")
	w.end("bbbbbbbbbbbbbbbb", engine.ReasonExited)
	for _, g := range []*Manager{m, second} {
		until(t, "the run's room is free", func() bool { return used(g) == 1 })
	}
	if err := run(second, "bbbbbbbbbbbbbbbb", func() error { return nil }); err != nil || used(second) != 1 {
		t.Errorf("asking for a run that has ended: %v, and %d are held, want none for it", err, used(second))
	}
	if err := run(second, "cccccccccccccccc", nil); err != nil {
		t.Errorf("once there was room: %v", err)
	}
}

// TestCallsCountForTheirProject checks that calls take room beside sandboxes, against the
// quota of the tenant that has the project's name, and that their runs keep it when the
// service is restarted.
func TestCallsCountForTheirProject(t *testing.T) {
	w := newWorld(t)
	w.config.Admission = admission.Config{Tenants: map[string]admission.Tenant{"shop": {Limits: admission.Limits{Sandboxes: 1}}}}
	m := w.manager(t)
	room := engine.DefaultLimits()
	admit := func(m *Manager, id string) (func(), error) { return m.AdmitCall(t.Context(), id, "shop", room) }
	leave, err := admit(m, "aaaaaaaaaaaaaaaa")
	if err != nil {
		t.Fatal(err)
	}
	_, err = admit(m, "bbbbbbbbbbbbbbbb")
	wantKind(t, "a second call", err, "quota")
	_, _, err = m.Create(t.Context(), spec("s", "shop"))
	wantKind(t, "a sandbox beside the call", err, "quota")
	if err := m.look(); err != nil {
		t.Fatal(err)
	}
	if used := m.Gate().Snapshot().Used; used.Sandboxes != 1 || used.Memory != room.Memory {
		t.Errorf("used = %+v, want the call's", used)
	}
	req := engine.Request{ID: "aaaaaaaaaaaaaaaa", Labels: map[string]string{"project": "shop"}, Limits: room}
	if err := w.Start(t.Context(), req, nil); err != nil {
		t.Fatal(err)
	}
	second := w.manager(t)
	_, err = admit(second, "bbbbbbbbbbbbbbbb")
	wantKind(t, "a second call after a restart", err, "quota")
	w.end("aaaaaaaaaaaaaaaa", engine.ReasonExited)
	leave()
	for _, m := range []*Manager{m, second} {
		until(t, "its room is free", func() bool { return m.Gate().Snapshot().Used == admission.Limits{} })
	}
	if leave, err = admit(second, "bbbbbbbbbbbbbbbb"); err != nil {
		t.Fatal(err)
	}
	leave()
	mustCreate(t, second, spec("s", "shop"))
}
