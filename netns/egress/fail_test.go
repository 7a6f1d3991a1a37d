package egress

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/direct-oci/engine/netns"
)

// brokenGateway fails at its n-th call and remembers what it opened.
type brokenGateway struct {
	quietGateway
	failAt int
	calls  int
	open   []interface{ Close() error }
}

var errBroken = errors.New("broken")

func (g *brokenGateway) fails() bool {
	g.calls++
	return g.calls == g.failAt
}

func (g *brokenGateway) Listen(network, address string) (net.Listener, error) {
	if g.fails() {
		return nil, errBroken
	}
	l, err := g.quietGateway.Listen(network, address)
	g.open = append(g.open, l)
	return l, err
}

func (g *brokenGateway) ListenPacket(network, address string) (net.PacketConn, error) {
	if g.fails() {
		return nil, errBroken
	}
	p, err := g.quietGateway.ListenPacket(network, address)
	g.open = append(g.open, p)
	return p, err
}

func (g *brokenGateway) SetPolicy(netns.Policy) error {
	if g.fails() {
		return errBroken
	}
	return nil
}

func TestServeFailsClosedAtEveryStep(t *testing.T) {
	for n := 1; ; n++ {
		g := &brokenGateway{failAt: n}
		s, err := Serve(Config{Gateway: g, Policy: policy(t, "example.com", ""), HostAddrs: noHostAddrs})
		if err == nil {
			if n != 7 { // five sockets and the policy
				t.Errorf("it took %d calls", n-1)
			}
			s.Close()
			return
		}
		if !errors.Is(err, errBroken) {
			t.Errorf("call %d: %v", n, err)
		}
		for _, c := range g.open {
			if err := c.Close(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("call %d: a socket was left open", n)
			}
		}
	}
}

func TestUpdateThatFailsAllowsNothing(t *testing.T) {
	g := &brokenGateway{}
	s := serve(t, Config{Gateway: g, Policy: policy(t, "example.com", "")})
	g.failAt = g.calls + 1
	if err := s.Update(policy(t, "example.com,example.org", "203.0.113.0/24:22")); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	for _, to := range []string{"example.com:443", "example.org:443", "203.0.113.1:22"} {
		dest, err := parseAuthority(to)
		if err != nil {
			t.Fatal(err)
		}
		dest.proto = "tcp"
		if d := s.rules.Load().decide(dest, s.own); d.Allowed {
			t.Errorf("%s is allowed after an update that failed", to)
		}
	}
	if err := s.Update(policy(t, "example.com", "")); err != nil {
		t.Fatal(err)
	}
	if d := s.rules.Load().decide(target{host: "example.com", port: 443, proto: "tcp"}, s.own); !d.Allowed {
		t.Error("a later update did not help")
	}
}

func TestKernelPolicy(t *testing.T) {
	p := policy(t, "example.com:22", "203.0.113.0/24:53/udp,10.0.0.0/8:*,[2001:db8::/32]:443")
	got := p.Kernel()
	if len(got.Services) != 1 || got.Services[0] != ProxyPort || len(got.Names) != 1 || len(got.Allowed) != 2 {
		t.Fatalf("Kernel() = %+v", got)
	}
	if want := (netns.Ports{Protocol: netns.TCP, First: 22, Last: 22}); got.Names[0] != want {
		t.Errorf("names: %+v, want %+v", got.Names[0], want)
	}
	want := netns.Allow{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Ports: netns.Ports{Protocol: netns.TCP, First: 1, Last: 65535}}
	if got.Allowed[1] != want {
		t.Errorf("allowed: %+v, want %+v", got.Allowed[1], want)
	}
	if none := (Policy{}).Kernel(); none.Services != nil || none.Names != nil || none.Allowed != nil {
		t.Errorf("Kernel() of nothing = %+v", none)
	}
	if _, err := netns.Rules(netns.GatewayConfig{Policy: Policy{Internet: true}.Kernel()}); err != nil {
		t.Error(err)
	}
}
