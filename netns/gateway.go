package netns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// GatewayConfig is what NewGateway makes. The zero value makes a gateway that passes
// DNS alone.
type GatewayConfig struct {
	Policy Policy
	Limits Limits
	MTU    int // of the link, in bytes; 0 is 1500
}

const (
	defaultMTU = 1500
	maxMTU     = 65535
)

// Gateway is a sandbox's network namespace, the gateway's, and the link between them.
// Its methods may be called at the same time. Both namespaces end with the last
// descriptor and the last process in them, so nothing is left of a gateway whose
// process was killed.
type Gateway struct {
	sandbox *os.File
	own     *os.File

	mu    sync.Mutex
	rules *conn // nil once closed
}

// NewGateway makes a gateway. Its rules are in force before its link is up, and its
// link is the only way out of the sandbox's namespace.
func NewGateway(cfg GatewayConfig) (*Gateway, error) {
	s, err := cfg.check()
	if err != nil {
		return nil, err
	}
	cfg.MTU = cmp.Or(cfg.MTU, defaultMTU)
	g := &Gateway{}
	onThread(func() (back bool) {
		back, err = away(func() error { return g.build(s, cfg) })
		return back
	})
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

func (cfg GatewayConfig) check() (sets, error) {
	if cfg.MTU != 0 && (cfg.MTU < 576 || cfg.MTU > maxMTU) {
		return sets{}, fmt.Errorf("cannot make a gateway with mtu=%d: want 576 to %d", cfg.MTU, maxMTU)
	}
	l := cfg.Limits
	if l.Connections < 0 || l.ConnectionsPerSec < 0 || l.Bytes < 0 || l.BytesPerSec < 0 {
		return sets{}, errors.New("cannot make a gateway with a limit below zero")
	}
	return cfg.Policy.sets()
}

// build makes the gateway on a thread that is in the gateway's namespace afterwards.
func (g *Gateway) build(s sets, cfg GatewayConfig) error {
	routes, err := g.enter()
	defer routes.close()
	if err != nil {
		return err
	}
	return g.furnish(routes, s, cfg)
}

// routes are rtnetlink sockets in the two namespaces.
type routes struct{ sandbox, own *conn }

func (r routes) close() {
	r.sandbox.close()
	r.own.close()
}

// enter makes both namespaces. A socket belongs to the namespace that it was made in,
// so the thread need not return to the sandbox's.
func (g *Gateway) enter() (r routes, err error) {
	space := func(to **os.File, route **conn) error {
		fd, err := enterNew()
		if err != nil {
			return err
		}
		*to = file(fd)
		*route, err = dial(unix.NETLINK_ROUTE)
		return err
	}
	if err := space(&g.sandbox, &r.sandbox); err != nil {
		return r, err
	}
	if err := space(&g.own, &r.own); err != nil {
		return r, err
	}
	g.rules, err = dial(unix.NETLINK_NETFILTER)
	return r, err
}

// furnish makes the link and the rules, and opens the link.
func (g *Gateway) furnish(r routes, s sets, cfg GatewayConfig) error {
	// SECURITY: no frame of a sandbox passes before the rules are in force.
	// A program or a helper of the runtime may send as soon as there is a link.
	// Holds because: the gateway's end is down until the kernel has said that it holds
	// the rules, and any error ends the making.
	// Not covered: what the kernel sends by itself. Checked by: TestNothingPassesDuringSetUp.
	if err := makePair(r.own, int(g.sandbox.Fd()), cfg.MTU); err != nil {
		return err
	}
	w := writer{b: make([]byte, 0, 16<<10)} // holds all but large policies
	rules(s, cfg.Limits).write(&w)
	if err := g.rules.do(&w); err != nil {
		return err
	}
	if err := unlimitRefusals(); err != nil {
		return err
	}
	if err := configureGateway(r.own); err != nil {
		return err
	}
	if err := configureSandbox(r.sandbox); err != nil {
		return err
	}
	return errors.Join(settle(r.own, gatewayLink), settle(r.sandbox, sandboxLink))
}

// unlimitRefusals lets the gateway answer each refused datagram, and without using up
// what the host may send. By default one address is told about six in a row and then
// one a second, and a client waits for those that it is not told.
func unlimitRefusals() error {
	// the file is that of the namespace of the thread that opens it
	const path = "/proc/sys/net/ipv4/icmp_ratemask"
	if err := os.WriteFile(path, []byte("0"), 0); err != nil {
		return fmt.Errorf("cannot set a gateway's limit of refusals: %w", err)
	}
	return nil
}

// Sandbox returns the namespace for the sandbox, which a runtime joins by the path
// /proc/<pid>/fd/<descriptor>. One runtime joins it once: runsc takes the link's
// address away. It stays the gateway's and is closed with it.
func (g *Gateway) Sandbox() *os.File { return g.sandbox }

// Listen listens for TCP in the gateway. The address is numeric; that of an accepted
// connection is what the sandbox dialled. It may be called from any goroutine, and the
// listener used from any.
func (g *Gateway) Listen(network, address string) (net.Listener, error) {
	if network != "tcp" && network != "tcp4" {
		return nil, fmt.Errorf("cannot listen on %s in a gateway: want tcp", network)
	}
	var l net.Listener
	err := g.inside(func() (err error) {
		lc := net.ListenConfig{Control: transparent, KeepAliveConfig: net.KeepAliveConfig{Enable: true}}
		lc.SetMultipathTCP(false) // its sockets are not transparent
		l, err = lc.Listen(context.Background(), "tcp4", address)
		return err
	})
	return l, err
}

// ListenPacket listens for UDP in the gateway. What it returns is a *net.UDPConn,
// whose ReadMsgUDP gives with each datagram what OriginalDestination reads. Any
// address is the gateway's: a socket on one sends as from there.
func (g *Gateway) ListenPacket(network, address string) (net.PacketConn, error) {
	if network != "udp" && network != "udp4" {
		return nil, fmt.Errorf("cannot listen on %s in a gateway: want udp", network)
	}
	var c net.PacketConn
	err := g.inside(func() (err error) {
		lc := net.ListenConfig{Control: transparent}
		c, err = lc.ListenPacket(context.Background(), "udp4", address)
		return err
	})
	return c, err
}

// OriginalDestination returns where a sandbox sent a datagram, from what ReadMsgUDP
// gave beside it.
func OriginalDestination(oob []byte) (netip.AddrPort, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("cannot read where a datagram was sent: %w", err)
	}
	for _, m := range messages {
		if sa, err := unix.ParseOrigDstAddr(&m); err == nil {
			if in, ok := sa.(*unix.SockaddrInet4); ok {
				return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port)), nil
			}
		}
	}
	return netip.AddrPort{}, errors.New("internal error: a datagram came without its destination")
}

