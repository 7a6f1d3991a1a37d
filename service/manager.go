package service

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/service/admission"
	"github.com/direct-oci/engine/service/callback"
)

// watchEvery is how often the Manager looks for sandboxes that have ended.
const watchEvery = 500 * time.Millisecond

// Manager manages the sandboxes of a host. It is safe for use by many goroutines, and
// beside other Managers.
type Manager struct {
	config    atomic.Pointer[Config]
	engine    Engine
	store     store
	gate      *admission.Gate
	sender    *callback.Sender
	log       *slog.Logger
	callbacks callbacks
	files     fileConns

	ctx    context.Context // of what goes on in the background
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu       sync.Mutex
	queued   map[string]context.CancelFunc // by run id: creations that wait for room
	starting map[string]int                // by run id: ordinary runs that wait for room or are being started
	ids      map[string]string             // run id to name, as far as seen; the records decide
	ended    map[string]time.Time          // run ids known to have ended, and since when
	faulty   map[string]bool               // names whose record cannot be read, as far as told

	// at is called at each step that a test may want to end the process at.
	at func(step string)
}

// New makes a Manager, finishes what an earlier one left half done, and begins to watch.
func New(c Config, e Engine) (*Manager, error) {
	return newManager(c, e, func(string) {})
}

func newManager(c Config, e Engine, at func(step string)) (*Manager, error) {
	c, err := c.settled()
	if err != nil {
		return nil, err
	}
	s, err := openStore(c.StateDir)
	if err != nil {
		return nil, err
	}
	if err := s.sweep(); err != nil {
		return nil, err
	}
	m := &Manager{
		engine: e, store: s, gate: admission.New(c.Admission), sender: callback.New(c.Callbacks), log: c.Log,
		queued: map[string]context.CancelFunc{}, starting: map[string]int{}, ids: map[string]string{}, ended: map[string]time.Time{},
		faulty: map[string]bool{}, at: at,
	}
	m.config.Store(&c)
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	if m.callbacks, err = openCallbacks(c.StateDir); err != nil {
		return nil, err
	}
	// What lives is accounted for before the first caller is.
	if err := errors.Join(m.look(), m.restoreRuns()); err != nil {
		m.Close()
		return nil, err
	}
	m.work.Go(m.watch)
	return m, nil
}

// Change returns what puts another config into force, or why that cannot be. Sandboxes that
// live keep the limits that they were created with; ceilings, defaults, stores and classes
// are those of the next ones, and what all may take at once is bounded anew. Records, log and
// cgroup are this Manager's, whatever the config says.
func (m *Manager) Change(c Config) (apply func(), err error) {
	c, err = c.settled()
	if err != nil {
		return nil, err
	}
	return func() {
		m.config.Store(&c)
		m.sender.Change(c.Callbacks)
		m.gate.Change(c.Admission)
	}, nil
}

// settled is c with its defaults, and with totals of this host if it names none.
func (c Config) settled() (Config, error) {
	c = c.completed()
	if c.Admission.Total != (admission.Limits{}) {
		return c, nil
	}
	var err error
	c.Admission.Total, err = admission.HostTotals(c.Cgroup)
	return c, err
}

// Close ends what this Manager does in the background. Sandboxes go on.
func (m *Manager) Close() {
	m.cancel()
	m.files.closeAll()
	m.work.Wait()
	m.sender.Close()
}

// Gate is the admission, for other work of the same host and for metrics.
func (m *Manager) Gate() *admission.Gate { return m.gate }

// Drain refuses new sandboxes from now on, or takes that back. Those that live go on.
func (m *Manager) Drain(on bool) { m.gate.Drain(on) }

// find returns the record of a sandbox, by its name or by the id of its run.
func (m *Manager) find(nameOrID string) (record, error) {
	if !validName(nameOrID) {
		return record{}, engine.Refused("not_found", "cannot find sandbox=%q: no sandbox can be called that", nameOrID)
	}
	// The id first: who calls a sandbox by the id of another's gets in nobody's way.
	if journal.ValidID(nameOrID) {
		if r, ok := m.byID(nameOrID); ok {
			return r, nil
		}
	}
	r, err := m.store.read(nameOrID)
	if err == nil {
		return r, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return record{}, engine.Failed("no_record", "cannot read the record of sandbox=%s: %w", nameOrID, err)
	}
	return record{}, engine.Refused("not_found", "cannot find sandbox=%s: there is none on record", nameOrID).WithFix("list them: GET /v1/sandboxes, or engine sandbox ls")
}

