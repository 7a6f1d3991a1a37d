package api

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/service"
)

// ownerOf is how a caller's owner is kept: below the tenant, if the caller is confined to
// one, so that no other can have it.
func (c Caller) ownerOf(asked string) string {
	switch {
	case c.Tenant == "" && asked == "":
		return c.Name
	case c.Tenant == "":
		return asked
	case asked == "" || asked == c.Tenant:
		return c.Tenant
	}
	return c.Tenant + "/" + asked
}

// nameOf is how a caller's name of a sandbox is kept: a tenant's names are its own, so that
// nobody learns from a name that is taken, or takes those of others.
func (c Caller) nameOf(asked string) string {
	if c.Tenant == "" {
		return asked
	}
	return c.Tenant + ":" + asked // no tenant has a colon
}

// owns says whether an owner, as it is kept, is one of the caller's tenant.
func (c Caller) owns(kept string) bool {
	return c.Tenant == "" || kept == c.Tenant || strings.HasPrefix(kept, c.Tenant+"/")
}

// showName is a name as the caller knows it.
func (c Caller) showName(kept string) string {
	if c.Tenant == "" {
		return kept
	}
	return strings.TrimPrefix(kept, c.Tenant+":")
}

// showOwner is an owner as the caller knows it.
func (c Caller) showOwner(kept string) string {
	if c.Tenant == "" {
		return kept
	}
	return strings.TrimPrefix(kept, c.Tenant+"/")
}

// sandbox returns the sandbox that the path names, by name or id, if it is there for the
// caller.
//
// SECURITY: what belongs to another tenant is not there, by whatever name, id, owner or label.
// The manager knows no callers: whoever may name a sandbox may do everything to it.
// Holds because: every route with a sandbox in its path comes through here, a tenant's names
// are looked up among its own alone, what is found by id is compared with the caller's tenant,
// and filters carry it. Not covered: callers without a tenant, who see all.
// Checked by: TestTenantsSeeNothingOfEachOther.
func (x *exchange) sandbox() (service.Sandbox, error) {
	asked := x.r.PathValue("id")
	s, err := x.server.sandboxes.Get(x.r.Context(), x.caller.nameOf(asked))
	if x.caller.Tenant == "" {
		return s, err
	}
	if isKind(err, "not_found") {
		s, err = x.server.sandboxes.Get(x.r.Context(), asked)
		if s.ID != asked { // found by another's name, or an error that tells of it
			s = service.Sandbox{}
		}
	} else if err != nil {
		return s, err // of its own
	}
	if s.Tenant != x.caller.Tenant {
		return service.Sandbox{}, engine.Refused("not_found", "cannot find sandbox=%q: there is none on record", clip(asked)).WithFix("list them: GET /v1/sandboxes, or engine sandbox ls")
	}
	return s, err
}

func isKind(err error, kind string) bool {
	var e *engine.Error
	return errors.As(err, &e) && e.Kind == kind
}

func (x *exchange) showSandbox(s service.Sandbox) wire.Sandbox {
	w := wire.Sandbox{
		ID: s.ID, Name: x.caller.showName(s.Name), Owner: x.caller.showOwner(s.Owner), State: string(s.State), Image: s.Image, Rootfs: s.Rootfs, Runtime: s.Runtime,
		Labels: s.Labels, Limits: wire.SandboxLimits(s.Limits), Clamped: []wire.Clamped{}, CreatedAt: s.CreatedAt.UTC(), Deadline: s.Deadline,
		Alive: s.Alive, OOMKilled: s.OOMKilled,
	}
	for _, c := range s.Clamped {
		w.Clamped = append(w.Clamped, wire.Clamped(c))
	}
	if s.Estimate != nil {
		e := wire.Estimate(*s.Estimate)
		w.Estimate = &e
	}
	if s.Result != nil {
		result := resultOf(*s.Result)
		w.Result = &result
	}
	return w
}

func (s *Server) createSandbox(x *exchange) error {
	var ask wire.SandboxRequest
	if err := x.body(&ask); err != nil {
		return err
	}
	spec, err := s.spec(x.caller, ask)
	if err != nil {
		return err
	}
	if err := s.drain.refuse(s.stopping); err != nil {
		// What lives is adopted all the same, and nothing new starts.
		if have, getErr := s.sandboxes.Get(x.r.Context(), spec.Name); getErr != nil || have.Owner != spec.Owner || !have.Alive {
			return err
		}
	}
	made, created, err := s.sandboxes.Create(x.r.Context(), spec)
	var other *service.Failure
	if isKind(err, "name_conflict") && errors.As(err, &other) && !x.caller.owns(other.Owner) || err == nil && !x.caller.sees(made.Tenant) {
		return engine.Refused("name_conflict", "cannot create sandbox=%s: the name is taken", ask.Name).WithFix("choose another name")
	}
	if err != nil {
		return err
	}
	if created {
		s.follower.find(made.ID)
		return writeJSON(x.w, http.StatusCreated, x.showSandbox(made))
	}
	return writeJSON(x.w, http.StatusOK, x.showSandbox(made))
}