// inside calls f on a thread in the gateway's namespace.
func (g *Gateway) inside(f func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.rules == nil {
		return errClosed
	}
	return within(int(g.own.Fd()), f)
}

var errClosed = fmt.Errorf("cannot use a gateway: %w", os.ErrClosed)

// transparent makes a socket take what is steered to it and send as from any address.
func transparent(_, _ string, rc syscall.RawConn) error {
	var err error
	set := func(fd uintptr) {
		for _, option := range []int{unix.IP_TRANSPARENT, unix.IP_RECVORIGDSTADDR} {
			if e := unix.SetsockoptInt(int(fd), unix.SOL_IP, option, 1); e != nil {
				err = errors.Join(err, os.NewSyscallError("setsockopt", e))
			}
		}
		if e := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); e != nil {
			err = errors.Join(err, os.NewSyscallError("setsockopt", e))
		}
	}
	if e := rc.Control(set); e != nil {
		return e
	}
	return err
}

// SetPolicy puts p in the place of the policy in force, all at once. What it no longer
// lets through is refused from then on, in connections that exist too; those that it
// still lets through go on.
func (g *Gateway) SetPolicy(p Policy) error {
	s, err := p.sets()
	if err != nil {
		return err
	}
	var w writer
	w.transaction(func() {
		t := table{family: unix.NFPROTO_INET, name: polTable}
		for _, set := range policySets(s) {
			w.nft("empty set "+set.name+" of a gateway", unix.NFT_MSG_DELSETELEM, 0, t.family, func() {
				w.text(unix.NFTA_SET_ELEM_LIST_TABLE, t.name)
				w.text(unix.NFTA_SET_ELEM_LIST_SET, set.name)
			})
			w.elements(t, set)
		}
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.rules == nil {
		return errClosed
	}
	return g.rules.do(&w)
}

// Close closes the gateway's own descriptors. The kernel takes both namespaces and the
// link away once the listeners are closed and no process is in them. It may be called
// twice.
func (g *Gateway) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rules.close()
	g.rules = nil
	var errs []error
	for _, f := range []**os.File{&g.sandbox, &g.own} {
		if *f != nil {
			errs = append(errs, (*f).Close())
			*f = nil
		}
	}
	return errors.Join(errs...)
}
