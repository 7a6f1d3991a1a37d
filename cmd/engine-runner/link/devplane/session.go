package devplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/coder/websocket"

	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
)

// session is a connection of a runner.
type session struct {
	plane  *Plane
	conn   *websocket.Conn
	key    wire.Key
	runner *runner
}

const (
	greetBound = 20 * time.Second
	writeBound = 30 * time.Second
	pingEvery  = 15 * time.Second
)

// link serves one runner's connection.
func (p *Plane) link(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{wire.Subprotocol}, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return // it has been told
	}
	defer conn.CloseNow()
	if conn.Subprotocol() != wire.Subprotocol {
		conn.Close(websocket.StatusPolicyViolation, "want "+wire.Subprotocol)
		return
	}
	// The request's own context says nothing any more once its connection was taken over.
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(p.ctx.Err()) })()
	s := &session{plane: p, conn: conn}
	if err := s.greet(ctx); err != nil {
		p.log.Warn("a runner was turned away", "from", r.RemoteAddr, "cause", err.Error())
		conn.Close(websocket.StatusPolicyViolation, "not welcome")
		return
	}
	p.log.Info("a runner is here", "identity", s.runner.identity, "version", s.runner.version)
	ended := make(chan struct{}, 3)
	for _, part := range []func(context.Context) error{s.read, s.ask, s.ping} {
		go func() {
			cancel(part(ctx))
			ended <- struct{}{}
		}()
	}
	<-ctx.Done()
	conn.CloseNow()
	for range 3 {
		<-ended
	}
	p.mu.Lock()
	if s.runner.session == s {
		s.runner.session, s.runner.since = nil, time.Now()
		p.wake()
	}
	p.mu.Unlock()
	p.log.Info("a runner is gone", "identity", s.runner.identity, "cause", context.Cause(ctx).Error())
}

// greet proves the plane, and has the runner prove itself.
func (s *session) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, greetBound)
	defer cancel()
	s.conn.SetReadLimit(wire.MaxGreeting)
	m, err := s.receive(ctx)
	if err != nil {
		return err
	}
	hello, ok := m.(*wire.Hello)
	if !ok {
		return fmt.Errorf("it began with %T", m)
	}
	s.key = wire.NewKey(s.plane.secret, hello.Identity)
	nonce := wire.NewNonce(32)
	challenge := wire.Challenge{Type: wire.TypeChallenge, Protocol: wire.Protocol, Nonce: nonce, MAC: s.key.Greet(wire.Plane, hello.Nonce, nonce)}
	if err := s.put(ctx, challenge); err != nil {
		return err
	}
	s.conn.SetReadLimit(wire.MaxMessage)
	if m, err = s.receive(ctx); err != nil {
		return err
	}
	proof, ok := m.(*wire.Proof)
	if !ok || !s.key.Greeted(wire.Runner, hello.Nonce, nonce, proof.MAC) {
		return errors.New("it does not know the secret")
	}
	if err := s.put(ctx, wire.Welcome{Type: wire.TypeWelcome, Time: time.Now().UnixMilli()}); err != nil {
		return err
	}
	p := s.plane
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.runners[hello.Identity]
	if r == nil {
		r = &runner{identity: hello.Identity}
		p.runners[hello.Identity] = r
	}
	if r.session != nil {
		r.session.conn.CloseNow() // the runner knows best which of its connections lives
	}
	r.session, r.since, r.version, r.room, r.capabilities = s, time.Now(), hello.Version, proof.Capacity, proof.Capabilities
	s.runner = r
	p.wake()
	return nil
}

func (s *session) receive(ctx context.Context) (any, error) {
	_, data, err := s.conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	return wire.Decode(wire.Runner, data)
}

func (s *session) put(ctx context.Context, m any) error {
	data, err := wire.Encode(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeBound)
	defer cancel()
	return s.conn.Write(ctx, websocket.MessageText, data)
}

