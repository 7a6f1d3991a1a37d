package egress

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// session is one connection of the sandbox, with what it led to.
type session struct {
	s     *Server
	proto string

	mu     sync.Mutex // guards what follows
	client net.Conn
	target target // zero until the client has said where to
	up     net.Conn
	killed bool
	timer  *time.Timer // of Limits.Total
}

// begin admits a session of at most so many of its protocol, or returns nil when a
// limit or Close forbids it. c is the sandbox's end, if there is one already.
func (s *Server) begin(proto string, atMost int, c net.Conn) *session {
	sess := &session{s: s, proto: proto, client: c}
	s.mu.Lock()
	defer s.mu.Unlock()
	limits := s.rules.Load().policy.Limits
	if s.closed || s.open[proto] >= atMost || !s.gate.newConnection() {
		return nil
	}
	s.open[proto]++
	if limits.Total > 0 {
		sess.timer = time.AfterFunc(limits.Total, sess.kill)
	}
	s.sessions[sess] = struct{}{}
	return sess
}

func (sess *session) end() {
	sess.mu.Lock()
	if sess.timer != nil {
		sess.timer.Stop()
	}
	if sess.client != nil {
		sess.client.Close()
	}
	if sess.up != nil {
		sess.up.Close()
	}
	sess.mu.Unlock()
	sess.s.mu.Lock()
	delete(sess.s.sessions, sess)
	sess.s.open[sess.proto]--
	sess.s.mu.Unlock()
}

// dial connects the session to t. Afterwards the session is closed as soon as the
// policy does not allow t any more.
func (sess *session) dial(t target) (*traffic, error) {
	sess.mu.Lock()
	sess.target = t
	sess.mu.Unlock()
	up, counts, err := sess.s.dialAllowed(sess.s.ctx, t)
	if err != nil {
		return nil, err
	}
	sess.mu.Lock()
	sess.up = up
	killed := sess.killed
	sess.mu.Unlock()
	switch {
	case !sess.allowed():
		up.Close()
		return nil, sess.s.deny(t.decision(ruleNone, "the policy has changed"))
	case killed:
		up.Close()
		return nil, errors.New("the connection was ended while it was being made")
	}
	return counts, nil
}

// setClient gives the session its end towards the sandbox, unless it is over already.
func (sess *session) setClient(c net.Conn) bool {
	sess.mu.Lock()
	defer sess.mu.Unlock()
	if sess.killed {
		c.Close()
		return false
	}
	sess.client = c
	return true
}

// allowed asks the rules in force about the session.
func (sess *session) allowed() bool {
	sess.mu.Lock()
	t, up := sess.target, sess.up
	sess.mu.Unlock()
	if t.port == 0 || up == nil {
		return true // dial asks when it has connected
	}
	r := sess.s.rules.Load()
	return r.decide(t, sess.s.own).Allowed && r.decideAddr(t, remoteAddr(up).Addr(), sess.s.own).Allowed
}

// kill resets both connections, so that neither end waits.
func (sess *session) kill() {
	sess.mu.Lock()
	defer sess.mu.Unlock()
	sess.killed = true
	if sess.client != nil {
		reset(sess.client)
	}
	if sess.up != nil {
		reset(sess.up)
	}
}

// reset closes a connection so that its peer learns of it at once.
func reset(c net.Conn) {
	if t, ok := c.(interface{ SetLinger(sec int) error }); ok {
		t.SetLinger(0)
	}
	c.Close()
}

// gate holds the limits that all connections of a run share.
type gate struct {
	rules    *atomic.Pointer[rules]
	sent     atomic.Int64
	received atomic.Int64
	conns    bucket
	queries  bucket
}

// queriesPerSecond bounds DNS. A program that looks up names in a loop stays below.
const queriesPerSecond = 5000

func newGate(r *atomic.Pointer[rules]) *gate { return &gate{rules: r} }

func (g *gate) newConnection() bool {
	return g.conns.take(g.rules.Load().policy.Limits.PerSecond)
}

func (g *gate) newQuery() bool { return g.queries.take(queriesPerSecond) }

// direction is one of the two ways of bytes.
type direction int

const (
	send    direction = iota // out of the sandbox
	receive                  // into the sandbox
)

// reserve takes up to n bytes of what a run may still move; 0 means that no byte is
// left. What was not used is given back by release.
func (g *gate) reserve(d direction, n int64) int64 {
	limit, used := g.budget(d)
	for {
		have := used.Load()
		if limit > 0 {
			n = min(n, limit-have)
		}
		if n <= 0 {
			return 0
		}
		if used.CompareAndSwap(have, have+n) {
			return n
		}
	}
}

func (g *gate) release(d direction, n int64) {
	_, used := g.budget(d)
	used.Add(-n)
}

func (g *gate) budget(d direction) (limit int64, used *atomic.Int64) {
	l := g.rules.Load().policy.Limits
	if d == send {
		return l.SendBytes, &g.sent
	}
	return l.ReceiveBytes, &g.received
}

// bucket passes rate events a second on average, and as many at once.
type bucket struct {
	mu     sync.Mutex
	tokens float64
	at     time.Time
}

func (b *bucket) take(rate int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.at.IsZero() {
		b.tokens = float64(rate)
	} else {
		b.tokens = min(float64(rate), b.tokens+now.Sub(b.at).Seconds()*float64(rate))
	}
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
