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
	"github.com/direct-oci/engine/cmd/engine-runner/config"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/netns/egress"
	"github.com/direct-oci/engine/service"
)

// tenantLabel is the label of whom a run belongs to. No caller sets it.
const tenantLabel = service.TenantLabel

// ceiling is the most that a caller who is no admin is granted.
type ceiling struct {
	max        sandbox.Limits // zero: no maximum of the config's
	egress     egress.Policy
	bestEffort bool // for everybody: a matter of the host
}

func newCeiling(c config.Config) ceiling {
	s := c.Serve()
	l := ceiling{bestEffort: s.BestEffortLimits, max: sandbox.Limits{
		CPUs: s.Limits.CPUs, MemoryMB: s.Limits.MemoryMB, Pids: s.Limits.Pids, TimeoutSeconds: s.Limits.TimeoutSeconds,
	}}
	if p, err := sandbox.ParseGrants(s.Egress.Allow); err == nil { // check has seen to it
		l.egress = p
	}
	l.egress.Internet = l.egress.Internet || s.Egress.Internet
	return l
}

func (s *Server) startRun(x *exchange) error {
	var ask wire.RunRequest
	if err := x.body(&ask); err != nil {
		return err
	}
	if err := s.drain.refuse(s.stopping); err != nil {
		return err
	}
	req, secrets, err := s.request(x.caller, ask)
	if err != nil {
		return err
	}
	run, err := s.admitted(x.r.Context(), req, secrets)
	if err != nil {
		return err
	}
	s.follower.follow(run)
	record, err := s.host.Load(run.ID())
	if err != nil {
		return err
	}
	status := http.StatusCreated
	if run.Joined() {
		status = http.StatusOK
		if !x.caller.sees(record.Request.Labels[tenantLabel]) {
			return engine.Refused("exists", "cannot start run=%s: a run of another request has this id", run.ID()).WithFix("choose another id")
		}
	}
	return writeJSON(x.w, status, runOf(record))
}

// admitted starts a run once there is room for it.
func (s *Server) admitted(ctx context.Context, req engine.Request, secrets []engine.Secret) (run *engine.Run, err error) {
	if req.ID == "" {
		req.ID = journal.NewID()
	}
	start := func() error {
		run, err = s.host.Start(ctx, req, secrets, engine.Stdio{})
		return err
	}
	if s.sandboxes == nil {
		return run, start()
	}
	return run, s.sandboxes.StartRun(ctx, req, start)
}

// request makes a request of the engine's of what a caller asks for, within what they
// are granted.
func (s *Server) request(caller Caller, ask wire.RunRequest) (engine.Request, []engine.Secret, error) {
	granted := s.policy.Load().limits
	if ask.Rootfs != "" && caller.Class < Admin {
		return engine.Request{}, nil, engine.Refused("forbidden", "cannot run in rootfs=%s: only an admin names directories of the host", clip(ask.Rootfs)).
			WithFix("import it with engine image import, and name the image")
	}
	req := engine.Request{
		ID: ask.ID, Runtime: ask.Runtime, Image: ask.Image, Rootfs: ask.Rootfs, Command: ask.Command,
		Workdir: ask.Workdir, UID: ask.UID, GID: ask.GID, BestEffortLimits: granted.bestEffort,
	}
	if req.Runtime == "" {
		req.Runtime = "auto"
	}
	var err error
	if req.Env, err = environ(ask.Env); err != nil {
		return req, nil, err
	}
	if req.Labels, err = labels(ask.Labels, caller.Tenant); err != nil {
		return req, nil, err
	}
	if req.Limits, err = limitsOf(ask.Limits); err != nil {
		return req, nil, err
	}
	most := egress.Policy{}
	if caller.Class < Admin {
		most = granted.egress
		if err := withinMax(req.Limits, granted.max); err != nil {
			return req, nil, err
		}
		if req.Egress, err = sandbox.Resolve(ask.Egress, most, egressKey); err != nil {
			return req, nil, err
		}
	} else if req.Egress, err = sandbox.ParseGrants(ask.Egress); err != nil {
		return req, nil, err
	}
	for _, f := range ask.Files {
		file := engine.File{Path: f.Path, Mode: f.Mode, Data: f.Data}
		if file.Mode == 0 {
			file.Mode = 0o644
		}
		req.Files = append(req.Files, file)
	}
	var secrets []engine.Secret
	for name, value := range ask.Secrets {
		secrets = append(secrets, engine.Secret{Name: name, Value: []byte(value)})
	}
	slices.SortFunc(secrets, func(a, b engine.Secret) int { return strings.Compare(a.Name, b.Name) })
	return req, secrets, nil
}

