package api

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/direct-oci/engine/engine"
)

// How many connections there may be at once. Root and the service's own user are bounded
// by the process's descriptors alone: somebody must be able to look.
const (
	maxStrangers = 64   // of all whom the config grants nothing, together
	maxOfUser    = 2048 // of one user on the socket
	maxOfAddress = 512  // of one address
	maxOfTCP     = 4096 // of all addresses together
)

// connections counts those that are open, by who has made them.
//
// SECURITY: nobody uses up the connections of others.
// Everybody on the host may connect to the socket, and everybody in the network to the
// address: each connection costs a descriptor and memory, also one that never asks.
// Holds because: who has connected is known before anything is read, and what is above
// its maker's bound is closed there. Not covered: many addresses that act together.
// Checked by: TestConnectionsAreBounded.
type connections struct {
	mu   sync.Mutex
	by   map[string]int
	of   map[net.Conn][]string // whose they count as
	told time.Time             // when it was logged last that one was closed
}

// share is one bound that a connection counts against.
type share struct {
	key  string
	most int
}

// sharesOf are the bounds for a connection that has just been made.
func (s *Server) sharesOf(conn net.Conn, from peer, unix bool) []share {
	if !unix {
		address := conn.RemoteAddr().String()
		if at, err := netip.ParseAddrPort(address); err == nil {
			address = at.Addr().Unmap().String()
			if at.Addr().Is6() && !at.Addr().Is4In6() {
				address = netip.PrefixFrom(at.Addr().WithZone(""), 64).Masked().String() // one host's
			}
		}
		return []share{{"address " + address, maxOfAddress}, {"all addresses", maxOfTCP}}
	}
	caller, err := s.policy.Load().bySocket(from)
	switch {
	case err != nil:
		return []share{{"strangers", maxStrangers}}
	case from.uid == 0 || caller.Class == Admin && caller.Tenant == "":
		return nil
	}
	return []share{{caller.Name, maxOfUser}}
}

// take counts a connection, or says whose bound it is above.
func (c *connections) take(conn net.Conn, shares []share) (above string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range shares {
		if c.by[s.key] >= s.most {
			return s.key, false
		}
	}
	for _, s := range shares {
		c.by[s.key]++
		c.of[conn] = append(c.of[conn], s.key)
	}
	return "", true
}

// drop counts a connection no more. Idempotent.
func (c *connections) drop(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range c.of[conn] {
		if c.by[key]--; c.by[key] == 0 {
			delete(c.by, key)
		}
	}
	delete(c.of, conn)
}

// tellEvery is how often the log says that connections are closed.
const tellEvery = 10 * time.Second

func (c *connections) tell(log *slog.Logger, above string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.told) > tellEvery {
		c.told = time.Now()
		log.Warn("connections are closed that are too many", "of", above)
	}
}

type connKey struct{}

// accepted asks the kernel once for each connection who has made it, and closes it if
// they have too many.
func (s *Server) accepted(ctx context.Context, conn net.Conn) context.Context {
	ctx = context.WithValue(ctx, connKey{}, conn)
	var from peer
	local, unix := conn.(*net.UnixConn)
	if unix {
		from = peerOf(local)
		ctx = context.WithValue(ctx, peerKey{}, from)
	}
	if above, ok := s.connections.take(conn, s.sharesOf(conn, from, unix)); !ok {
		s.connections.tell(s.log, above)
		conn.Close() // nothing was sent: there is nothing to lose
	}
	return ctx
}

// bulkBody is where a body or an answer is a large one. Either is in memory as a whole,
// several times over while it is taken apart or put together.
const bulkBody = 1 << 20

// tiers say how many of a size there may be at once, the largest first.
var tiers = []struct {
	above    int64 // bytes
	own, all int   // of one caller, and of all
}{{bulkBody, 2, 8}, {smallBody, 32, 256}}

// bulk lets few of them in at once: places of each tier.
type bulk []*places

type places struct {
	own int
	all chan struct{}
	mu  sync.Mutex
	of  map[string]chan struct{} // by caller: as many as the host and the config have
}

func newBulk() bulk {
	var b bulk
	for _, t := range tiers {
		b = append(b, &places{own: t.own, all: make(chan struct{}, t.all), of: map[string]chan struct{}{}})
	}
	return b
}

// room waits until a body or an answer of about this size may be in memory. It is given
// back at the end of the exchange, which has one place at most.
//
// SECURITY: no caller fills the service's memory, by what it sends or by what it has put on record.
// Everybody depends on the service, and a request of some bytes may ask for megabytes.
// Holds because: whatever is in memory as a whole and may be large has a place here first, of which
// each caller has few, and is bounded itself. Not covered: many callers that act together.
// Checked by: TestLargeBodiesAreFew, TestLargeAnswersAreFew.
func (x *exchange) room(size int64) (err error) {
	if x.leave == nil {
		x.leave, err = x.server.bulk.enter(x.r.Context(), x.caller.Name, size, x.server.timeouts.Body)
	}
	return err
}

// roomForOutput is room for what is on record of some output from a cursor on, limit bytes
// at most.
func (x *exchange) roomForOutput(path string, from, limit int64) error {
	info, err := os.Stat(path)
	if err != nil {
		return nil // there is none, or reading it tells why
	}
	return x.room(min(info.Size()-from, limit))
}

// enter waits for a place, and returns what gives it back; nil if none is needed.
func (b bulk) enter(ctx context.Context, caller string, size int64, most time.Duration) (leave func(), err error) {
	for i, t := range tiers {
		if size > t.above {
			return b[i].enter(ctx, caller, most)
		}
	}
	return nil, nil
}

func (p *places) enter(ctx context.Context, caller string, most time.Duration) (leave func(), err error) {
	p.mu.Lock()
	own := p.of[caller]
	if own == nil {
		own = make(chan struct{}, p.own)
		p.of[caller] = own
	}
	p.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	var held []chan struct{}
	leave = func() {
		for _, place := range held {
			<-place
		}
	}
	for _, place := range []chan struct{}{own, p.all} {
		select {
		case place <- struct{}{}:
			held = append(held, place)
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		leave()
		return nil, engine.Failed("busy", "cannot answer: too many large requests are being answered").WithFix("try again later, with fewer at once")
	}
	return leave, nil
}
