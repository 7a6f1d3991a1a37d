package service

import (
	"context"
	"time"

	"github.com/direct-oci/engine/engine"
)

// running is the run of a sandbox, as the engine knows it. Whether it lives is for the
// engine to say when it is called.
func (m *Manager) running(nameOrID string) (string, error) {
	r, err := m.find(nameOrID)
	if err != nil {
		return "", err
	}
	if r.Ending {
		return "", engine.Refused("not_running", "cannot use sandbox=%s: it is being torn down", r.Name)
	}
	return r.ID, nil
}

// Exec starts a program in a sandbox, or joins the one that its id names.
func (m *Manager) Exec(ctx context.Context, nameOrID string, e engine.Exec) (Conn, error) {
	id, err := m.running(nameOrID)
	if err != nil {
		return nil, err
	}
	return m.engine.Exec(ctx, id, e)
}

// Attach joins a program that runs in a sandbox.
func (m *Manager) Attach(ctx context.Context, nameOrID, execID string) (Conn, error) {
	id, err := m.running(nameOrID)
	if err != nil {
		return nil, err
	}
	return m.engine.Attach(ctx, id, execID)
}

// Execs are all programs on record of a sandbox, also of one that has ended.
func (m *Manager) Execs(_ context.Context, nameOrID string) ([]engine.ExecRecord, error) {
	r, err := m.find(nameOrID)
	if err != nil {
		return nil, err
	}
	return m.engine.Execs(r.ID)
}

// LoadExec is one of them.
func (m *Manager) LoadExec(_ context.Context, nameOrID, execID string) (engine.ExecRecord, error) {
	r, err := m.find(nameOrID)
	if err != nil {
		return engine.ExecRecord{}, err
	}
	return m.engine.LoadExec(r.ID, execID)
}

// Pause stops every process of a sandbox where it stands. Idempotent. Deadlines go on.
func (m *Manager) Pause(ctx context.Context, nameOrID string) error {
	id, err := m.running(nameOrID)
	if err != nil {
		return err
	}
	return m.engine.Pause(ctx, id)
}

// Resume lets them go on. Idempotent.
func (m *Manager) Resume(ctx context.Context, nameOrID string) error {
	id, err := m.running(nameOrID)
	if err != nil {
		return err
	}
	return m.engine.Resume(ctx, id)
}

// Renew gives a sandbox a time to live from now on, at most the config's, and returns
// when it is over. Zero is the one that it was created with.
func (m *Manager) Renew(ctx context.Context, nameOrID string, ttl time.Duration) (time.Time, error) {
	r, err := m.find(nameOrID)
	if err != nil {
		return time.Time{}, err
	}
	if ttl < 0 {
		return time.Time{}, engine.Refused("bad_limit", "cannot renew sandbox=%s for %v: want more than 0, or 0 for what it was created with", r.Name, ttl)
	}
	return m.engine.Renew(ctx, r.ID, min(orElse(ttl, r.Request.Limits.Timeout), m.config.Load().MaxTTL))
}

// Stats are what the kernel charged to a sandbox until now, and what it uses now.
func (m *Manager) Stats(_ context.Context, nameOrID string) (engine.LiveUsage, error) {
	id, err := m.running(nameOrID)
	if err != nil {
		return engine.LiveUsage{}, err
	}
	return m.engine.Usage(id)
}
