package link

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/audit"
	"github.com/direct-oci/engine/capability/review"
	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
)

// errForged ends a connection: what was signed in its beginning is not signed now.
var errForged = errors.New("it sent what is not signed with the secret")

// request does what the plane asks for. The error ends the connection. It is called by
// one goroutine at a time.
//
// SECURITY: only what the plane has signed, lately and for the first time, is done.
// Whoever has a copy of an invocation, or can change one on its way, could have things done otherwise.
// Holds because: signature, time, id and nonce are looked at here, in this order, before the body is.
// Ids and nonces of what was accepted are on disk, longer than a request may be old.
// Not covered: 30 days later an id may be used again, with a new signature.
// Checked by: TestHostileFrames, TestReplayAfterRestart.
func (l *Link) request(ctx context.Context, s *session, r *wire.Request) error {
	if !s.key.Signed(*r) {
		e := engine.Refused("bad_mac", "cannot accept %s=%s: its signature is not of the shared secret, or it was changed", r.Type, r.ID).
			WithFix("compare the signing secret of both ends")
		return errors.Join(errForged, l.refuse(ctx, s, r, e, true))
	}
	now := time.Now()
	if off := now.Sub(time.UnixMilli(r.Time)); off.Abs() > l.now.Load().Skew {
		e := engine.Refused("stale", "cannot accept %s=%s: it was signed %v from now, by this host's clock", r.Type, r.ID, -off.Round(time.Second)).
			WithFix("set the clocks of both hosts, and sign it anew")
		return l.refuse(ctx, s, r, e, true)
	}
	switch r.Type {
	case wire.TypeInvoke:
		return l.invoke(ctx, s, r, now)
	case wire.TypeCancel:
		return l.cancel(ctx, s, r, now)
	default:
		return l.review(ctx, s, r, now)
	}
}

// known says why a request cannot be accepted whose id or nonce was seen before.
func (l *Link) known(r *wire.Request) *engine.Error {
	_, recent := l.recent[r.Nonce]
	switch {
	case recent, l.box.seen.nonces[r.Nonce]:
		return engine.Refused("replayed", "cannot accept %s=%s: its nonce was used before", r.Type, r.ID).WithFix("sign each request anew")
	case r.Type != wire.TypeReview && l.box.seen.ids[key(r.ID)]:
		return engine.Refused("answered", "cannot accept %s=%s: this invocation was answered, and its result acknowledged", r.Type, r.ID).
			WithFix("use another id for another invocation")
	}
	return nil
}

// remember keeps a nonce until its request is stale.
func (l *Link) remember(r *wire.Request, now time.Time) {
	if len(l.recent) >= maxRecent {
		for nonce, end := range l.recent {
			if now.After(end) {
				delete(l.recent, nonce)
			}
		}
	}
	l.recent[r.Nonce] = l.staleAt(*r)
}

// maxRecent is how many nonces are kept before old ones are looked for.
const maxRecent = 10_000

func (l *Link) invoke(ctx context.Context, s *session, r *wire.Request, now time.Time) error {
	l.mu.Lock()
	c := l.calls[r.ID]
	l.mu.Unlock()
	if c != nil && bytes.Equal(c.Request.Body, r.Body) {
		l.counts.judged(r.Type, duplicate, "") // or the plane lost sight of it
		return l.tell(ctx, s, c)
	}
	if c != nil {
		e := engine.Refused("exists", "cannot accept invoke=%s: an invocation with another body has this id", r.ID).WithFix("use another id")
		return l.refuse(ctx, s, r, e, true)
	}
	if e := l.known(r); e != nil {
		return l.refuse(ctx, s, r, e, true)
	}
	ask, err := wire.DecodeCall(r.Body)
	if err != nil {
		return l.refuse(ctx, s, r, engine.Refused("bad_arguments", "cannot accept invoke=%s: %w", r.ID, err), true)
	}
	i := intent{*r, now.UTC()}
	// In base64, and with what stands around it; the exact size is known later.
	size := int64(len(r.Body))*4/3 + 1<<10
	if e := l.admit(r, size); e != nil {
		return l.refuse(ctx, s, r, e, false)
	}
	written, err := l.box.begin(i)
	if err != nil {
		l.leave(size)
		e := engine.Failed("no_outbox", "cannot accept invoke=%s: it cannot be put on disk: %w", r.ID, err).WithFix("make room in " + l.Dir)
		return l.refuse(ctx, s, r, e, false)
	}
	c = l.newCall(entry{intent: i, size: written}, ask)
	l.mu.Lock()
	l.bytes += written - size
	l.calls[r.ID] = c
	l.remember(r, now)
	l.start(c, false)
	l.mu.Unlock()
	l.counts.judged(r.Type, accepted, "")
	return l.tell(ctx, s, c)
}

