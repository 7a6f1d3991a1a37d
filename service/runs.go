package service

import (
	"context"

	"github.com/direct-oci/engine/engine"
)

// TenantLabel is the label of a run that says whose it is.
const TenantLabel = "engine.tenant"

// StartRun starts an ordinary run, whose id the request names, once there is room for it
// beside the sandboxes: it waits in the same queue, counts against the same quotas, and
// holds its room until it has ended. start does the work. A run that is on record
// already needs no room of its own.
func (m *Manager) StartRun(ctx context.Context, req engine.Request, start func() error) error {
	if _, err := m.engine.Load(req.ID); !isKind(err, "not_found") {
		return start() // it joins that run, or says what is wrong
	}
	m.mu.Lock()
	m.starting[req.ID]++ // until it is on record, nothing but this says what the hold is for
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.starting[req.ID]--; m.starting[req.ID] == 0 {
			delete(m.starting, req.ID)
		}
	}()
	if err := m.gate.Hold(ctx, req.ID, req.Labels[TenantLabel], need(req)); err != nil {
		return err
	}
	if err := start(); err != nil {
		m.gate.Release(req.ID)
		return err
	}
	return nil
}

// AdmitCall waits for room for what runs for a call of a project, whose tenant has the
// project's name, and holds it until leave is called.
func (m *Manager) AdmitCall(ctx context.Context, id, project string, room engine.Limits) (leave func(), err error) {
	return m.gate.Admit(ctx, id, project, need(engine.Request{Limits: room}))
}

// tenantOf is against whose quota a run counts that this process has not admitted: its
// tenant's or, of a call, the project's.
func tenantOf(req engine.Request) string {
	return orText(req.Labels[TenantLabel], req.Labels["project"])
}

// restoreRuns accounts for the runs that live, whoever started them.
func (m *Manager) restoreRuns() error {
	live, err := m.engine.Live()
	if err != nil {
		return err
	}
	for _, r := range live {
		if r.Request.Session == nil {
			m.gate.Restore(r.ID, tenantOf(r.Request), need(r.Request))
		}
	}
	return nil
}

// releaseRun gives back the room of what is no sandbox on record, unless it is a run that
// lives or is being started.
func (m *Manager) releaseRun(id string) {
	m.mu.Lock()
	starting := m.starting[id] > 0
	m.mu.Unlock()
	if starting {
		return
	}
	if alive, err := m.engine.Alive(id); err != nil || alive {
		return // what is not known is looked at again
	}
	m.gate.Release(id)
}
