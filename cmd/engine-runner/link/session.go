package link

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
)

// session is one connection. It holds nothing that the next one needs.
type session struct {
	link *Link
	conn *websocket.Conn
	key  wire.Key

	answers chan any      // to be sent first
	wake    chan struct{} // there may be progress, results or a change of capacity
	work    sync.WaitGroup

	room    wire.Room // as it was told last
	offered []byte    // likewise, in JSON
}

func newSession(l *Link, conn *websocket.Conn, key wire.Key) *session {
	return &session{link: l, conn: conn, key: key, answers: make(chan any, 64), wake: make(chan struct{}, 1)}
}

func (s *session) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run greets the plane and serves it until the connection ends, which is always an error.
func (s *session) run(ctx context.Context) error {
	if err := s.greet(ctx); err != nil {
		return because(unproved, err)
	}
	l := s.link
	l.counts.cameUp()
	l.Log.Info("the link is up", "url", l.now.Load().URL, "identity", l.Identity)
	// The end of ctx is told to the plane, so it must not close the connection by itself.
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	l.mu.Lock()
	l.session = s
	l.mu.Unlock()
	for _, part := range []func(context.Context) error{s.read, s.write, s.ping, s.refresh} {
		s.work.Go(func() { cancel(part(inner)) })
	}
	s.poke()
	select {
	case <-inner.Done():
	case <-ctx.Done():
		why := "the runner is being stopped"
		if context.Cause(ctx) == errChanged {
			why = errChanged.Error()
		}
		s.bye(websocket.StatusGoingAway, why)
	}
	l.mu.Lock()
	l.session = nil
	l.mu.Unlock()
	cancel(ctx.Err())
	s.conn.CloseNow()
	s.work.Wait()
	return context.Cause(inner)
}

// bye closes the connection, and does not wait long for the plane to agree.
func (s *session) bye(status websocket.StatusCode, why string) {
	said := make(chan struct{})
	go func() {
		defer close(said)
		s.conn.Close(status, why)
	}()
	select {
	case <-said:
	case <-time.After(time.Second):
	}
}

// greet lets both ends prove themselves, the plane first.
func (s *session) greet(ctx context.Context) error {
	l := s.link
	ctx, cancel := context.WithTimeout(ctx, l.times.dial)
	defer cancel()
	s.conn.SetReadLimit(wire.MaxGreeting)
	nonce := wire.NewNonce(32)
	hello := wire.Hello{Type: wire.TypeHello, Protocols: []int{wire.Protocol}, Identity: l.Identity, Nonce: nonce, Version: engine.Version}
	if err := s.put(ctx, hello); err != nil {
		return fmt.Errorf("cannot greet the plane: %w", err)
	}
	challenge, err := receive[*wire.Challenge](ctx, s)
	if err != nil {
		return err
	}
	switch {
	case challenge.Protocol != wire.Protocol:
		return fmt.Errorf("the plane wants protocol %d: this runner speaks %d", challenge.Protocol, wire.Protocol)
	case !s.key.Greeted(wire.Plane, nonce, challenge.Nonce, challenge.MAC):
		return errors.New("the plane does not know the signing secret")
	}
	list := s.list()
	s.room, s.offered = l.room(), encodeList(list)
	proof := wire.Proof{Type: wire.TypeProof, MAC: s.key.Greet(wire.Runner, nonce, challenge.Nonce), Capabilities: list, Capacity: s.room}
	if err := s.put(ctx, proof); err != nil {
		return fmt.Errorf("cannot prove itself to the plane: %w", err)
	}
	welcome, err := receive[*wire.Welcome](ctx, s)
	if err != nil {
		return fmt.Errorf("the plane did not welcome this runner: %w", err)
	}
	if off := time.Since(time.UnixMilli(welcome.Time)); off.Abs() > l.now.Load().Skew/2 {
		l.Log.Warn("the plane's clock is far from this host's", "by", off.Round(time.Second).String(), "tolerated", l.now.Load().Skew.String())
	}
	s.conn.SetReadLimit(wire.MaxMessage)
	return nil
}

// receive reads one message, which must be a T.
func receive[T any](ctx context.Context, s *session) (T, error) {
	var none T
	m, err := s.next(ctx)
	if err != nil {
		return none, err
	}
	if m, ok := m.(T); ok {
		return m, nil
	}
	return none, fmt.Errorf("the plane sent %T too early or too late", m)
}

// next reads the plane's next message.
func (s *session) next(ctx context.Context) (any, error) {
	kind, data, err := s.conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	s.link.counts.heard(0)
	if kind != websocket.MessageText {
		return nil, because(malformed, errors.New("the plane sent a message that is no text"))
	}
	m, err := wire.Decode(wire.Plane, data)
	return m, because(malformed, err)
}

// list is what the runner offers. What is broken of it is told to its operator.
func (s *session) list() []capability.Listed {
	list, _, err := s.link.Runner().Capabilities("")
	if err != nil {
		s.link.Log.Error("cannot list capabilities", "cause", err.Error())
	}
	return append([]capability.Listed{}, list...)
}