// admit takes a place for an invocation, and room for it and its result.
func (l *Link) admit(r *wire.Request, size int64) *engine.Error {
	draining, now := l.drains(), l.now.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case draining:
		return engine.Failed("draining", "cannot accept invoke=%s: the runner takes nothing new", r.ID).WithFix("ask again later, or another runner")
	case l.running >= now.MaxRuns:
		return engine.Failed("at_capacity", "cannot accept invoke=%s: %d invocations are under way, and no more may be", r.ID, l.running).
			WithFix("ask again when it has room, which it tells")
	case l.bytes+size+reserve > now.MaxOutbox, len(l.calls) >= maxCalls:
		return engine.Failed("outbox_full", "cannot accept invoke=%s: %d results that nobody has acknowledged take %d bytes", r.ID, len(l.calls)-l.running, l.bytes).
			WithFix("acknowledge results")
	}
	l.running++
	l.bytes += size + reserve
	return nil
}

// maxCalls bounds what is in the outbox, however small.
const maxCalls = 10_000

// leave gives back what admit took.
func (l *Link) leave(size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	l.bytes -= size + reserve
}

// tell says how far an invocation is, and has its result sent again.
func (l *Link) tell(ctx context.Context, s *session, c *call) error {
	l.mu.Lock()
	state := wire.Running
	if c.sum != "" {
		state, c.sentOn = wire.Answered, nil
	}
	l.mu.Unlock()
	l.poke()
	return s.send(ctx, wire.State{Type: wire.TypeState, ID: c.Request.ID, State: state})
}

func (l *Link) cancel(ctx context.Context, s *session, r *wire.Request, now time.Time) error {
	if e := l.known(r); e != nil {
		return l.refuse(ctx, s, r, e, true)
	}
	l.mu.Lock()
	l.remember(r, now)
	c := l.calls[r.ID]
	if c != nil && c.cancel != nil {
		c.cancel()
	}
	l.mu.Unlock()
	if c == nil {
		return l.refuse(ctx, s, r, engine.Refused("not_found", "cannot cancel invocation=%s: there is none", r.ID), false)
	}
	l.counts.judged(r.Type, accepted, "")
	return l.tell(ctx, s, c)
}

// maxReviews are prepared at once: each reads all files of an action.
const maxReviews = 2

func (l *Link) review(ctx context.Context, s *session, r *wire.Request, now time.Time) error {
	if e := l.known(r); e != nil {
		return l.refuse(ctx, s, r, e, true)
	}
	ask, err := wire.DecodeCall(r.Body)
	if err != nil {
		return l.refuse(ctx, s, r, engine.Refused("bad_arguments", "cannot accept review=%s: %w", r.ID, err), true)
	}
	select {
	case l.reviews <- struct{}{}:
	default:
		return l.refuse(ctx, s, r, engine.Failed("at_capacity", "cannot accept review=%s: %d others are being made", r.ID, maxReviews).WithFix("ask again"), false)
	}
	l.mu.Lock()
	l.remember(r, now)
	l.mu.Unlock()
	s.work.Go(func() {
		defer func() { <-l.reviews }()
		body, err := l.makeReview(ctx, ask)
		if err != nil {
			l.refuse(ctx, s, r, engine.AsError(err), false) // the connection's end is somebody else's matter
			return
		}
		l.counts.judged(r.Type, accepted, "")
		s.send(ctx, s.key.Seal(wire.TypeReviewed, r.ID, body))
	})
	return nil
}

