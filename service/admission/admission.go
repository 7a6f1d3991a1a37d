// Package admission decides who may start a sandbox now, who waits, and who is told
// to come back: totals of memory, CPUs and processes for the host, a quota for each
// tenant, and a queue that shares what gets free fairly.
//
// What is in use is a set of holds, each under an id. Holding one id twice counts it
// once and releasing twice releases once, so accounting that is told again what is on
// record, after a restart or now and then, can neither leak nor count double. It is in
// memory alone: Restore rebuilds it.
//
// Fairness is by virtual time: each start moves its tenant's clock forward by the
// largest share of the host that it takes, divided by the tenant's weight, and the
// tenant whose clock is furthest behind is served next. Within a tenant the first to
// come is the first to be served.
//
// A start that does not fit is passed over by others that do, maxPassed times. From then
// on what gets free is kept for it, so that it does not starve: for a third of the longest
// wait. If that was in vain, its tenant pays as if it had been served, and for twice as
// long nothing is kept for anybody: who asks for what does not get free takes a third of
// the time from others at most.
package admission

import (
	"container/list"
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/direct-oci/engine/engine"
)

// Need is what one sandbox takes for as long as it lives.
type Need struct {
	Memory int64   `json:"memory"` // bytes
	CPUs   float64 `json:"cpus"`
	Pids   int64   `json:"pids"`
}

// Limits bound what is held at once. A zero field is no bound.
type Limits struct {
	Sandboxes int     `json:"sandboxes,omitempty"`
	Memory    int64   `json:"memory,omitempty"` // bytes
	CPUs      float64 `json:"cpus,omitempty"`
	Pids      int64   `json:"pids,omitempty"`
}

// Tenant is one tenant's part.
type Tenant struct {
	Limits
	Weight float64 `json:"weight,omitempty"` // zero: 1
}

// Config is the operator's. The zero value bounds nothing but the queue.
type Config struct {
	Total   Limits
	Default Tenant            // of a tenant that Tenants does not name
	Tenants map[string]Tenant // by name

	Queue       int           // waiting at once; zero: 1000, negative: nobody waits
	TenantQueue int           // of one tenant; zero: a tenth of Queue, 1 at least
	Wait        time.Duration // the longest wait; zero: 30 seconds
}

const (
	defaultQueue = 1000
	defaultWait  = 30 * time.Second

	// maxPassed is how often others may start before one whose turn it is and for
	// whom there is not room enough.
	maxPassed = 8

	// keepsInWait is how many times the room that is kept for one could be kept within
	// the longest wait, and keepsBetween for how many times as long none is kept after one
	// in vain: whoever comes then lives to see the next.
	keepsInWait  = 3
	keepsBetween = 2
)

// use is what holds add up to. CPUs are counted in millionths: sums of floats would
// drift.
type use struct {
	sandboxes int
	memory    int64
	microCPUs int64
	pids      int64
}

func (u use) add(n Need) use {
	return use{u.sandboxes + 1, u.memory + n.Memory, u.microCPUs + micro(n.CPUs), u.pids + n.Pids}
}

func (u use) sub(n Need) use {
	return use{u.sandboxes - 1, u.memory - n.Memory, u.microCPUs - micro(n.CPUs), u.pids - n.Pids}
}

func (u use) plus(o use) use {
	return use{u.sandboxes + o.sandboxes, u.memory + o.memory, u.microCPUs + o.microCPUs, u.pids + o.pids}
}

func micro(cpus float64) int64 { return int64(math.Round(cpus * 1e6)) }

// over names the first limit that u is above, with numbers; "" if there is none.
func (l Limits) over(u use, what string) string {
	switch {
	case l.Sandboxes > 0 && u.sandboxes > l.Sandboxes:
		return fmt.Sprintf("%d sandboxes are more than %s %d", u.sandboxes, what, l.Sandboxes)
	case l.Memory > 0 && u.memory > l.Memory:
		return fmt.Sprintf("%d MiB of memory are more than %s %d", u.memory>>20, what, l.Memory>>20)
	case l.CPUs > 0 && u.microCPUs > micro(l.CPUs):
		return fmt.Sprintf("%g CPUs are more than %s %g", float64(u.microCPUs)/1e6, what, l.CPUs)
	case l.Pids > 0 && u.pids > l.Pids:
		return fmt.Sprintf("%d processes are more than %s %d", u.pids, what, l.Pids)
	}
	return ""
}