func (s *session) ping(ctx context.Context) error {
	for {
		select {
		case <-time.After(pingEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
		bound, cancel := context.WithTimeout(ctx, pingEvery)
		err := s.conn.Ping(bound)
		cancel()
		if err != nil {
			return err
		}
	}
}

// ask sends what waits for this runner, and again what had no answer.
func (s *session) ask(ctx context.Context) error {
	p := s.plane
	for {
		p.mu.Lock()
		changed, requests := p.changed, p.due(s)
		p.mu.Unlock()
		for _, r := range requests {
			if err := s.put(ctx, r); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-time.After(p.again / 2):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// due are requests to be sent now: about the oldest calls that are not over, no more of
// them than the runner takes at once. The lock is held.
func (p *Plane) due(s *session) []wire.Request {
	var open []*call
	for _, c := range p.calls {
		if c.Runner == s.runner.identity && !c.over() {
			open = append(open, c)
		}
	}
	slices.SortFunc(open, func(a, b *call) int { return a.Since.Compare(b.Since) })
	var requests []wire.Request
	now := time.Now()
	for _, c := range open[:min(len(open), s.runner.room.Max)] {
		if c.asker == s && now.Sub(c.asked) < p.again {
			continue
		}
		typ, body := wire.TypeInvoke, c.Body
		if c.cancel {
			typ, body = wire.TypeCancel, nil
		}
		requests = append(requests, s.key.NewRequest(typ, c.ID, now, body))
		c.asker, c.asked = s, now
	}
	return requests
}

// read takes what the runner sends.
func (s *session) read(ctx context.Context) error {
	for {
		m, err := s.receive(ctx)
		if err != nil {
			return err
		}
		if sealed, ok := m.(*wire.Sealed); ok {
			err = s.sealed(ctx, sealed)
		} else {
			err = s.take(m)
		}
		if err != nil {
			return err
		}
	}
}

func (s *session) take(m any) error {
	p := s.plane
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.wake()
	switch m := m.(type) {
	case *wire.State:
		if c := p.mine(s, m.ID); c != nil && !c.over() {
			c.state = Running
		}
	case *wire.Refused:
		p.refused(s, m)
	case *wire.Log:
		if c := p.mine(s, m.ID); c != nil {
			c.log(m)
		}
	case *wire.Capacity:
		s.runner.room = m.Room
	case *wire.Capabilities:
		s.runner.capabilities = m.Capabilities
	default:
		return fmt.Errorf("it sent %T at the wrong time", m)
	}
	return nil
}

// mine is the call with this id, if it is this runner's. The lock is held.
func (p *Plane) mine(s *session, id string) *call {
	if c := p.calls[id]; c != nil && c.Runner == s.runner.identity {
		return c
	}
	return nil
}

// log takes in lines. The runner may have given some up, or sent them to a connection
// that died with them: there is a gap then. What comes twice counts once.
func (c *call) log(m *wire.Log) {
	next := c.first + int64(len(c.lines))
	if m.First > next {
		c.dropped += m.First - next
		c.lines = append(c.lines, fmt.Sprintf("(%d lines are missing)", m.First-next))
		c.first = m.First - int64(len(c.lines))
		next = m.First
	}
	c.lines = append(c.lines, m.Lines[min(next-m.First, int64(len(m.Lines))):]...)
	if extra := len(c.lines) - maxLines; extra > 0 {
		c.lines, c.first, c.dropped = c.lines[extra:], c.first+int64(extra), c.dropped+int64(extra)
	}
}

// later are the kinds of refusals after which it is worth to ask again. Both ends have
// proved that they know the secret, so what has a wrong signature was changed on its way.
var later = map[string]bool{"at_capacity": true, "outbox_full": true, "draining": true, "stale": true, "no_outbox": true, "bad_mac": true}

// refused takes in that a request had no effect. The lock is held.
func (p *Plane) refused(s *session, m *wire.Refused) {
	if wait := p.reviews[m.ID]; wait != nil && m.Request == wire.TypeReview {
		wait <- reviewed{refusal: m.Error}
		delete(p.reviews, m.ID)
		return
	}
	c := p.mine(s, m.ID)
	if c == nil || c.over() || later[m.Error.Kind] || m.Error.Kind == "replayed" {
		return // a copy of what was accepted may have been made on the way
	}
	c.state, c.refusal = Refused, m.Error
}

// sealed takes in a result, which is acknowledged once it is on disk, or a review.
func (s *session) sealed(ctx context.Context, m *wire.Sealed) error {
	if !s.key.Unbroken(*m) {
		return errors.New("it sent what is not signed with the secret")
	}
	p := s.plane
	if m.Type == wire.TypeReviewed {
		r, err := wire.DecodeReview(m.Body)
		if err != nil {
			return err
		}
		p.mu.Lock()
		if wait := p.reviews[m.ID]; wait != nil {
			wait <- reviewed{review: r}
			delete(p.reviews, m.ID)
		}
		p.mu.Unlock()
		return nil
	}
	r, err := wire.DecodeResult(m.Body)
	if err != nil {
		return err
	}
	if err := p.keep(m.ID, ".result", m.Body); err != nil {
		return engine.Failed("no_record", "cannot keep the result of call=%s: %w", m.ID, err)
	}
	p.mu.Lock()
	if c := p.mine(s, m.ID); c != nil {
		c.state, c.result, c.refusal = Answered, &r, nil
	}
	p.wake()
	p.mu.Unlock()
	return s.put(ctx, s.key.Ack(m.ID, m.Body))
}
