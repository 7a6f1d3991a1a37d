package service

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/direct-oci/engine/engine"
)

// teardownWithin bounds one teardown.
const teardownWithin = 30 * time.Second

// Teardown ends a sandbox and takes it off the record. One that is gone already is a
// success. The error is a *Failure of kind teardown_failed; the record then stays, and
// asking again goes on where it stopped.
func (m *Manager) Teardown(ctx context.Context, nameOrID string) error {
	_, err := m.teardown(ctx, nameOrID)
	return err
}

// teardown also says whether there was anything to end.
func (m *Manager) teardown(ctx context.Context, nameOrID string) (bool, error) {
	seen, err := m.find(nameOrID)
	if isKind(err, "not_found") {
		return false, nil
	}
	if err != nil {
		if !validName(nameOrID) {
			return false, err
		}
		seen = record{Name: nameOrID} // its record is damaged: there is a directory to remove
	}
	ctx, cancel := context.WithTimeout(ctx, teardownWithin)
	defer cancel()
	m.mu.Lock()
	if giveUp := m.queued[seen.ID]; giveUp != nil {
		giveUp()
	}
	m.mu.Unlock()
	e, err := m.store.open(ctx, seen.Name)
	if err != nil {
		return false, teardownFailed(seen, err)
	}
	defer e.close()
	now, err := m.store.read(seen.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return true, e.remove()
	case seen.ID != "" && now.ID != seen.ID:
		return false, nil // torn down and created again since
	}
	return true, m.finishTeardown(ctx, e, now)
}

func teardownFailed(r record, cause error) error {
	e := engine.Failed("teardown_failed", "cannot tear down sandbox=%s, which is run=%s of owner=%s: %w", r.Name, r.ID, r.Owner, cause)
	return failure(e.WithFix("ask again; engine gc ends what nobody watches"), "teardown", r, "")
}

// finishTeardown ends the run, removes its record and then the sandbox's. Each step may
// be repeated, and whoever finds the record goes on.
// Preconditions: the name's lock is held, and the record is r.
func (m *Manager) finishTeardown(ctx context.Context, e *entry, r record) error {
	if !r.Ending {
		r.Ending = true
		if err := e.write(r); err != nil {
			return teardownFailed(r, err)
		}
	}
	m.at("ending")
	m.files.drop(r.ID)
	if err := m.engine.Kill(ctx, r.ID); err != nil && !isKind(err, "not_found") && !isKind(err, "not_running") {
		return teardownFailed(r, err)
	}
	m.at("killed")
	if r.Callback {
		m.awaitComplete(ctx, r)
	}
	if err := m.engine.Remove(r.ID); err != nil && !isKind(err, "not_found") {
		// A monitor that has written its result may still be at its own teardown.
		if err = m.removeRun(ctx, r.ID, err); err != nil {
			return teardownFailed(r, err)
		}
	}
	m.at("run-removed")
	if err := e.remove(); err != nil {
		return teardownFailed(r, err)
	}
	m.gate.Release(r.ID)
	m.mu.Lock()
	delete(m.ids, r.ID)
	delete(m.ended, r.ID)
	m.mu.Unlock()
	return nil
}

// removeRun tries again to remove a run for as long as its monitor is alive.
func (m *Manager) removeRun(ctx context.Context, id string, err error) error {
	for wait := 2 * time.Millisecond; isKind(err, "running"); wait = min(2*wait, 100*time.Millisecond) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
		if err = m.engine.Remove(id); isKind(err, "not_found") {
			return nil
		}
	}
	if err == nil {
		return nil
	}
	// A run that was never begun is removed by the first half of Remove already.
	if _, loadErr := m.engine.Load(id); isKind(loadErr, "not_found") {
		return nil
	}
	return err
}

// TeardownOwner tears down all sandboxes of an owner, as far as it can, and returns how
// many there were.
func (m *Manager) TeardownOwner(ctx context.Context, owner string) (int, error) {
	if owner == "" {
		return 0, engine.Refused("bad_name", "cannot tear down the sandboxes of no owner")
	}
	return m.TeardownAll(ctx, Filter{Owner: owner})
}

// TeardownAll tears down all sandboxes that the filter chooses, as far as it can, and
// returns how many it ended. It is how all sandboxes of one run of something larger are
// ended, by the label that names it. A filter that chooses everything is refused.
func (m *Manager) TeardownAll(ctx context.Context, f Filter) (int, error) {
	if f.Owner == "" && f.Tenant == "" && len(f.Labels) == 0 {
		return 0, engine.Refused("bad_filter", "cannot tear down sandboxes: the filter would choose all of them").
			WithFix("name an owner, a tenant or a label")
	}
	records, err := m.store.all(m.unreadable)
	if err != nil {
		return 0, err
	}
	var ids []string
	for _, r := range records {
		if f.fits(r) && m.inStates(r, f.States) {
			ids = append(ids, r.ID)
		}
	}
	return m.teardownEach(ctx, ids)
}

func (m *Manager) inStates(r record, states []State) bool {
	if len(states) == 0 {
		return true
	}
	s, err := m.describe(r)
	if err != nil {
		return false
	}
	for _, state := range states {
		if s.State == state {
			return true
		}
	}
	return false
}

const teardownWorkers = 8

func (m *Manager) teardownEach(ctx context.Context, ids []string) (int, error) {
	type outcome struct {
		there bool
		err   error
	}
	outcomes := make(chan outcome, len(ids))
	slots := make(chan struct{}, teardownWorkers)
	for _, id := range ids {
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			there, err := m.teardown(ctx, id)
			outcomes <- outcome{there, err}
		}()
	}
	count, errs := 0, []error{}
	for range ids {
		o := <-outcomes
		if o.err != nil {
			errs = append(errs, o.err)
		} else if o.there {
			count++
		}
	}
	return count, errors.Join(errs...)
}

// Reap tears down the sandboxes of owners that are gone, and returns how many. lives is
// asked once for each owner; an owner about whom it returns an error keeps its
// sandboxes. A sandbox younger than grace stays: its owner may not be known yet.
func (m *Manager) Reap(ctx context.Context, grace time.Duration, lives func(ctx context.Context, owner string) (bool, error)) (int, error) {
	list, err := m.Managed(ctx)
	if err != nil {
		return 0, err
	}
	var orphans []string
	var errs []error
	alive := map[string]bool{}
	for _, s := range list {
		if time.Since(time.UnixMilli(s.CreatedAtMs)) < grace {
			continue
		}
		known, asked := alive[s.Owner]
		if !asked {
			if known, err = lives(ctx, s.Owner); err != nil {
				errs, known = append(errs, err), true
			}
			alive[s.Owner] = known
		}
		if !known {
			orphans = append(orphans, s.SandboxID)
		}
	}
	count, err := m.teardownEach(ctx, orphans)
	return count, errors.Join(append(errs, err)...)
}