// environ is an environment as the engine takes it, in order: the same request is the
// same record.
func environ(ask map[string]string) ([]string, error) {
	var env []string
	for name, value := range ask {
		if strings.Contains(name, "=") { // it would be another name
			return nil, engine.Refused("bad_env", "cannot accept env=%q: want a name of letters, digits and _", clip(name))
		}
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env, nil
}

// labels are a run's own and its tenant's.
func labels(ask map[string]string, tenant string) (map[string]string, error) {
	all := map[string]string{}
	for k, v := range ask {
		if k == tenantLabel {
			return nil, engine.Refused("bad_label", "cannot accept label=%s: it is the service's own", k)
		}
		all[k] = v
	}
	if tenant != "" {
		all[tenantLabel] = tenant
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

// limitsOf fills in the defaults.
func limitsOf(ask wire.Limits) (engine.Limits, error) {
	l := engine.DefaultLimits()
	if ask.CPUs != 0 {
		l.CPUs = ask.CPUs
	}
	if ask.Pids != 0 {
		l.Pids = ask.Pids
	}
	if ask.OutputKeptBytes != 0 {
		l.OutputKept = ask.OutputKeptBytes
	}
	l.OutputMax = ask.OutputMaxBytes
	for _, f := range []struct {
		name string
		ask  float64
		unit float64
		to   *int64
	}{
		{"memoryMb", ask.MemoryMB, 1 << 20, &l.Memory},
		{"tmpMb", ask.TmpMB, 1 << 20, &l.TmpSize},
		{"workspaceMb", ask.WorkspaceMB, 1 << 20, &l.WorkspaceSize},
		{"timeoutSeconds", ask.TimeoutSeconds, 1e9, (*int64)(&l.Timeout)},
	} {
		if f.ask == 0 {
			continue
		}
		if v := f.ask * f.unit; v > 0 && v < math.MaxInt64 {
			*f.to = int64(v)
		} else {
			return l, engine.Refused("bad_limit", "cannot accept %s=%v: want more than 0, or 0 for the default", f.name, f.ask)
		}
	}
	return l, nil
}

// egressKey is where the config has the most that callers of the service are granted.
const egressKey = "service.egress"

// withinMax refuses what is above the config's maxima.
func withinMax(l engine.Limits, most sandbox.Limits) error {
	for _, c := range []struct {
		name       string
		asked, max float64
	}{
		{"cpus", l.CPUs, most.CPUs},
		{"memoryMb", float64(l.Memory) / (1 << 20), most.MemoryMB},
		{"pids", float64(l.Pids), float64(most.Pids)},
		{"timeoutSeconds", l.Timeout.Seconds(), most.TimeoutSeconds},
	} {
		if c.max > 0 && c.asked > c.max {
			return engine.Refused("bad_limit", "cannot grant %s=%v: the service grants %v", c.name, c.asked, c.max).
				WithFix("ask for less, or have service.limits in the config changed")
		}
	}
	return nil
}

// load returns the run that the path names, if it is there for the caller.
func (x *exchange) load() (engine.Record, error) {
	id := x.r.PathValue("id")
	if !journal.ValidID(id) {
		return engine.Record{}, engine.Refused("bad_id", "cannot accept id=%q: want 16 lower-case letters and digits", clip(id))
	}
	record, err := x.server.host.Load(id)
	if err == nil && !x.caller.sees(record.Request.Labels[tenantLabel]) {
		err = engine.Refused("not_found", "cannot find run=%s: there is none on record", id)
	}
	return record, err
}

var runStates = []engine.State{engine.Creating, engine.Created, engine.Running, engine.Stopped, engine.Removed}

func (s *Server) listRuns(x *exchange) error {
	limit, err := x.number("limit", 100, 1000)
	if err != nil {
		return err
	}
	query := x.r.URL.Query()
	if err := x.room(bulkBody); err != nil {
		return err
	}
	page := wire.RunList{Runs: []wire.Run{}}
	key, value, labelled := strings.Cut(query.Get("label"), "=")
	if !labelled && query.Get("label") != "" {
		return engine.Refused("bad_parameter", "cannot accept label=%q: want KEY=VALUE", clip(key))
	}
	if state := query.Get("state"); state != "" && !slices.Contains(runStates, engine.State(state)) {
		return engine.Refused("bad_parameter", "cannot accept state=%q: want creating, created, running, stopped or removed", clip(state))
	}
	skip := query.Get("after") != ""
	size := 0
	for r, err := range s.host.All() {
		if err != nil {
			return err
		}
		if skip {
			skip = r.ID != query.Get("after")
			continue
		}
		has, found := r.Request.Labels[key]
		if !x.caller.sees(r.Request.Labels[tenantLabel]) || labelled && (!found || has != value) ||
			query.Get("state") != "" && string(r.State) != query.Get("state") {
			continue
		}
		if int64(len(page.Runs)) == max(limit, 1) || size > maxPage {
			page.Next = page.Runs[len(page.Runs)-1].ID
			break
		}
		page.Runs = append(page.Runs, runOf(r))
		size += requestSize(r.Request)
	}
	return x.reply(page)
}

// maxPage is how much of what callers wrote is in one page of runs, about: it may end
// before its limit.
const maxPage = 1 << 20

// requestSize is about what a request takes in an answer.
func requestSize(q engine.Request) int {
	size := 0
	for _, texts := range [][]string{q.Command, q.Env} {
		for _, text := range texts {
			size += len(text)
		}
	}
	for _, f := range q.Files {
		size += len(f.Path) + 100
	}
	for k, v := range q.Labels {
		size += len(k) + len(v)
	}
	return size
}

func (s *Server) getRun(x *exchange) error {
	record, err := x.load()
	if err != nil {
		return err
	}
	return x.replyRun(record)
}

// maxOutput is how much of each stream is in an answer about a run. All of it is to be had
// from its logs, page by page.
const maxOutput = 4 << 20

// replyRun answers with a run and, if it has ended, its output.
func (x *exchange) replyRun(record engine.Record) error {
	if r := record.Result; r != nil {
		if err := x.roomForOutput(x.server.host.OutputPath(r.ID), 0, 2*maxOutput); err != nil {
			return err
		}
		x.server.host.FillOutputTo(r, maxOutput)
	}
	return x.reply(runOf(record))
}

func (s *Server) waitRun(x *exchange) error {
	seconds, err := x.number("seconds", 60, 600)
	if err != nil {
		return err
	}
	record, err := x.load()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), time.Duration(seconds)*time.Second)
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	if record, err = s.follower.await(ctx, record); err != nil {
		return err
	}
	if x.r.Context().Err() != nil {
		return nil // nobody is there any more
	}
	return x.replyRun(record)
}

// killBound is for the result of a run that was ended.
const killBound = 30 * time.Second

func (s *Server) killRun(x *exchange) error {
	record, err := x.load()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), killBound)
	defer cancel()
	if err := s.host.Kill(ctx, record.ID); err != nil {
		return err
	}
	if record, err = s.host.Load(record.ID); err != nil {
		return err
	}
	return x.replyRun(record)
}

// teardownBound is for a monitor that has told its result already.
const teardownBound = 10 * time.Second

// deleteRun removes a record. A monitor may still be tearing down a run whose result is
// known: that is waited for.
func (s *Server) deleteRun(x *exchange) error {
	record, err := x.load()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), teardownBound)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.host.Remove(record.ID)
		var e *engine.Error
		if err == nil {
			return x.reply(wire.RunID{ID: record.ID})
		}
		if !errors.As(err, &e) || e.Kind != "running" {
			return err
		}
		if now, loadErr := s.host.Load(record.ID); loadErr != nil || now.Result == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
