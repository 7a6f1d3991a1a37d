package service

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/service/callback"
)

// Create returns a sandbox that answers: the one of that name if its owner has it
// already and it lives, which is then adopted as it is, or else a new one. One that has
// ended is removed first. created says which it was.
//
// Errors are *engine.Error, and a *Failure about them where a sandbox is concerned:
// name_conflict if another owner has the name, quota, queue_full or draining if there is
// no room, container_create_failed if it was started and did not come up.
func (m *Manager) Create(ctx context.Context, spec Spec) (s Sandbox, created bool, err error) {
	fresh, target, err := m.draft(spec)
	if err != nil {
		return Sandbox{}, false, err
	}
	for range createTries {
		s, created, err = m.createOnce(ctx, fresh, target, spec.Secrets)
		if !errors.Is(err, errDied) {
			break
		}
	}
	return s, created, err
}

// createTries bounds how often a sandbox is created in the place of one that lived when
// it was looked at and was dead a moment later.
const createTries = 3

var errDied = errors.New("the sandbox that was adopted has ended")

func (m *Manager) createOnce(caller context.Context, fresh record, target *callback.Target, secrets []engine.Secret) (Sandbox, bool, error) {
	ctx, cancel := context.WithTimeout(caller, m.config.Load().StartWithin+m.gate.MaxWait())
	defer cancel()
	r, created, err := m.establish(ctx, fresh, target, secrets)
	if err != nil {
		return Sandbox{}, false, err
	}
	m.at("before-ready")
	if _, err := m.engine.AwaitReady(ctx, r.ID); err != nil {
		switch {
		case caller.Err() != nil: // asking again adopts it
		case created:
			err = errors.Join(err, m.discard(r))
		default:
			if lives, lookErr := m.adoptable(r); lookErr == nil && !lives {
				err = errors.Join(errDied, err)
			}
		}
		return Sandbox{}, false, createFailed(r, err)
	}
	s, err := m.describe(r)
	return s, created, err
}

func createFailed(r record, cause error) error {
	e := engine.Failed("container_create_failed", "cannot create sandbox=%s: run=%s of owner=%s did not come up: %w", r.Name, r.ID, r.Owner, cause)
	var known *engine.Error
	if errors.As(cause, &known) {
		e.Class, e.Fix = known.Class, known.Fix
	}
	return failure(e, "create", r, "")
}

// draft turns a Spec into the record of a new sandbox, which is not on disk yet. All
// that can be refused without looking at other sandboxes is refused here.
func (m *Manager) draft(spec Spec) (record, *callback.Target, error) {
	c := *m.config.Load()
	if !validName(spec.Name) {
		return record{}, nil, engine.Refused("bad_name", "cannot accept name=%q: want 1 to 128 letters, digits and ._:-, a letter or digit first", spec.Name)
	}
	if !validOwner(spec.Owner) || spec.Tenant != "" && !validOwner(spec.Tenant) {
		return record{}, nil, engine.Refused("bad_name", "cannot accept owner=%q of tenant=%q: want 1 to 256 bytes without control characters", spec.Owner, spec.Tenant)
	}
	limits, clamped, estimate, err := c.resources(spec)
	if err != nil {
		return record{}, nil, err
	}
	if c.EgressCeiling != nil {
		if err := c.EgressCeiling(orText(spec.Tenant, spec.Owner), spec.Egress); err != nil {
			return record{}, nil, err
		}
	}
	id := journal.NewID()
	req := engine.Request{
		ID: id, Runtime: orText(spec.Runtime, c.Runtime), Image: spec.Image, Rootfs: spec.Rootfs,
		Labels: spec.Labels, Egress: spec.Egress, Limits: limits, BestEffortLimits: c.BestEffortLimits,
		Session: &engine.Session{IdleTimeout: c.idle(spec)},
	}
	if req.Image == "" && req.Rootfs == "" {
		req.Image = c.Image
	}
	for k, v := range spec.Env {
		if strings.Contains(k, "=") { // it would be another name
			return record{}, nil, engine.Refused("bad_env", "cannot accept env=%q: want a name of letters, digits and _", k)
		}
		req.Env = append(req.Env, k+"="+v)
	}
	slices.Sort(req.Env)
	for _, s := range spec.Secrets {
		req.SecretNames = append(req.SecretNames, s.Name)
	}
	if err := req.Validate(); err != nil {
		return record{}, nil, err
	}
	req.SecretNames = nil // the engine adds them
	tenant := orText(spec.Tenant, spec.Owner)
	var target *callback.Target
	if spec.Callback != nil {
		target = &callback.Target{Sandbox: id, Tenant: tenant, URL: spec.Callback.URL, Secret: spec.Callback.Secret}
		if err := m.sender.Validate(*target); err != nil {
			return record{}, nil, err
		}
	}
	if req.Mounts, err = c.Stores.mounts(spec.Mounts, m.log); err != nil {
		return record{}, nil, err
	}
	if err := req.Validate(); err != nil {
		return record{}, nil, err
	}
	return record{
		Schema: recordSchema, ID: id, Name: spec.Name, Owner: spec.Owner, Tenant: tenant, CreatedAt: time.Now(),
		Request: req, Clamped: clamped, Estimate: estimate, Callback: target != nil, Secrets: len(spec.Secrets) > 0,
	}, target, nil
}