// byID finds a record by the id of its run: where it was last seen, or else by looking
// at all of them.
func (m *Manager) byID(id string) (record, bool) {
	m.mu.Lock()
	name, seen := m.ids[id]
	m.mu.Unlock()
	if seen {
		if r, err := m.store.read(name); err == nil && r.ID == id {
			return r, true
		}
	}
	records, err := m.store.all(m.unreadable)
	if err != nil {
		return record{}, false
	}
	for _, r := range records {
		if r.ID == id {
			m.remember(r)
			return r, true
		}
	}
	return record{}, false
}

func (m *Manager) remember(r record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ids[r.ID] = r.Name
}

// unreadable tells once of a record that cannot be read.
func (m *Manager) unreadable(name string, err error) {
	m.mu.Lock()
	told := m.faulty[name]
	m.faulty[name] = true
	m.mu.Unlock()
	if !told {
		m.log.Error("record of a sandbox cannot be read", "sandbox", name, "err", err)
	}
}

// Get returns one sandbox, by its name or by its id.
func (m *Manager) Get(_ context.Context, nameOrID string) (Sandbox, error) {
	r, err := m.find(nameOrID)
	if err != nil {
		return Sandbox{}, err
	}
	return m.describe(r)
}

// List returns the sandboxes that the filter chooses, the newest first.
func (m *Manager) List(_ context.Context, f Filter) ([]Sandbox, error) {
	records, err := m.store.all(m.unreadable)
	if err != nil {
		return nil, err
	}
	list := []Sandbox{}
	for _, r := range records {
		if !f.fits(r) {
			continue
		}
		s, err := m.describe(r)
		if err != nil {
			// One of which nothing can be told hides no other.
			m.log.Error("sandbox cannot be read", "sandbox", r.Name, "id", r.ID, "err", err)
		}
		if len(f.States) == 0 || slices.Contains(f.States, s.State) {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b Sandbox) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

func (f Filter) fits(r record) bool {
	if f.Owner != "" && f.Owner != r.Owner || f.Tenant != "" && f.Tenant != r.Tenant {
		return false
	}
	for k, v := range f.Labels {
		if got, ok := r.Request.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// describe puts together what the records say.
func (m *Manager) describe(r record) (Sandbox, error) {
	q := r.Request
	s := Sandbox{
		ID: r.ID, Name: r.Name, Owner: r.Owner, Tenant: r.Tenant, State: Queued,
		Image: q.Image, Rootfs: q.Rootfs, Runtime: q.Runtime, Labels: maps.Clone(q.Labels),
		Limits: Limits{
			CPUs: q.Limits.CPUs, MemoryMB: q.Limits.Memory >> 20, Pids: q.Limits.Pids,
			TTLSeconds: q.Limits.Timeout.Seconds(), IdleSeconds: q.Session.IdleTimeout.Seconds(),
		},
		Clamped: r.Clamped, Estimate: r.Estimate, Mounts: q.Mounts, CreatedAt: r.CreatedAt,
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	if s.Mounts == nil {
		s.Mounts = []engine.Mount{}
	}
	if r.Admitted {
		s.State = Starting
	}
	run, err := m.engine.Load(r.ID)
	if isKind(err, "not_found") {
		return s, nil // not yet, or just torn down
	}
	if err != nil {
		return s, livenessFailed(r, err)
	}
	s.Alive, s.Deadline, s.Result = run.Alive && run.Result == nil, run.Deadline, run.Result
	switch {
	case run.Result != nil:
		s.State, s.OOMKilled = Ended, run.Result.OOMKilled
	case !run.Alive && run.State != engine.Creating:
		s.State = Ended
	case run.State == engine.Running:
		s.State = Ready
		// One that ends in this moment has no figures any more, and was not paused.
		if now, err := m.engine.Usage(r.ID); err == nil && now.Paused {
			s.State = Paused
		}
	}
	return s, nil
}

// Liveness says whether a sandbox lives, when nothing is heard of it. One that is not
// on record does not.
func (m *Manager) Liveness(_ context.Context, nameOrID string) (Liveness, error) {
	r, err := m.find(nameOrID)
	if isKind(err, "not_found") {
		return Liveness{}, nil
	}
	if err != nil {
		return Liveness{}, err
	}
	run, err := m.engine.Load(r.ID)
	switch {
	case isKind(err, "not_found"):
		return Liveness{}, nil
	case err != nil:
		return Liveness{}, livenessFailed(r, err)
	}
	return Liveness{Alive: run.Alive && run.Result == nil, OOMKilled: run.Result != nil && run.Result.OOMKilled}, nil
}

func livenessFailed(r record, cause error) error {
	return failure(engine.Failed("liveness_failed", "cannot tell whether sandbox=%s lives, which is run=%s of owner=%s: %w", r.Name, r.ID, r.Owner, cause), "isAlive", r, "")
}

// Managed lists what a reaper of orphans looks at.
func (m *Manager) Managed(context.Context) ([]Managed, error) {
	records, err := m.store.all(m.unreadable)
	if err != nil {
		return nil, err
	}
	list := []Managed{}
	for _, r := range records {
		list = append(list, Managed{r.ID, r.Owner, r.CreatedAt.UnixMilli()})
	}
	slices.SortFunc(list, func(a, b Managed) int { return cmp.Compare(a.CreatedAtMs, b.CreatedAtMs) })
	return list, nil
}

// watch looks after the sandboxes until the Manager is closed.
func (m *Manager) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := m.look(); err != nil {
				m.log.Error("sandboxes cannot be looked after", "err", err)
			}
		case <-m.ctx.Done():
			return
		}
	}
}

// look compares what is held, and what is sent, with what is on record, and takes up
// what a process left half done that died.
func (m *Manager) look() error {
	// Asked before the records are read: what was held by then was on record by then,
	// and what is not on record any more was torn down.
	held := m.gate.Held()
	records, err := m.store.all(m.unreadable)
	if err != nil {
		return err
	}
	onRecord := make(map[string]bool, len(records))
	for _, r := range records {
		onRecord[r.ID] = true
		m.remember(r)
		m.lookAt(r)
	}
	for _, id := range held {
		if !onRecord[id] {
			m.releaseRun(id)
		}
	}
	m.tidySurplus(records)
	m.mu.Lock()
	for id := range m.ids {
		if !onRecord[id] {
			delete(m.ids, id)
			delete(m.ended, id)
		}
	}
	m.mu.Unlock()
	return m.sendLeftovers()
}

// lookAt is look for one sandbox.
func (m *Manager) lookAt(r record) {
	if r.Callback {
		m.send(r)
	}
	m.mu.Lock()
	since, over := m.ended[r.ID]
	m.mu.Unlock()
	if over {
		if keep := m.config.Load().KeepEnded; keep > 0 && time.Since(since) > keep {
			m.tidy(r)
		}
		return
	}
	alive, err := m.engine.Alive(r.ID)
	if err != nil {
		m.log.Error("liveness of a sandbox is not known", "sandbox", r.Name, "id", r.ID, "err", err)
		return
	}
	if alive && !r.Ending {
		m.gate.Restore(r.ID, r.Tenant, need(r.Request))
		return
	}
	m.settle(r)
}

// settle finds out what became of a sandbox that is not simply alive.
func (m *Manager) settle(r record) {
	// Whoever creates it, or tears it down, holds the lock, and will see to it.
	e, err := m.store.tryOpen(r.Name)
	if err != nil {
		if !errors.Is(err, errHeld) {
			m.log.Error("record of a sandbox cannot be locked", "sandbox", r.Name, "err", err)
		}
		return
	}
	now, err := m.store.read(r.Name)
	if err != nil || now.ID != r.ID {
		e.close()
		return
	}
	run, err := m.engine.Load(r.ID)
	switch {
	case now.Ending:
		m.inBackground(e, func(ctx context.Context) error { return m.finishTeardown(ctx, e, now) })
		return
	case isKind(err, "not_found"):
		m.inBackground(e, func(ctx context.Context) error { return m.takeUp(ctx, e, now) })
		return
	case err != nil:
		m.log.Error("sandbox cannot be read", "sandbox", r.Name, "id", r.ID, "err", err)
	case run.Result == nil && !run.Alive:
		// Its monitor died: awaiting it is what writes a result.
		m.inBackground(e, func(ctx context.Context) error { _, err := m.engine.Await(ctx, r.ID); return err })
		return
	case run.Result != nil:
		m.gate.Release(r.ID)
		m.mu.Lock()
		m.ended[r.ID] = endedAt(run)
		m.mu.Unlock()
	}
	e.close()
}

// inBackground does something under the lock that may take long, and gives the lock up.
func (m *Manager) inBackground(e *entry, do func(context.Context) error) {
	m.work.Go(func() {
		defer e.close()
		ctx, cancel := context.WithTimeout(m.ctx, m.config.Load().StartWithin)
		defer cancel()
		if err := do(ctx); err != nil && m.ctx.Err() == nil {
			m.log.Error("sandbox cannot be looked after", "sandbox", e.name, "err", err)
		}
	})
}

// maxEnded is how many of a tenant that have ended stay on record: all of them are read
// twice a second, and no quota bounds how many somebody can have had.
const maxEnded = 200

// tidySurplus takes those off the record that ended first, of tenants that have too many.
func (m *Manager) tidySurplus(records []record) {
	if m.config.Load().KeepEnded < 0 {
		return
	}
	over := map[string][]record{}
	m.mu.Lock()
	for _, r := range records {
		if _, ended := m.ended[r.ID]; ended {
			over[r.Tenant] = append(over[r.Tenant], r)
		}
	}
	for _, of := range over {
		slices.SortFunc(of, func(a, b record) int { return m.ended[a.ID].Compare(m.ended[b.ID]) })
	}
	m.mu.Unlock()
	for _, of := range over {
		for _, r := range of[:max(len(of)-maxEnded, 0)] {
			m.tidy(r)
		}
	}
}

// tidy takes a sandbox off the record that ended long ago.
func (m *Manager) tidy(r record) {
	e, err := m.store.tryOpen(r.Name)
	if err != nil {
		return
	}
	now, err := m.store.read(r.Name)
	if err != nil || now.ID != r.ID {
		e.close()
		return
	}
	m.inBackground(e, func(ctx context.Context) error { return m.finishTeardown(ctx, e, now) })
}

// endedAt is when a run ended, as nearly as its record tells.
func endedAt(run engine.Record) time.Time {
	start := run.Created
	if start.IsZero() {
		return time.Now()
	}
	return start.Add(time.Duration(run.Result.Timing.TotalMs * float64(time.Millisecond)))
}

// need is what a sandbox takes of the host.
func need(q engine.Request) admission.Need {
	return admission.Need{Memory: q.Limits.Memory, CPUs: q.Limits.CPUs, Pids: q.Limits.Pids}
}

// isKind says whether err is an error of the engine's form and of this kind.
func isKind(err error, kind string) bool {
	var e *engine.Error
	return errors.As(err, &e) && e.Kind == kind
}

// Failure says of an error what failed, on which sandbox and in which state.
type Failure struct {
	Operation string `json:"operation"` // create, teardown, isAlive
	Sandbox   string `json:"sandbox"`   // name
	ID        string `json:"id"`
	Owner     string `json:"owner"`
	Status    string `json:"status"` // of the sandbox, or the kind of the cause; empty where nothing is known
	err       *engine.Error
}

func (f *Failure) Error() string { return f.err.Error() }
func (f *Failure) Unwrap() error { return f.err }

func failure(err *engine.Error, operation string, r record, status string) error {
	if cause := (*engine.Error)(nil); status == "" && errors.As(errors.Unwrap(err), &cause) {
		status = cause.Kind
	}
	return &Failure{operation, r.Name, r.ID, r.Owner, status, err}
}