// spec makes a Spec of what a caller asks for, within what they are granted.
func (s *Server) spec(caller Caller, ask wire.SandboxRequest) (service.Spec, error) {
	if ask.Rootfs != "" && caller.Class < Admin {
		return service.Spec{}, engine.Refused("forbidden", "cannot use rootfs=%s: only an admin names directories of the host", clip(ask.Rootfs)).
			WithFix("import it with engine image import, and name the image")
	}
	if !service.ValidName(ask.Name) {
		return service.Spec{}, engine.Refused("bad_name", "cannot accept name=%q: want 1 to 128 letters, digits and ._:-, a letter or digit first", clip(ask.Name))
	}
	spec := service.Spec{
		Name: caller.nameOf(ask.Name), Owner: caller.ownerOf(ask.Owner), Tenant: caller.Tenant, Image: ask.Image, Rootfs: ask.Rootfs, Runtime: ask.Runtime,
		CPUs: ask.CPUs, MemoryMB: ask.MemoryMB, Pids: ask.Pids, Class: ask.Class, Env: ask.Env,
	}
	var err error
	if spec.Labels, err = labels(ask.Labels, caller.Tenant); err != nil {
		return spec, err
	}
	if spec.TTL, err = duration("ttlSeconds", ask.TTLSeconds); err != nil {
		return spec, err
	}
	if spec.Idle, err = duration("idleSeconds", math.Max(ask.IdleSeconds, -1)); err != nil {
		return spec, err
	}
	if caller.Class < Admin {
		spec.Egress, err = sandbox.Resolve(ask.Egress, s.policy.Load().limits.egress, egressKey)
	} else {
		spec.Egress, err = sandbox.ParseGrants(ask.Egress)
	}
	if err != nil {
		return spec, err
	}
	if spec.Mounts, err = plan(caller, ask.Mounts); err != nil {
		return spec, err
	}
	for _, f := range ask.Inputs {
		spec.Files = append(spec.Files, service.InputFile(f))
	}
	for name, value := range ask.Secrets {
		spec.Secrets = append(spec.Secrets, engine.Secret{Name: name, Value: []byte(value)})
	}
	slices.SortFunc(spec.Secrets, func(a, b engine.Secret) int { return strings.Compare(a.Name, b.Name) })
	if ask.Callback != nil {
		spec.Callback = &service.Callback{URL: ask.Callback.URL, Secret: ask.Callback.Secret}
	}
	return spec, nil
}

// plan is what a caller may see of the host's directories: of the trees, one that is
// confined to a tenant sees that of the tenant's name alone.
func plan(caller Caller, ask *wire.Mounts) (service.Plan, error) {
	if ask == nil {
		return service.Plan{}, nil
	}
	if ask.Resource != "" && !caller.sees(ask.Resource) {
		return service.Plan{}, engine.Refused("forbidden", "cannot mount resource=%q: %s is confined to that of tenant=%s", clip(ask.Resource), caller.Name, caller.Tenant)
	}
	return service.Plan(*ask), nil
}

