package egress

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/direct-oci/engine/netns"
)

// Gateway is what this package needs of a gateway: *netns.Gateway. In its namespace
// every address is local, and what its policy passes ends at netns.TransparentPort.
type Gateway interface {
	Listen(network, address string) (net.Listener, error)
	ListenPacket(network, address string) (net.PacketConn, error)
	SetPolicy(netns.Policy) error
	Refused() ([]netns.Refused, error)
	RefuseDatagram(from, to netip.AddrPort) error
}

// ProxyPort is where the gateway speaks CONNECT, plain HTTP and SOCKS5.
const ProxyPort = 3128

// Config is what Serve needs.
type Config struct {
	Gateway  Gateway  // required
	Policy   Policy   // valid
	Resolver Resolver // nil: as the host's programs do
	Sink     Sink     // nil: decisions are only counted

	// HostAddrs lists this host's own addresses; nil asks the kernel.
	HostAddrs func() ([]netip.Addr, error)
	// Dial connects from the host's namespace; nil calls DialContext.
	Dial func(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error)
}

// Server serves one run's gateway.
type Server struct {
	gw      Gateway
	dial    func(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error)
	own     *hostAddrs
	cache   *cache
	names   *pool
	ledger  *ledger
	gate    *gate
	rules   atomic.Pointer[rules]
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	lookups chan struct{} // a slot for each look-up on the host

	update sync.Mutex // one Update at a time

	mu       sync.Mutex // guards what follows
	closed   bool
	sockets  []io.Closer
	sessions map[*session]struct{}
	open     map[string]int // sessions by protocol
	flows    map[flow]*udpFlow

	refused  sync.Mutex // guards what follows
	reported map[refusal]int64
}