// share is the largest part of the limits that n takes, and never nothing.
func (l Limits) share(n Need) float64 {
	s := 1e-6
	if l.Sandboxes > 0 {
		s = max(s, 1/float64(l.Sandboxes))
	}
	if l.Memory > 0 {
		s = max(s, float64(n.Memory)/float64(l.Memory))
	}
	if l.CPUs > 0 {
		s = max(s, n.CPUs/l.CPUs)
	}
	if l.Pids > 0 {
		s = max(s, float64(n.Pids)/float64(l.Pids))
	}
	return s
}

// Gate is the accounting and its queue. It is safe for use by many goroutines.
type Gate struct {
	config Config

	mu       sync.Mutex
	draining bool
	held     map[string]hold
	used     use
	tenants  map[string]*tenant
	waiting  int
	clock    float64 // virtual time: the clock of whoever was served last
	stats    Counters

	kept      *waiter   // for whom what gets free is kept; nil: nobody
	keptUntil time.Time // if it does not fit by then, it is passed over again
	keepAgain time.Time // not before
}

type hold struct {
	tenant string
	need   Need
}

// tenant is one that holds something or waits.
type tenant struct {
	name   string
	part   Tenant
	used   use
	wanted use // by those that wait
	queue  list.List
	clock  float64
}

type waiter struct {
	id      string
	need    Need
	since   time.Time
	wait    time.Duration // the longest, when it came
	passed  int
	granted chan error // gets one value
	place   *list.Element
}

// Counters are what has become of those who asked, since the process began.
type Counters struct {
	Admitted int64 `json:"admitted"`
	Refused  int64 `json:"refused"` // queue full, quota, draining
	Expired  int64 `json:"expired"` // waited too long, or gave up
}

func (c Config) completed() Config {
	if c.Queue == 0 {
		c.Queue = defaultQueue
	}
	if c.TenantQueue == 0 {
		c.TenantQueue = max(1, c.Queue/10)
	}
	if c.Wait == 0 {
		c.Wait = defaultWait
	}
	return c
}

// New makes a gate at which nothing is held.
func New(c Config) *Gate {
	return &Gate{config: c.completed(), held: map[string]hold{}, tenants: map[string]*tenant{}}
}

// Hold takes what n needs under id, and waits for its turn. An id that is held
// already is held on as it was, without waiting. Errors are *engine.Error of kind
// quota, queue_full, draining or cancelled.
func (g *Gate) Hold(ctx context.Context, id, tenantName string, n Need) error {
	w, err := g.enqueue(id, tenantName, n)
	if w == nil || err != nil {
		return err
	}
	timer := time.NewTimer(w.wait)
	defer timer.Stop()
	var gaveUp error
	select {
	case err := <-w.granted:
		return err
	case <-ctx.Done():
		gaveUp = engine.Refused("cancelled", "cannot admit sandbox=%s: the caller gave up after %v in the queue: %w", id, time.Since(w.since).Round(time.Millisecond), ctx.Err())
	case <-timer.C:
		gaveUp = g.full(id, fmt.Sprintf("no room was found within %v", w.wait))
	}
	if err, done := g.leave(w, tenantName); done {
		return err // granted in the same moment
	}
	return gaveUp
}

// Refusal says why Hold would be refused at once, and nil if it would not. It spares a
// caller what it does before it holds.
func (g *Gate) Refusal(id, tenantName string, n Need) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.tenant(tenantName)
	defer g.forget(t)
	err := g.refuse(t, id, n)
	if err != nil {
		g.stats.Refused++
	}
	return err
}

// enqueue returns a waiter, or nil where id is held already.
func (g *Gate) enqueue(id, tenantName string, n Need) (*waiter, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.held[id]; ok {
		return nil, nil
	}
	t := g.tenant(tenantName)
	defer g.forget(t)
	if err := g.refuse(t, id, n); err != nil {
		g.stats.Refused++
		return nil, err
	}
	w := &waiter{id: id, need: n, since: time.Now(), wait: g.config.Wait, granted: make(chan error, 1)}
	if t.queue.Len() == 0 {
		// A tenant that had nothing to wait for has saved nothing up.
		t.clock = max(t.clock, g.clock)
	}
	w.place = t.queue.PushBack(w)
	t.wanted = t.wanted.add(n)
	g.waiting++
	g.dispatch()
	return w, nil
}

