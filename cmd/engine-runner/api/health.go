package api

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
)

// drain is whether nothing new may start. It is a file, so that it outlives a restart.
type drain struct {
	path string
	mu   sync.Mutex
}

func drainPath(h engine.Host) string { return filepath.Join(h.StateDir, "draining") }

func (d *drain) on() (bool, error) {
	_, err := os.Stat(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (d *drain) set(on bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !on {
		err := os.Remove(d.path)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	}
	f, err := os.OpenFile(d.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// refuse is why nothing new may start, or nil.
func (d *drain) refuse(stopping context.Context) error {
	if stopping.Err() != nil {
		return engine.Failed("draining", "cannot start anything: the service is about to stop").WithFix("ask again in a moment")
	}
	on, err := d.on()
	if err != nil {
		return engine.Failed("no_record", "cannot tell whether the service is draining: %w", err)
	}
	if on {
		return engine.Failed("draining", "cannot start anything: the service is draining").WithFix("ask another host, or end it: PUT /v1/drain")
	}
	return nil
}

// Draining reports whether nothing new may start, also when that cannot be told.
func (s *Server) Draining() bool { return s.drain.refuse(s.stopping) != nil }

func (s *Server) getDrain(x *exchange) error {
	on, err := s.drain.on()
	if err != nil {
		return engine.Failed("no_record", "cannot tell whether the service is draining: %w", err)
	}
	return x.reply(wire.Drain{Draining: on, Live: s.follower.live()})
}

func (s *Server) setDrain(x *exchange) error {
	var ask wire.DrainRequest
	if err := x.body(&ask); err != nil {
		return err
	}
	if err := s.drain.set(ask.Draining); err != nil {
		return engine.Failed("no_record", "cannot note that the service is draining: %w", err)
	}
	if s.sandboxes != nil {
		s.sandboxes.Drain(ask.Draining)
	}
	s.log.Info("drain", "draining", ask.Draining, "caller", x.caller.Name)
	return s.getDrain(x)
}

// gcState is what is known of the collections of dead runs.
type gcState struct {
	mu    sync.Mutex
	ended time.Time // of the last collection, or the beginning
	err   error
	every time.Duration
}

// Collect collects what dead runs left, now and at every interval, until ctx ends.
func (s *Server) Collect(ctx context.Context, every time.Duration) {
	s.gc.mu.Lock()
	s.gc.every, s.gc.ended = every, time.Now()
	s.gc.mu.Unlock()
	for ctx.Err() == nil {
		if _, err := s.collect(ctx, false); err != nil {
			e := engine.AsError(err)
			s.log.Error("gc", "kind", e.Kind, "message", e.Message)
		}
		wait(ctx, every)
	}
}

func (s *Server) collect(ctx context.Context, dryRun bool) ([]engine.GCAction, error) {
	began := time.Now()
	actions, err := s.host.GC(ctx, dryRun)
	if dryRun {
		return actions, err
	}
	s.gc.mu.Lock()
	s.gc.ended, s.gc.err = time.Now(), err
	s.gc.mu.Unlock()
	s.metrics.collected(actions, time.Since(began))
	for _, a := range actions {
		s.log.Info("collected", "id", a.ID, "object", a.Object, "action", a.Action, "why", a.Why)
	}
	return actions, err
}

// retainEvery is between two looks for records that are kept no longer.
const retainEvery = 10 * time.Minute

// Retain deletes records of runs that have been over for longer than keep says, until ctx
// ends. As long as it says 0 nothing is deleted. The first time is a while after the start,
// so that whoever waited for the service gets results that became old meanwhile.
func (s *Server) Retain(ctx context.Context, keep func() time.Duration) {
	for wait(ctx, retainEvery); ctx.Err() == nil; wait(ctx, retainEvery) {
		if d := keep(); d > 0 {
			s.retain(ctx, time.Now().Add(-d))
		}
	}
}

func (s *Server) retain(ctx context.Context, before time.Time) {
	ids, err := s.host.Over(ctx, before)
	deleted := 0
	for _, id := range ids {
		if ctx.Err() != nil {
			return
		}
		// One that another deleted meanwhile is no failure, nor is one begun anew by its id.
		if failed := s.host.Remove(id); failed == nil {
			deleted++
		} else if !isKind(failed, "not_found") && !isKind(failed, "running") {
			err = failed
		}
	}
	if deleted > 0 {
		s.log.Info("old records deleted", "runs", deleted)
	}
	if err != nil && ctx.Err() == nil {
		e := engine.AsError(err)
		s.log.Error("old records not deleted", "kind", e.Kind, "message", e.Message)
	}
}

func (s *Server) collectNow(x *exchange) error {
	var ask wire.GCRequest
	if err := x.body(&ask); err != nil {
		return err
	}
	actions, err := s.collect(x.r.Context(), ask.DryRun)
	if err != nil {
		return err
	}
	report := wire.GCReport{Actions: []wire.GCAction{}}
	for _, a := range actions {
		report.Actions = append(report.Actions, wire.GCAction(a))
	}
	return x.reply(report)
}

// Follow notes the ends of the runs that are there already, until ctx ends.
func (s *Server) Follow(ctx context.Context) {
	if err := s.follower.adopt(); err != nil {
		s.log.Error("cannot find the runs that go on", "message", err.Error())
	}
	s.follower.look(ctx)
}

// check makes a line of health of what was found.
func check(name, found string, err error) wire.Check {
	c := wire.Check{Name: name, OK: err == nil, Found: found}
	if err != nil {
		e := engine.AsError(err)
		c.Found, c.Kind, c.Fix = e.Message, e.Kind, e.Fix
	}
	return c
}

// health looks whether a run could start now.
func (s *Server) health(ctx context.Context) []wire.Check {
	return append([]wire.Check{
		check("start", "a run could start: programs, directories, cgroups, room", s.host.Ready(ctx, s.policy.Load().limits.bestEffort)),
		check("gc", "dead runs are collected", s.gc.stuck()),
		check("admission", "there is an answer to who asks for room", s.admits()),
	}, s.linkChecks()...)
}

// admitBound is for the admission to say what is held, which takes it no time.
const admitBound = time.Second

// admits is why the admission does not answer, or nil.
func (s *Server) admits() error {
	if s.sandboxes == nil {
		return nil
	}
	answered := make(chan struct{})
	go func() {
		s.sandboxes.Gate().Snapshot()
		close(answered)
	}()
	select {
	case <-answered:
		return nil
	case <-time.After(admitBound):
		return engine.Failed("stuck", "cannot admit anything: the admission has not answered for %v", admitBound).WithFix("restart the service: sandboxes go on meanwhile")
	}
}

// stuck is why dead runs are not collected, or nil.
func (g *gcState) stuck() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if late := time.Since(g.ended); g.every > 0 && late > 3*g.every+time.Minute {
		return engine.Failed("not_collected", "cannot say what dead runs left: no collection has ended for %v", late.Round(time.Second)).
			WithFix("look for a process that hangs in the kernel, and restart the service")
	}
	return g.err
}

func (s *Server) healthz(x *exchange) error { return x.answerHealth(s.health(x.r.Context())) }

// readyz is healthz, and whether new work should come here.
func (s *Server) readyz(x *exchange) error {
	return x.answerHealth(append(s.health(x.r.Context()), check("drain", "new work is accepted", s.drain.refuse(s.stopping))))
}

func (x *exchange) answerHealth(checks []wire.Check) error {
	h, status := wire.Health{OK: true, Checks: checks}, http.StatusOK
	for _, c := range checks {
		switch {
		case c.OK:
		case c.Minor:
			h.Degraded = true
		default:
			h.OK, status = false, http.StatusServiceUnavailable
			x.w.kind = c.Kind
		}
	}
	return writeJSON(x.w, status, h)
}

func (s *Server) version(x *exchange) error {
	return x.reply(wire.VersionInfo{
		Version: engine.Version, API: wire.Version,
		Caller: wire.Caller{Name: x.caller.Name, Class: x.caller.Class.String(), Tenant: x.caller.Tenant},
	})
}