func validOwner(unsafeOwner string) bool {
	for _, c := range unsafeOwner {
		if c < ' ' || c == 0x7f || c == '\ufffd' {
			return false
		}
	}
	return unsafeOwner != "" && len(unsafeOwner) <= 256
}

func orText(asked, otherwise string) string {
	if asked == "" {
		return otherwise
	}
	return asked
}

// establish makes sure, under the name's lock, that a run has been started for the name.
func (m *Manager) establish(ctx context.Context, fresh record, target *callback.Target, secrets []engine.Secret) (r record, created bool, err error) {
	e, err := m.store.open(ctx, fresh.Name)
	if err != nil {
		return record{}, false, err
	}
	defer e.close()
	m.at("locked")
	old, err := m.store.read(fresh.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return record{}, false, engine.Failed("no_record", "cannot read the record of sandbox=%s: %w", fresh.Name, err).
			WithFix("tear the sandbox down")
	case old.Owner != fresh.Owner:
		return record{}, false, failure(engine.Refused("name_conflict", "cannot create sandbox=%s: the name belongs to owner=%q", old.Name, old.Owner).
			WithFix("choose another name"), "create", old, "")
	default:
		adopted, err := m.adoptable(old)
		if err != nil || adopted {
			return old, false, err
		}
		// Its directory goes, and the lock in it.
		if err := m.finishTeardown(ctx, e, old); err != nil {
			return record{}, false, err
		}
		m.at("removed")
		return m.establish(ctx, fresh, target, secrets)
	}
	return fresh, true, m.begin(ctx, e, fresh, target, secrets)
}

// adoptable says whether a sandbox that is on record lives. One that was never started,
// because its creator died, does not.
func (m *Manager) adoptable(r record) (bool, error) {
	if r.Ending {
		return false, nil
	}
	run, err := m.engine.Load(r.ID)
	if isKind(err, "not_found") {
		return false, nil
	}
	if err != nil {
		return false, livenessFailed(r, err)
	}
	return run.Alive && run.Result == nil, nil
}

// begin puts a new sandbox on record, waits for room, and starts it. After an error
// nothing is on record. Preconditions: the name has no record.
func (m *Manager) begin(ctx context.Context, e *entry, r record, target *callback.Target, secrets []engine.Secret) (err error) {
	if target != nil {
		if err := m.roomForEvents(r); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	m.queued[r.ID] = cancel // by which a teardown ends the wait
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.queued, r.ID)
		m.mu.Unlock()
	}()
	// Nothing is written for one that has to be refused: its creator may ask without a pause.
	if err := m.gate.Refusal(r.ID, r.Tenant, need(r.Request)); err != nil {
		return errors.Join(err, e.remove())
	}
	if err := e.write(r); err != nil {
		return err
	}
	m.remember(r)
	m.at("recorded")
	if target != nil {
		err = m.callbacks.write(*target)
	}
	if err == nil {
		err = m.start(ctx, e, &r, secrets)
	}
	if err != nil {
		m.gate.Release(r.ID)
		return errors.Join(err, m.callbacks.remove(r.ID), e.remove())
	}
	return nil
}

// start waits for room and starts the run.
func (m *Manager) start(ctx context.Context, e *entry, r *record, secrets []engine.Secret) error {
	if err := m.gate.Hold(ctx, r.ID, r.Tenant, need(r.Request)); err != nil {
		return err
	}
	m.at("admitted")
	r.Admitted = true
	if err := e.write(*r); err != nil {
		return err
	}
	m.at("before-start")
	if r.Callback {
		m.send(*r)
	}
	if err := m.engine.Start(ctx, r.Request, secrets); err != nil {
		return createFailed(*r, err)
	}
	m.at("started")
	return nil
}

// takeUp finishes the creation of a sandbox whose creator died before the run was on
// record. One whose secrets died with its creator cannot be finished, and is dropped: its
// caller has had no answer.
func (m *Manager) takeUp(ctx context.Context, e *entry, r record) error {
	if r.Secrets || r.Callback && !m.callbacks.has(r.ID) {
		m.log.Warn("sandbox dropped: its creator died before it was started, and its secrets are gone", "sandbox", r.Name, "id", r.ID)
		return m.finishTeardown(ctx, e, r)
	}
	if time.Since(r.CreatedAt) > m.config.Load().StartWithin+m.gate.MaxWait() {
		m.log.Warn("sandbox dropped: its creator died before it was started, long ago", "sandbox", r.Name, "id", r.ID)
		return m.finishTeardown(ctx, e, r)
	}
	if err := m.start(ctx, e, &r, nil); err != nil {
		return errors.Join(err, m.finishTeardown(ctx, e, r))
	}
	return nil
}

// discard takes back what begin did, of a sandbox that did not come up.
func (m *Manager) discard(r record) error {
	ctx, cancel := context.WithTimeout(m.ctx, teardownWithin)
	defer cancel()
	e, err := m.store.open(ctx, r.Name)
	if err != nil {
		return err
	}
	defer e.close()
	now, err := m.store.read(r.Name)
	if err != nil || now.ID != r.ID {
		return nil // somebody else was quicker
	}
	return m.finishTeardown(ctx, e, now)
}
