package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// A Resolver returns the addresses of a canonical name, on the host.
type Resolver func(ctx context.Context, name string) ([]netip.Addr, error)

const (
	resolveTimeout = 10 * time.Second
	dialTimeout    = 10 * time.Second // of one address
	allTimeout     = 30 * time.Second // of all addresses, with their look-up
	maxAnswers     = 32               // addresses of one name that are looked at

	cacheAge  = 10 * time.Second
	cacheSize = 1024
)

// hostResolver asks as the host's own programs do, but never completes a name with
// the host's search domains: the name that was allowed is the one that is looked up.
func hostResolver(ctx context.Context, name string) ([]netip.Addr, error) {
	r := net.Resolver{PreferGo: true}
	addrs, err := r.LookupNetIP(ctx, "ip", name+".")
	for i := range addrs {
		// What comes from the hosts file is in IPv6 form, which decideAddr refuses as a
		// disguise. As what it is it is decided about like any other.
		addrs[i] = addrs[i].Unmap()
	}
	return addrs, err
}

// cache remembers answers for a short time, so that a client's many connections
// are not as many look-ups. Each use checks the addresses anew.
type cache struct {
	resolve Resolver

	mu      sync.Mutex
	answers map[string]answer
}

type answer struct {
	addrs []netip.Addr
	at    time.Time
}

func (c *cache) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	c.mu.Lock()
	a, ok := c.answers[name]
	c.mu.Unlock()
	if ok && time.Since(a.at) < cacheAge {
		return a.addrs, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addrs, err := c.resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(addrs) > maxAnswers {
		addrs = addrs[:maxAnswers]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.answers) >= cacheSize {
		clear(c.answers)
	}
	c.answers[name] = answer{addrs, time.Now()}
	return addrs, nil
}

// deniedError carries the decision that denied a dial.
type deniedError struct{ decision Decision }

func (e *deniedError) Error() string { return "denied: " + e.decision.Why }

// dialAllowed is the only way out. It decides about t, resolves a name, decides
// about each address, and connects from the host's namespace. The decision is on
// record when it returns; a *deniedError holds one that was against. The traffic is
// where the connection's bytes are counted.
func (s *Server) dialAllowed(ctx context.Context, t target) (net.Conn, *traffic, error) {
	ctx, cancel := context.WithTimeout(ctx, allTimeout)
	defer cancel()
	r := s.rules.Load()
	d := r.decide(t, s.own)
	if !d.Allowed {
		return nil, nil, s.deny(d)
	}
	addrs := []netip.Addr{t.addr}
	if t.host != "" {
		var err error
		if addrs, err = s.cache.lookup(ctx, t.host); err != nil {
			s.ledger.record(d)
			return nil, nil, fmt.Errorf("cannot resolve %s: %w", t.host, err)
		}
	}
	conn, against, err := s.dialFirst(ctx, r, t, addrs)
	switch {
	case conn != nil:
		d.Addr = remoteAddr(conn).Addr()
		return conn, s.ledger.record(d), nil
	case err != nil:
		s.ledger.record(d)
		return nil, nil, err
	case against != nil:
		return nil, nil, s.deny(*against)
	default:
		s.ledger.record(d)
		return nil, nil, fmt.Errorf("cannot resolve %s: no address", t.host)
	}
}

func (s *Server) deny(d Decision) error {
	s.ledger.record(d)
	return &deniedError{d}
}

// dialFirst connects to the first address that is allowed and answers. Without a
// connection, err is why the last allowed address failed, or against is the
// decision on the last denied one.
func (s *Server) dialFirst(ctx context.Context, r *rules, t target, addrs []netip.Addr) (conn net.Conn, against *Decision, err error) {
	for _, addr := range addrs {
		d := r.decideAddr(t, addr, s.own)
		if !d.Allowed {
			if t.host != "" {
				d.Why = t.host + " resolves to " + d.Why
			}
			against = &d
			continue
		}
		if conn, err = s.connect(ctx, r, t, addr); err == nil {
			return conn, nil, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, against, err
}

func (s *Server) connect(ctx context.Context, r *rules, t target, addr netip.Addr) (net.Conn, error) {
	dialer := &net.Dialer{
		Timeout:       dialTimeout,
		FallbackDelay: -1,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			got, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("internal error: dialling %q", address)
			}
			if got.Port() != t.port || !r.decideAddr(t, got.Addr(), s.own).Allowed {
				return errors.New("internal error: the socket would connect to " + address)
			}
			return nil
		},
	}
	dialer.SetMultipathTCP(false)
	return s.dial(ctx, dialer, t.proto, net.JoinHostPort(addr.String(), strconv.Itoa(int(t.port))))
}

func remoteAddr(c net.Conn) netip.AddrPort { return addrPort(c.RemoteAddr()) }
func localAddr(c net.Conn) netip.AddrPort  { return addrPort(c.LocalAddr()) }

// addrPort returns a socket's address; an IPv4 one is never in IPv6 form.
func addrPort(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}