// refuse says why there is no use in waiting.
func (g *Gate) refuse(t *tenant, id string, n Need) error {
	if g.draining {
		return engine.Failed("draining", "cannot admit sandbox=%s: the service takes no new work", id).
			WithFix("ask another host, or this one after its restart")
	}
	if !(n.CPUs >= 0) || n.CPUs > 1e6 || n.Memory < 0 || n.Memory > 1<<50 || n.Pids < 0 || n.Pids > 1<<40 {
		return engine.Refused("bad_limit", "cannot admit sandbox=%s: %d bytes, %v CPUs, %d processes", id, n.Memory, n.CPUs, n.Pids)
	}
	if err := g.neverFits(t, id, t.used.plus(t.wanted), n); err != nil {
		return err
	}
	if g.waiting > 0 || g.config.Total.over(g.used.add(n), "") != "" {
		switch {
		case g.waiting >= g.config.Queue:
			return g.full(id, fmt.Sprintf("%d wait already, the most that may", g.waiting))
		case t.queue.Len() >= g.config.TenantQueue:
			return g.full(id, fmt.Sprintf("%d of tenant=%s wait already, the most that may of one tenant", t.queue.Len(), t.name))
		}
	}
	return nil
}

// neverFits says why there is no room for n however long it waits, beside what its tenant
// has and waits for already.
func (g *Gate) neverFits(t *tenant, id string, beside use, n Need) error {
	if why := t.part.over(beside.add(n), "the tenant's"); why != "" {
		return engine.Refused("quota", "cannot admit sandbox=%s of tenant=%s: with it, %s", id, t.name, why).
			WithFix("tear down sandboxes of this tenant, ask for less, or have its quota raised")
	}
	if why := g.config.Total.over(use{}.add(n), "the host's"); why != "" {
		return engine.Refused("quota", "cannot admit sandbox=%s: by itself, %s", id, why).WithFix("ask for less, or have the host's totals raised")
	}
	return nil
}

func (g *Gate) full(id, why string) error {
	return engine.Failed("queue_full", "cannot admit sandbox=%s: %s", id, why).
		WithFix("try again later, or tear down sandboxes that are not needed")
}

// leave takes w out of the queue. It returns done where that was too late.
func (g *Gate) leave(w *waiter, tenantName string) (err error, done bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case err := <-w.granted:
		return err, true
	default:
	}
	t := g.tenant(tenantName)
	g.unqueue(t, w)
	g.keptInVain(w)
	g.stats.Expired++
	g.dispatch() // others may have waited for this one to fit
	g.forget(t)
	return nil, false
}

func (g *Gate) unqueue(t *tenant, w *waiter) {
	t.queue.Remove(w.place)
	t.wanted = t.wanted.sub(w.need)
	g.waiting--
}

// dispatch grants what can be granted. Preconditions: mu is held.
func (g *Gate) dispatch() {
	for g.waiting > 0 {
		t, passed := g.next()
		if t == nil {
			return
		}
		for _, w := range passed {
			w.passed++
		}
		w := t.queue.Front().Value.(*waiter)
		g.unqueue(t, w)
		g.take(t, w.id, w.need)
		if g.kept == w {
			g.kept = nil
		}
		g.clock = max(g.clock, t.clock)
		t.clock += g.config.Total.share(w.need) / t.part.Weight
		g.stats.Admitted++
		w.granted <- nil
	}
}

// next is the tenant whose turn it is and for whose first there is room, with those
// first ones whose turn it was before.
func (g *Gate) next() (*tenant, []*waiter) {
	var passed []*waiter
	tried := map[*tenant]bool{}
	for {
		var best *tenant
		for _, t := range g.tenants {
			if t.queue.Len() > 0 && !tried[t] && (best == nil || before(t, best)) {
				best = t
			}
		}
		if best == nil {
			return nil, nil
		}
		w := best.queue.Front().Value.(*waiter)
		if g.config.Total.over(g.used.add(w.need), "") == "" {
			return best, passed
		}
		if w.passed >= maxPassed && g.keeps(best, w) {
			return nil, nil
		}
		passed = append(passed, w)
		tried[best] = true
	}
}