func (l *Link) makeReview(ctx context.Context, ask wire.Call) ([]byte, error) {
	runner := l.Runner()
	p, info, err := runner.Prepare(ctx, capability.Call{
		Project: ask.Project, Capability: ask.Capability, Environment: ask.Environment, Args: ask.Args, Log: func(string) {},
	})
	if err != nil {
		return nil, err
	}
	last, known, err := runner.Approved.Last(p)
	if err != nil {
		return nil, engine.Failed("no_record", "%w", err)
	}
	before := &last
	if !known {
		before = nil
	}
	strong, err := p.Bound.Strong()
	if err != nil {
		return nil, engine.Failed("internal", "internal error: %w", err)
	}
	var text strings.Builder
	if err := review.Write(&text, info, p, before); err != nil {
		return nil, engine.Failed("internal", "internal error: %w", err)
	}
	body, err := json.Marshal(wire.Review{
		Hazard: info.Hazard, Title: p.Title, Digest: p.Bound.Digest, BoundDigest: strong, Bound: p.Bound, Text: text.String(),
	})
	if err != nil || len(body) > wire.MaxBody {
		return nil, engine.Failed("result_too_large", "cannot send a review of %d bytes: a message takes %d", len(body), wire.MaxBody).
			WithFix("review it on the runner's host, with engine approve")
	}
	return body, nil
}

// acknowledge forgets an invocation whose result the plane has kept.
func (l *Link) acknowledge(s *session, a *wire.Ack) error {
	l.mu.Lock()
	c := l.calls[a.ID]
	result := ""
	if c != nil {
		result = c.sum
	}
	l.mu.Unlock()
	if result == "" {
		return nil // a duplicate
	}
	if !s.key.Acknowledged(*a, result) {
		return errForged
	}
	if err := l.box.forget(c.Request, time.Now()); err != nil {
		l.Log.Error("cannot forget an invocation", "id", a.ID, "cause", err.Error())
		return nil // it is sent again, and acknowledged again
	}
	l.mu.Lock()
	delete(l.calls, a.ID)
	l.bytes -= c.size
	l.mu.Unlock()
	c.lines.close()
	l.changed()
	return nil
}

// refuse tells the plane that a request has had no effect, and the audit log if that may
// be somebody else's doing.
func (l *Link) refuse(ctx context.Context, s *session, r *wire.Request, e *engine.Error, suspicious bool) error {
	l.counts.judged(r.Type, "refused", e.Kind)
	if suspicious {
		l.note(r, e)
	}
	return s.send(ctx, wire.Refused{Type: wire.TypeRefused, ID: r.ID, Request: r.Type, Error: clip(e)})
}

// auditRate keeps a flood of one kind out of the audit log.
type auditRate struct {
	second  int64
	lines   int
	skipped int
}

const auditPerSecond = 5

// note writes a line of the audit log, or counts it for the next one.
func (l *Link) note(r *wire.Request, e *engine.Error) {
	l.mu.Lock()
	a := l.audited[e.Kind]
	if a == nil {
		a = &auditRate{}
		l.audited[e.Kind] = a
	}
	if now := time.Now().Unix(); now != a.second {
		a.second, a.lines = now, 0
	}
	a.lines++
	if a.lines > auditPerSecond {
		a.skipped++
		l.mu.Unlock()
		return
	}
	skipped := a.skipped
	a.skipped = 0
	l.mu.Unlock()
	_, err := l.Runner().Audit.Append(audit.Entry{
		Event: "link", Call: callID(l.Identity, r.ID),
		Presented: map[string]any{"request": r.Type, "id": r.ID, "time": r.Time, "nonce": r.Nonce, "bodySha256": sum(r.Body)},
		Observed:  map[string]any{"class": e.Class, "kind": e.Kind, "message": e.Message, "notAudited": skipped},
	})
	if err != nil {
		l.Log.Error("cannot note a refused request in the audit log", "id", r.ID, "cause", err.Error())
	}
}