func encodeList(list []capability.Listed) []byte {
	data, err := json.Marshal(list)
	if err != nil {
		return nil
	}
	return data
}

// read serves what the plane sends.
func (s *session) read(ctx context.Context) error {
	for {
		m, err := s.next(ctx)
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *wire.Request:
			err = s.link.request(ctx, s, m)
		case *wire.Ack:
			err = s.link.acknowledge(s, m)
		default:
			err = because(malformed, fmt.Errorf("the plane sent %T at the wrong time", m))
		}
		if errors.Is(err, errForged) {
			s.bye(websocket.StatusPolicyViolation, err.Error())
			err = because(forged, err)
		}
		if err != nil {
			return err
		}
	}
}

// send queues an answer. It waits while the plane does not read: then this end does not
// read either, until one of the bounds of a connection ends it.
func (s *session) send(ctx context.Context, m any) error {
	select {
	case s.answers <- m:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// put writes one message, within its time.
func (s *session) put(ctx context.Context, m any) error {
	data, err := wire.Encode(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.link.times.write)
	defer cancel()
	err = s.conn.Write(ctx, websocket.MessageText, data)
	if err == nil {
		s.link.counts.note(func(f *Figures) { f.Out++ })
	} else if errors.Is(err, context.DeadlineExceeded) {
		err = because(silent, fmt.Errorf("the plane does not read: %w", err))
	}
	return err
}

// write sends answers, then changes of capacity, then progress and results.
func (s *session) write(ctx context.Context) error {
	again := time.NewTicker(max(s.link.times.again/4, time.Millisecond))
	defer again.Stop()
	for {
		select {
		case m := <-s.answers:
			if err := s.put(ctx, m); err != nil {
				return err
			}
		case <-s.wake:
			if err := s.sweep(ctx); err != nil {
				return err
			}
		case <-again.C:
			s.poke()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// answer sends what is queued.
func (s *session) answer(ctx context.Context) error {
	for {
		select {
		case m := <-s.answers:
			if err := s.put(ctx, m); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// sweep sends what each invocation has for the plane: some lines of one that runs, all
// of them and its result of one that does not.
func (s *session) sweep(ctx context.Context) error {
	if room := s.link.room(); room != s.room {
		s.room = room
		if err := s.put(ctx, wire.Capacity{Type: wire.TypeCapacity, Room: room}); err != nil {
			return err
		}
	}
	for _, c := range s.link.waiting(s) {
		for {
			m, ok := c.lines.next(c.Request.ID)
			if !ok {
				break
			}
			if err := errors.Join(s.answer(ctx), s.put(ctx, m)); err != nil {
				return err
			}
			if !c.finished {
				s.poke() // there may be more, after the others
				break
			}
		}
		if !c.finished {
			continue
		}
		body, err := s.link.box.result(c.Request.ID)
		if err != nil {
			s.link.Log.Error("cannot read a result", "id", c.Request.ID, "cause", err.Error())
			continue // it was acknowledged a moment ago, or an operator has to look
		}
		if err := errors.Join(s.answer(ctx), s.put(ctx, s.key.Seal(wire.TypeResult, c.Request.ID, body))); err != nil {
			return err
		}
	}
	return nil
}

// waitingCall is an invocation that may have something for the plane.
type waitingCall struct {
	*call
	finished bool // and its result is to be sent, now
}

// waiting are invocations that run, and those whose results are to be sent on s. It
// takes the latter for sent.
func (l *Link) waiting(s *session) []waitingCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []waitingCall
	now := time.Now()
	for _, c := range l.calls {
		switch {
		case c.sum == "":
			all = append(all, waitingCall{c, false})
		case c.sentOn != s || now.Sub(c.sentAt) >= l.times.again:
			c.sentOn, c.sentAt = s, now
			all = append(all, waitingCall{c, true})
		}
	}
	slices.SortFunc(all, func(a, b waitingCall) int { return strings.Compare(a.Request.ID, b.Request.ID) })
	return all
}

// ping finds out that the plane is gone.
func (s *session) ping(ctx context.Context) error {
	tick := time.NewTicker(s.link.times.ping)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		bound, cancel := context.WithTimeout(ctx, s.link.times.ping)
		began := time.Now()
		err := s.conn.Ping(bound)
		cancel()
		if err != nil {
			return because(silent, fmt.Errorf("the plane does not answer pings: %w", err))
		}
		s.link.counts.heard(time.Since(began))
	}
}

// refresh tells what is offered when that has changed: actions come and go on disk, and
// a config may be read anew.
func (s *session) refresh(ctx context.Context) error {
	tick := time.NewTicker(s.link.times.refresh)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		list := s.list()
		now := encodeList(list)
		if bytes.Equal(now, s.offered) {
			continue
		}
		s.offered = now
		if err := s.send(ctx, wire.Capabilities{Type: wire.TypeCapabilities, Capabilities: list}); err != nil {
			return err
		}
	}
}