// Serve opens the listeners in the gateway, puts the policy in force and serves it
// until Close. When it fails, nothing is open.
func Serve(c Config) (*Server, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{
		gw: c.Gateway, dial: c.Dial, ctx: ctx, cancel: cancel,
		own:      &hostAddrs{list: c.HostAddrs},
		cache:    &cache{resolve: c.Resolver, answers: map[string]answer{}},
		names:    newPool(),
		ledger:   newLedger(c.Sink),
		lookups:  make(chan struct{}, maxLookups),
		sessions: map[*session]struct{}{},
		open:     map[string]int{},
		flows:    map[flow]*udpFlow{},
		reported: map[refusal]int64{},
	}
	if s.dial == nil {
		s.dial = func(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
			return d.DialContext(ctx, network, address)
		}
	}
	if s.own.list == nil {
		s.own.list = interfaceAddrs
	}
	if s.cache.resolve == nil {
		s.cache.resolve = hostResolver
	}
	s.gate = newGate(&s.rules)
	s.rules.Store(newRules(Policy{}))
	err := s.listen()
	if err == nil {
		err = s.Update(c.Policy)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// listen opens the sockets. They are the same for every policy: the kernel passes
// to them what the policy reaches.
func (s *Server) listen() error {
	for _, l := range []struct {
		addr  netip.Addr
		port  uint16
		serve func(*session, net.Conn)
	}{
		{netns.GatewayAddr, dnsPort, func(_ *session, c net.Conn) { s.serveDNS(c) }},
		{netns.GatewayAddr, ProxyPort, s.serveProxy},
		{netip.IPv4Unspecified(), netns.TransparentPort, s.serveTransparent},
	} {
		address := netip.AddrPortFrom(l.addr, l.port).String()
		socket, err := s.gw.Listen("tcp4", address)
		if err != nil {
			return fmt.Errorf("cannot listen on %s in the gateway: %w", address, err)
		}
		s.sockets = append(s.sockets, socket)
		s.wg.Go(func() { s.accept(socket, l.serve) })
	}
	for _, l := range []struct {
		addr  netip.Addr
		port  uint16
		serve func(*net.UDPConn)
	}{
		{netns.GatewayAddr, dnsPort, s.receiveDNS},
		{netip.IPv4Unspecified(), netns.TransparentPort, s.receiveUDP},
	} {
		address := netip.AddrPortFrom(l.addr, l.port).String()
		socket, err := s.listenUDP(address)
		if err != nil {
			return err
		}
		s.sockets = append(s.sockets, socket)
		s.wg.Go(func() { l.serve(socket) })
	}
	return nil
}

func (s *Server) listenUDP(address string) (*net.UDPConn, error) {
	p, err := s.gw.ListenPacket("udp4", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s in the gateway: %w", address, err)
	}
	u, ok := p.(*net.UDPConn)
	if !ok {
		p.Close()
		return nil, fmt.Errorf("internal error: the gateway's socket is a %T", p)
	}
	return u, nil
}

// Update puts another policy in force: what is forbidden now is closed, what is
// allowed now works at once. When it fails, nothing is allowed.
func (s *Server) Update(p Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	// SECURITY: from the moment Update returns, nothing flows that the policy forbids.
	// Holds because: the new rules are in force before the open sessions are gone
	// through, and a session that is just being made asks again once it is connected.
	// Not covered: bytes that the host's kernel had accepted before. Checked by: TestUpdateNarrows.
	s.update.Lock()
	defer s.update.Unlock()
	s.rules.Store(newRules(p))
	for _, n := range p.Names {
		if !strings.HasPrefix(n.Host, "*") {
			s.names.addr(n.Host) // it has its address even if a flood of others fills the pool
		}
	}
	err := s.gw.SetPolicy(p.Kernel())
	if err != nil {
		s.rules.Store(newRules(Policy{}))
		err = fmt.Errorf("cannot set the gateway's policy: %w", err)
	}
	s.recheck()
	return err
}

// Kernel is the policy as the gateway's rules know it: a first, coarser sieve.
func (p Policy) Kernel() netns.Policy {
	if p.Mode() == "none" {
		return netns.Policy{}
	}
	every := []netns.Ports{{Protocol: netns.TCP, First: 1, Last: math.MaxUint16}, {Protocol: netns.UDP, First: 1, Last: math.MaxUint16}}
	k := netns.Policy{Services: []uint16{ProxyPort}}
	for _, n := range p.Names {
		for _, port := range n.Ports {
			k.Names = append(k.Names, netns.Ports{Protocol: netns.TCP, First: port, Last: port})
		}
	}
	for _, c := range p.CIDRs {
		if !c.Prefix.Addr().Is4() {
			continue // IPv6 goes through the proxy alone
		}
		ports := netns.Ports{Protocol: netns.TCP, First: c.Port, Last: c.Port}
		if c.Proto == "udp" {
			ports.Protocol = netns.UDP
		}
		if c.Port == 0 {
			ports.First, ports.Last = 1, math.MaxUint16
		}
		k.Allowed = append(k.Allowed, netns.Allow{Prefix: c.Prefix, Ports: ports})
	}
	if p.Internet {
		k.Names = every
		for _, ports := range every {
			k.Allowed = append(k.Allowed, netns.Allow{Prefix: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Ports: ports})
		}
	}
	return k
}

// KernelLimits bound a run's connections in the gateway's rules, a little above what
// the server itself allows: a flood ends there, and everything else ends here, where
// it is explained.
func (p Policy) KernelLimits() netns.Limits {
	l := p.Limits.withDefaults()
	connections := l.Connections + 64
	if p.Internet || slices.ContainsFunc(p.CIDRs, func(c CIDRRule) bool { return c.Proto == "udp" }) {
		connections += trackedFlows
	}
	return netns.Limits{Connections: connections, ConnectionsPerSec: 2 * l.PerSecond}
}

// trackedFlows is room for udp flows that are over: the kernel counts one for up to two
// minutes after its last datagram, and a program may use one for each question.
const trackedFlows = 16 << 10

// recheck closes the sessions that the rules in force do not allow.
func (s *Server) recheck() {
	s.mu.Lock()
	list := slices.Collect(maps.Keys(s.sessions))
	s.mu.Unlock()
	for _, sess := range list {
		if !sess.allowed() {
			sess.kill()
		}
	}
}

// refusal is a destination that the kernel refused by itself.
type refusal struct {
	dest  netip.AddrPort
	proto netns.Protocol
}

// collect records what the kernel has refused since the last time.
func (s *Server) collect() error {
	s.refused.Lock()
	defer s.refused.Unlock()
	list, err := s.gw.Refused()
	if err != nil {
		return fmt.Errorf("cannot read what the gateway refused: %w", err)
	}
	for _, r := range list {
		key := refusal{r.Destination, r.Protocol}
		more := int64(r.Packets) - s.reported[key]
		if more <= 0 {
			continue
		}
		s.reported[key] += more
		t := s.targetOf(r.Destination, r.Protocol.String(), "kernel")
		d := s.rules.Load().decide(t, s.own)
		if d.Allowed { // by its destination: it was one too many, or the policy was another one
			d = t.decision(ruleLimit, "a limit of the run")
		}
		d.Count = more
		s.ledger.record(d)
	}
	return nil
}

// Stats returns the counts so far. After Close they are final, and the error is nil.
func (s *Server) Stats() (Stats, error) {
	var err error
	if s.ctx.Err() == nil {
		err = s.collect()
	}
	st := s.ledger.stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Open = len(s.sessions)
	return st, err
}

// Close ends all connections, with a reset, and returns when nothing of the server
// runs any more. The gateway must still be open. Close is idempotent.
func (s *Server) Close() error {
	if s.ctx.Err() != nil {
		s.wg.Wait()
		return nil
	}
	s.cancel()
	s.mu.Lock()
	s.closed = true
	for _, c := range s.sockets {
		c.Close()
	}
	for sess := range s.sessions {
		sess.kill()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return s.collect()
}