// duration reads seconds, which may be below zero where that means something.
func duration(name string, seconds float64) (time.Duration, error) {
	if math.IsNaN(seconds) || math.Abs(seconds) > 1e9 {
		return 0, engine.Refused("bad_limit", "cannot accept %s=%v: want a number of seconds, at most 1000000000", name, seconds)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

var sandboxStates = []service.State{service.Queued, service.Starting, service.Ready, service.Paused, service.Ended}

// sandboxFilter reads the parameters that choose sandboxes.
func (x *exchange) sandboxFilter() (service.Filter, error) {
	query := x.r.URL.Query()
	f := service.Filter{Tenant: x.caller.Tenant, Labels: map[string]string{}}
	if owner := query.Get("owner"); owner != "" {
		f.Owner = x.caller.ownerOf(owner)
	}
	for _, text := range query["label"] {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return f, engine.Refused("bad_parameter", "cannot accept label=%q: want KEY=VALUE", clip(text))
		}
		f.Labels[key] = value
	}
	for _, state := range query["state"] {
		if !slices.Contains(sandboxStates, service.State(state)) {
			return f, engine.Refused("bad_parameter", "cannot accept state=%q: want queued, starting, ready, paused or ended", clip(state))
		}
		f.States = append(f.States, service.State(state))
	}
	return f, nil
}

func (s *Server) listSandboxes(x *exchange) error {
	f, err := x.sandboxFilter()
	if err != nil {
		return err
	}
	if err := x.room(bulkBody); err != nil {
		return err
	}
	all, err := s.sandboxes.List(x.r.Context(), f)
	if err != nil {
		return err
	}
	reply := wire.SandboxList{Sandboxes: []wire.Sandbox{}}
	for _, one := range all {
		reply.Sandboxes = append(reply.Sandboxes, x.showSandbox(one))
	}
	return x.reply(reply)
}

// removeSandboxes tears down all of an owner, or with some labels.
func (s *Server) removeSandboxes(x *exchange) error {
	f, err := x.sandboxFilter()
	if err != nil {
		return err
	}
	if f.Owner == "" && len(f.Labels) == 0 {
		return engine.Refused("bad_filter", "cannot tear down sandboxes: the filter would choose all of them").WithFix("name an owner or a label")
	}
	count, err := s.sandboxes.TeardownAll(x.r.Context(), f)
	if err != nil {
		return err
	}
	return x.reply(wire.Removed{Count: count})
}

func (s *Server) getSandbox(x *exchange) error {
	one, err := x.sandbox()
	if err != nil {
		return err
	}
	return x.reply(x.showSandbox(one))
}

// removeSandbox tears one down. One that is gone is a success.
func (s *Server) removeSandbox(x *exchange) error {
	one, err := x.sandbox()
	if isKind(err, "not_found") {
		return x.reply(wire.Removed{})
	}
	name := one.ID
	if err != nil {
		if x.caller.Tenant != "" {
			return err
		}
		name = x.r.PathValue("id") // its record is damaged
	}
	if err := s.sandboxes.Teardown(x.r.Context(), name); err != nil {
		return err
	}
	return x.reply(wire.Removed{Count: 1})
}

func (s *Server) liveness(x *exchange) error {
	one, err := x.sandbox()
	if isKind(err, "not_found") {
		return x.reply(wire.Liveness{})
	}
	if err != nil {
		return err
	}
	return x.reply(wire.Liveness{Alive: one.Alive, OOMKilled: one.OOMKilled})
}

func (s *Server) renewSandbox(x *exchange) error {
	var ask wire.RenewRequest
	if err := x.body(&ask); err != nil {
		return err
	}
	ttl, err := duration("ttlSeconds", ask.TTLSeconds)
	if err != nil {
		return err
	}
	one, err := x.sandbox()
	if err != nil {
		return err
	}
	deadline, err := s.sandboxes.Renew(x.r.Context(), one.ID, ttl)
	if err != nil {
		return err
	}
	return x.reply(wire.Renewed{Deadline: deadline.UTC()})
}

func (s *Server) pauseSandbox(x *exchange) error  { return s.change(x, s.sandboxes.Pause) }
func (s *Server) resumeSandbox(x *exchange) error { return s.change(x, s.sandboxes.Resume) }

func (s *Server) change(x *exchange, do func(ctx context.Context, id string) error) error {
	one, err := x.sandbox()
	if err != nil {
		return err
	}
	if err := do(x.r.Context(), one.ID); err != nil {
		return err
	}
	if one, err = s.sandboxes.Get(x.r.Context(), one.ID); err != nil {
		return err
	}
	return x.reply(x.showSandbox(one))
}

func (s *Server) sandboxStats(x *exchange) error {
	one, err := x.sandbox()
	if err != nil {
		return err
	}
	seconds, err := x.number("every", 1, 3600)
	if err != nil {
		return err
	}
	stats, err := s.stats(x.r.Context(), one.ID)
	if err != nil {
		return err
	}
	if !x.wantsEvents() {
		return x.reply(stats)
	}
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	events := x.stream()
	for ctx.Err() == nil {
		if events.send("", "stats", stats) != nil || events.flush() != nil {
			return nil // the client is gone
		}
		wait(ctx, time.Duration(max(seconds, 1))*time.Second)
		if stats, err = s.stats(ctx, one.ID); err != nil {
			return events.fail(err)
		}
	}
	return nil
}

func (s *Server) stats(ctx context.Context, id string) (wire.Stats, error) {
	u, err := s.sandboxes.Stats(ctx, id)
	if err != nil {
		return wire.Stats{}, err
	}
	return wire.Stats{Time: time.Now().UTC(), Usage: wire.Usage(u.Usage), MemoryBytes: u.MemoryBytes, Pids: u.Pids, Paused: u.Paused}, nil
}

func (s *Server) estimate(x *exchange) error {
	var ask wire.EstimateRequest
	if err := x.body(&ask); err != nil {
		return err
	}
	var files []service.InputFile
	for _, f := range ask.Inputs {
		files = append(files, service.InputFile(f))
	}
	return x.reply(wire.Estimate(service.Estimate(files)))
}