// keeps says whether what gets free is kept for w, the first one of t, for whom there is
// not room enough.
func (g *Gate) keeps(t *tenant, w *waiter) bool {
	now := time.Now()
	if g.kept == nil && !now.Before(g.keepAgain) {
		span := g.config.Wait / keepsInWait
		g.kept, g.keptUntil = w, now.Add(span)
		time.AfterFunc(span, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.dispatch()
		})
	}
	if g.kept != w || now.Before(g.keptUntil) {
		return g.kept == w
	}
	g.keptInVain(w)
	w.passed = 0
	t.clock += g.config.Total.share(w.need) / t.part.Weight
	return false
}

// keptInVain ends that room is kept for w, if it is.
func (g *Gate) keptInVain(w *waiter) {
	if g.kept == w {
		g.kept, g.keepAgain = nil, time.Now().Add(keepsBetween*g.config.Wait/keepsInWait)
	}
}

// before orders by clock, and by name where clocks are equal, so that the order does
// not depend on a map's.
func before(a, b *tenant) bool {
	if a.clock != b.clock {
		return a.clock < b.clock
	}
	return a.name < b.name
}

func (g *Gate) take(t *tenant, id string, n Need) {
	if _, ok := g.held[id]; ok {
		return // restored from its record while it waited
	}
	g.held[id] = hold{t.name, n}
	g.used = g.used.add(n)
	t.used = t.used.add(n)
}

// Release gives up what id holds. Idempotent.
func (g *Gate) Release(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h, ok := g.held[id]
	if !ok {
		return
	}
	delete(g.held, id)
	t := g.tenant(h.tenant)
	g.used = g.used.sub(h.need)
	t.used = t.used.sub(h.need)
	g.dispatch()
	g.forget(t)
}

// Restore holds what a sandbox takes that is on record as living, whatever the bounds
// say and without waiting. Idempotent.
func (g *Gate) Restore(id, tenantName string, n Need) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.take(g.tenant(tenantName), id, n)
}

// unrecorded is what ids of holds begin with that are compared with no record.
const unrecorded = "call/"

// Admit is Hold for a call, which is on no record, under an id of its own. The returned
// function gives up what it took, and may be called again.
func (g *Gate) Admit(ctx context.Context, id, tenantName string, n Need) (release func(), err error) {
	id = unrecorded + id
	g.mu.Lock()
	_, twice := g.held[id]
	g.mu.Unlock()
	if twice {
		return nil, engine.Refused("exists", "cannot admit %s: it is under way", id)
	}
	if err := g.Hold(ctx, id, tenantName, n); err != nil {
		return nil, err
	}
	return func() { g.Release(id) }, nil
}

// Held are the ids of what is held for sandboxes on record.
func (g *Gate) Held() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	ids := make([]string, 0, len(g.held))
	for id := range g.held {
		if !strings.HasPrefix(id, unrecorded) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Drain refuses everything from now on that does not hold or wait already, or takes
// that back.
func (g *Gate) Drain(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.draining = on
}

// Draining says whether new work is refused.
func (g *Gate) Draining() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.draining
}

// tenant finds or makes the entry of a tenant.
func (g *Gate) tenant(name string) *tenant {
	t, ok := g.tenants[name]
	if !ok {
		t = &tenant{name: name, part: g.config.part(name), clock: g.clock}
		g.tenants[name] = t
	}
	return t
}

// part is what a tenant has by this config.
func (c Config) part(name string) Tenant {
	part, named := c.Tenants[name]
	if !named {
		part = c.Default
	}
	if !(part.Weight > 0) {
		part.Weight = 1
	}
	return part
}

// forget drops a tenant of whom nothing is known any more, so that names do not pile
// up. While others wait, one whose clock is ahead keeps it: coming back under the same
// name must not be an advantage.
func (g *Gate) forget(t *tenant) {
	if t.idle() && (g.waiting == 0 || t.clock <= g.clock) {
		delete(g.tenants, t.name)
	}
	if g.waiting == 0 && len(g.tenants) > len(g.held)+manyTenants {
		for name, t := range g.tenants {
			if t.idle() {
				delete(g.tenants, name)
			}
		}
	}
}

// manyTenants are so many entries of idle tenants that they are worth looking for.
const manyTenants = 64

func (t *tenant) idle() bool { return t.used == use{} && t.queue.Len() == 0 }

// MaxWait is the longest wait.
func (g *Gate) MaxWait() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.config.Wait
}
