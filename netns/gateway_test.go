package netns

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var everything = netip.MustParsePrefix("0.0.0.0/0")

// mixed is a policy with some of each kind.
var mixed = Policy{
	Services: []uint16{3128},
	Names:    []Ports{{TCP, 80, 80}, {TCP, 443, 443}},
	Allowed: []Allow{
		{netip.MustParsePrefix("203.0.113.0/24"), Ports{TCP, 443, 443}},
		{netip.MustParsePrefix("203.0.113.0/25"), Ports{UDP, 1000, 2000}},
		{netip.MustParsePrefix("10.1.0.0/16"), Ports{TCP, 5432, 5432}},
		{everything, Ports{TCP, 8443, 8443}},
		{netip.MustParsePrefix("100.64.0.0/10"), Ports{TCP, 9000, 9000}}, // holds the gateway and a metadata service
		{netip.MustParsePrefix("198.18.0.0/15"), Ports{TCP, 9000, 9000}}, // holds the synthetic addresses
	},
}

func newGateway(t testing.TB, cfg GatewayConfig) *Gateway {
	t.Helper()
	requireRoot(t)
	g, err := NewGateway(cfg)
	if err != nil {
		t.Fatalf("NewGateway: %v", err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// echo accepts in the gateway and sends back on each connection what address it was
// for, then what it gets.
func echo(t testing.TB, g *Gateway, address string) net.Listener {
	t.Helper()
	l, err := g.Listen("tcp", address)
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintln(c, c.LocalAddr())
				io.Copy(c, c)
			}()
		}
	}()
	return l
}

// echoPackets does the same for UDP.
func echoPackets(t testing.TB, g *Gateway, address string) {
	t.Helper()
	p, err := g.ListenPacket("udp", address)
	if err != nil {
		t.Fatalf("ListenPacket: %v", err)
	}
	t.Cleanup(func() { p.Close() })
	c := p.(*net.UDPConn)
	go func() {
		buf, oob := make([]byte, 2048), make([]byte, 256)
		for {
			n, m, _, from, err := c.ReadMsgUDPAddrPort(buf, oob)
			if err != nil {
				return
			}
			to, err := OriginalDestination(oob[:m])
			if err != nil {
				t.Errorf("OriginalDestination: %v", err)
				return
			}
			answer, err := g.ListenPacket("udp", to.String())
			if err != nil {
				t.Errorf("ListenPacket %s: %v", to, err)
				return
			}
			answer.(*net.UDPConn).WriteToUDPAddrPort(fmt.Appendf(buf[:n], " for %s", to), from)
			answer.Close()
		}
	}()
}

// patience bounds what has to happen at once.
const patience = 5 * time.Second

// talk dials from the sandbox and returns the first line that comes back.
func talk(g *Gateway, network, address string) (line string, err error) {
	e := within(int(g.sandbox.Fd()), func() error {
		line, err = talkHere(network, address)
		return nil
	})
	return line, errors.Join(err, e)
}

func talkHere(network, address string) (string, error) {
	c, err := net.DialTimeout(network, address, patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if strings.HasPrefix(network, "udp") {
		if _, err := c.Write([]byte("hello")); err != nil {
			return "", err
		}
	}
	buf := make([]byte, 256)
	n, err := c.Read(buf)
	return strings.TrimSpace(string(buf[:n])), err
}

func TestListenersSeeWhatWasDialled(t *testing.T) {
	tests := []struct {
		name             string
		tcp, udp         string
		network, address string
		want             string
	}{
		{"a listener on the port", "0.0.0.0:443", "", "tcp", "198.18.0.7:443", "198.18.0.7:443"},
		{"a listener on the port, public address", "0.0.0.0:443", "", "tcp", "203.0.113.9:443", "203.0.113.9:443"},
		{"a listener on the port, private address", "0.0.0.0:5432", "", "tcp", "10.1.2.3:5432", "10.1.2.3:5432"},
		{"a listener of the gateway", "0.0.0.0:3128", "", "tcp", "100.64.0.1:3128", "100.64.0.1:3128"},
		{"dns over tcp", "0.0.0.0:53", "", "tcp", "100.64.0.1:53", "100.64.0.1:53"},
		{"the transparent listener", "0.0.0.0:1", "", "tcp", "198.18.0.7:443", "198.18.0.7:443"},
		{"the transparent listener, public address", "0.0.0.0:1", "", "tcp", "9.9.9.9:8443", "9.9.9.9:8443"},
		{"datagrams on the port", "", "0.0.0.0:1053", "udp", "203.0.113.9:1053", "hello for 203.0.113.9:1053"},
		{"datagrams, transparent", "", "0.0.0.0:1", "udp", "203.0.113.9:1999", "hello for 203.0.113.9:1999"},
		{"dns over udp", "", "0.0.0.0:53", "udp", "100.64.0.1:53", "hello for 100.64.0.1:53"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := newGateway(t, GatewayConfig{Policy: mixed})
			if tt.tcp != "" {
				echo(t, g, tt.tcp)
			} else {
				echoPackets(t, g, tt.udp)
			}
			if got, err := talk(g, tt.network, tt.address); got != tt.want {
				t.Errorf("%s %s answered %q, want %q: %v", tt.network, tt.address, got, tt.want, err)
			}
		})
	}
}

func TestRefusalsComeAtOnce(t *testing.T) {
	g := newGateway(t, GatewayConfig{Policy: mixed})
	echo(t, g, "0.0.0.0:1")
	echoPackets(t, g, "0.0.0.0:1")
	refused := []string{
		"198.18.0.7:22", "203.0.113.9:80", "203.0.114.9:443", "9.9.9.9:53", "100.64.0.1:80", "100.64.0.1:1",
		"10.1.2.3:8443", "10.1.2.3:443", "192.168.0.1:8443", "172.16.0.1:8443", "100.64.0.9:8443", "100.127.0.1:8443",
		"169.254.169.254:8443", "169.254.169.254:80", "168.63.129.16:8443", "100.100.100.200:8443", "192.0.0.192:8443",
		"100.64.0.1:9000", "198.18.0.7:9000", "100.100.100.200:9000", "169.254.7.7:8443", "240.0.0.1:8443", "198.18.0.9:8443", "198.19.0.1:8443",
	}
	var took []time.Duration
	for _, network := range []string{"tcp", "udp"} {
		for range 2 { // the second round would find a rate of answers exhausted
			for _, address := range refused {
				start := time.Now()
				if got, err := talk(g, network, address); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("%s %s: got %q, %v, want refused", network, address, got, err)
				}
				took = append(took, time.Since(start))
			}
		}
	}
	if m := median(took); m > 100*time.Millisecond { // what is lost is sent again after a second
		t.Errorf("refusals took %v, want them at once", m)
	}
	c, err := g.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if n := uint64(4 * len(refused)); c.Denied.Packets < n || c.Never.Packets == 0 || c.Never.Packets >= c.Denied.Packets {
		t.Errorf("counters = %+v, want at least %d denied, some of them never", c, n)
	}
	list, err := g.Refused()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2*len(refused) {
		t.Errorf("%d destinations were refused, want %d", len(list), 2*len(refused))
	}
	i := slices.IndexFunc(list, func(r Refused) bool {
		return r.Destination == netip.MustParseAddrPort("169.254.169.254:80") && r.Protocol == TCP
	})
	if i < 0 || list[i].Packets != 2 || list[i].Bytes != 120 {
		t.Errorf("refused = %+v, want 169.254.169.254:80 with 2 packets of 60 bytes", list)
	}
}

// TestRefusedIsBounded sends to more destinations than are told apart.
func TestRefusedIsBounded(t *testing.T) {
	g := newGateway(t, GatewayConfig{})
	frames := sandboxSocket(t, g)
	for i := range 2 * maxRefused {
		f := frame{dst: address(0x08080000 + uint32(i)), protocol: unix.IPPROTO_UDP, port: 9}
		send(t, frames, f.bytes())
	}
	list, err := g.Refused()
	if err != nil || len(list) != maxRefused {
		t.Errorf("%d destinations are told apart, want %d: %v", len(list), maxRefused, err)
	}
	c, err := g.Counters()
	if err != nil || c.Denied.Packets < 2*maxRefused {
		t.Errorf("%d packets denied, want all %d: %v", c.Denied.Packets, 2*maxRefused, err)
	}
}

// TestNarrowingStopsFlows proves that a policy that gets narrower closes what exists,
// and leaves alone what it still allows.
func TestNarrowingStopsFlows(t *testing.T) {
	g := newGateway(t, GatewayConfig{Policy: mixed})
	echo(t, g, "0.0.0.0:1")
	inside(t, g.sandbox, func() error {
		var conns []net.Conn
		for _, address := range []string{"203.0.113.9:443", "198.18.0.7:443"} {
			c, err := net.DialTimeout("tcp", address, patience)
			if err != nil {
				return err
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			if _, err := c.Read(make([]byte, 256)); err != nil {
				return err
			}
			conns = append(conns, c)
		}
		ping := func(c net.Conn) error {
			if _, err := c.Write([]byte("x")); err != nil {
				return err
			}
			_, err := io.ReadFull(c, make([]byte, 1))
			return err
		}
		if err := g.SetPolicy(Policy{Names: mixed.Names}); err != nil {
			return err
		}
		if err := ping(conns[0]); !errors.Is(err, unix.ECONNRESET) {
			return fmt.Errorf("a connection that is no longer allowed: %v, want a reset", err)
		}
		if err := ping(conns[1]); err != nil {
			return fmt.Errorf("a connection that is still allowed: %w", err)
		}
		if _, err := talkHere("tcp", "203.0.113.9:443"); !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("a new connection that is no longer allowed: %v, want refused", err)
		}
		if err := g.SetPolicy(mixed); err != nil {
			return err
		}
		_, err := talkHere("tcp", "203.0.113.9:443")
		return err
	})
}

// TestAnyPolicyFollowsAny sets policies in turn, in both directions.
func TestAnyPolicyFollowsAny(t *testing.T) {
	policies := []Policy{
		{},
		mixed,
		{Names: []Ports{{TCP, 0, 65535}, {UDP, 0, 65535}}, Allowed: []Allow{
			{everything, Ports{TCP, 0, 65535}},
			{everything, Ports{UDP, 0, 65535}},
			{netip.MustParsePrefix("10.0.0.0/8"), Ports{TCP, 443, 443}},
		}},
		manyAllowed(elementsInOne + 1),
	}
	probes := []string{"198.18.0.7:443", "203.0.113.9:443", "9.9.9.9:8443", "10.1.2.3:5432", "10.2.0.0:443", "8.0.0.5:1005", "169.254.169.254:80"}
	open := [][]string{
		{},
		{"198.18.0.7:443", "203.0.113.9:443", "9.9.9.9:8443", "10.1.2.3:5432"},
		{"198.18.0.7:443", "203.0.113.9:443", "9.9.9.9:8443", "10.2.0.0:443", "8.0.0.5:1005"},
		{"8.0.0.5:1005"},
	}
	g := newGateway(t, GatewayConfig{})
	echo(t, g, "0.0.0.0:1")
	for a := range policies {
		for b := range policies {
			for _, i := range []int{a, b} {
				if err := g.SetPolicy(policies[i]); err != nil {
					t.Fatalf("SetPolicy %d: %v", i, err)
				}
			}
			for _, p := range probes {
				_, err := talk(g, "tcp", p)
				if got, want := err == nil, slices.Contains(open[b], p); got != want {
					t.Errorf("after policies %d and %d, %s open = %v, want %v: %v", a, b, p, got, want, err)
				}
			}
		}
	}
}

func manyAllowed(n int) (p Policy) {
	for i := range n {
		port := uint16(1000 + i)
		p.Allowed = append(p.Allowed, Allow{netip.PrefixFrom(address(0x08000000+uint32(i)), 32), Ports{TCP, port, port}})
	}
	return p
}

// TestNothingOutsideChanges proves that the caller's namespace has neither a link nor
// a setting more than before, and that the gateway's own setting is only its own.
func TestNothingOutsideChanges(t *testing.T) {
	requireRoot(t)
	state := func() string {
		links, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, l := range links {
			fmt.Fprintln(&b, l.Index, l.Name, l.HardwareAddr)
		}
		for _, name := range []string{"icmp_ratemask", "ip_forward", "conf/all/forwarding", "conf/default/rp_filter"} {
			data, err := os.ReadFile(filepath.Join("/proc/sys/net/ipv4", name))
			fmt.Fprintln(&b, name, string(data), err)
		}
		return b.String()
	}
	before := state()
	g := newGateway(t, GatewayConfig{Policy: mixed})
	if got := state(); got != before {
		t.Errorf("with a gateway:\n%s\nbefore:\n%s", got, before)
	}
	inside(t, g.own, func() error {
		data, err := os.ReadFile("/proc/sys/net/ipv4/icmp_ratemask")
		if strings.TrimSpace(string(data)) != "0" {
			return fmt.Errorf("the gateway's icmp_ratemask is %q, want 0: %v", data, err)
		}
		return nil
	})
}

func TestNoIPv6(t *testing.T) {
	g := newGateway(t, GatewayConfig{Policy: mixed})
	for _, ns := range []*os.File{g.own, g.sandbox} {
		inside(t, ns, func() error {
			data, err := os.ReadFile("/proc/thread-self/net/if_inet6")
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			for line := range strings.Lines(string(data)) {
				if !strings.HasSuffix(strings.TrimSpace(line), " lo") {
					return fmt.Errorf("a link has an IPv6 address: %s", line)
				}
			}
			return nil
		})
	}
	inside(t, g.sandbox, func() error {
		if _, err := net.DialTimeout("tcp", "[2001:db8::1]:443", patience); !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("dialled IPv6: %v, want unreachable", err)
		}
		return nil
	})
}

func TestClosedGateway(t *testing.T) {
	g := newGateway(t, GatewayConfig{Policy: mixed})
	for range 2 {
		if err := g.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if _, err := g.Listen("tcp", "0.0.0.0:1"); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Listen after Close: %v, want %v", err, os.ErrClosed)
	}
	if _, err := g.Counters(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Counters after Close: %v, want %v", err, os.ErrClosed)
	}
	if err := g.SetPolicy(mixed); !errors.Is(err, os.ErrClosed) {
		t.Errorf("SetPolicy after Close: %v, want %v", err, os.ErrClosed)
	}
}

// TestCloseDestroysGateway holds the sandbox's namespace, where the link's end
// disappears when the gateway's does.
func TestCloseDestroysGateway(t *testing.T) {
	g := newGateway(t, GatewayConfig{Policy: mixed})
	l := echo(t, g, "0.0.0.0:1")
	fd, err := unix.FcntlInt(g.sandbox.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	sandbox := os.NewFile(uintptr(fd), "sandbox")
	defer sandbox.Close()
	l.Close()
	g.Close()
	waitNoLink(t, sandbox)
}

func waitNoLink(t *testing.T, sandbox *os.File) {
	t.Helper()
	inside(t, sandbox, func() error {
		return until(func() error {
			if _, err := net.InterfaceByName(sandboxLink); err == nil {
				return errors.New("the sandbox still has its link")
			}
			return nil
		})
	})
}

// TestCountersOutliveTheSandbox closes the sandbox's namespace, as its end would.
func TestCountersOutliveTheSandbox(t *testing.T) {
	g := newGateway(t, GatewayConfig{Policy: mixed})
	transfer(t, g, 1<<20, true)
	g.sandbox.Close()
	g.sandbox = nil
	gone := func() (err error) {
		inside(t, g.own, func() error {
			if _, e := net.InterfaceByName(gatewayLink); e == nil {
				err = errors.New("the gateway still has its link")
			}
			return nil
		})
		return err
	}
	if err := until(gone); err != nil {
		t.Fatal(err)
	}
	if c, err := g.Counters(); err != nil || c.Tx.Bytes < 1<<20 || c.Rx.Bytes == 0 {
		t.Errorf("counters = %+v, want more than 1 MiB sent: %v", c, err)
	}
}

// TestManyAtOnce makes gateways side by side and talks through each.
func TestManyAtOnce(t *testing.T) {
	requireRoot(t)
	const n = 250
	var mu sync.Mutex
	var wg sync.WaitGroup
	gateways := make([]*Gateway, 0, n)
	for range 4 {
		wg.Go(func() {
			for range n / 4 {
				g, err := NewGateway(GatewayConfig{Policy: mixed})
				if err != nil {
					t.Errorf("NewGateway: %v", err)
					return
				}
				mu.Lock()
				gateways = append(gateways, g)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, g := range gateways {
		defer g.Close()
	}
	for i, g := range gateways {
		l := echo(t, g, "0.0.0.0:1")
		if got, err := talk(g, "tcp", "198.18.0.7:443"); got != "198.18.0.7:443" {
			t.Fatalf("gateway %d answered %q: %v", i, got, err)
		}
		l.Close()
	}
	host := inode(t, "/proc/self/ns/net")
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(threads) == 0 {
		t.Fatalf("no threads found: %v", err)
	}
	for _, path := range threads {
		if got, err := os.Readlink(path); err == nil && got != host {
			t.Errorf("%s is in %s, want %s", path, got, host)
		}
	}
}

// TestNeighboursDoNotMeet has two gateways whose addresses are the same.
func TestNeighboursDoNotMeet(t *testing.T) {
	a, b := newGateway(t, GatewayConfig{Policy: mixed}), newGateway(t, GatewayConfig{Policy: mixed})
	echo(t, a, "0.0.0.0:443")
	if got, err := talk(b, "tcp", "198.18.0.7:443"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the other sandbox got %q, %v, want refused", got, err)
	}
	talk(b, "tcp", "100.64.0.2:22")
	if c, err := a.Counters(); err != nil || c != (Counters{}) {
		t.Errorf("the first gateway counted %+v, want nothing: %v", c, err)
	}
	if _, err := talk(a, "tcp", "198.18.0.7:443"); err != nil {
		t.Errorf("its own gateway: %v", err)
	}
}

// quiet waits for the ends of closed connections, and returns the counters.
func quiet(t *testing.T, g *Gateway) Counters {
	t.Helper()
	var last Counters
	same := 0
	err := until(func() error {
		c, err := g.Counters()
		if err != nil {
			return err
		}
		same++
		if c != last {
			last, same = c, 0
		}
		if same < 100 {
			return errors.New("the counters still change")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return last
}

func TestInvalidConfigs(t *testing.T) {
	port := Ports{TCP, 1, 1}
	tests := []struct {
		name string
		cfg  GatewayConfig
		want string
	}{
		{"ipv6", GatewayConfig{Policy: Policy{Allowed: []Allow{{netip.MustParsePrefix("2001:db8::/32"), port}}}}, "cannot pass 2001:db8::/32: only IPv4 passes a gateway"},
		{"no prefix", GatewayConfig{Policy: Policy{Allowed: []Allow{{netip.Prefix{}, port}}}}, "cannot pass invalid Prefix: only IPv4 passes a gateway"},
		{"another protocol", GatewayConfig{Policy: Policy{Allowed: []Allow{{everything, Ports{132, 1, 1}}}}}, "cannot allow 0.0.0.0/0: protocol 132 does not pass a gateway"},
		{"a range backwards", GatewayConfig{Policy: Policy{Names: []Ports{{TCP, 2, 1}}}}, "cannot allow 0.0.0.0/0: ports 2-1 are no range"},
		{"too many", GatewayConfig{Policy: manyAllowed(maxAllowed + 1)}, "cannot allow 4097 destinations: the limit is 4096"},
		{"a limit below zero", GatewayConfig{Limits: Limits{Bytes: -1}}, "cannot make a gateway with a limit below zero"},
		{"mtu", GatewayConfig{MTU: 100}, "cannot make a gateway with mtu=100: want 576 to 65535"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := NewGateway(tt.cfg); err == nil || err.Error() != tt.want {
				t.Errorf("NewGateway: %v, want %q", err, tt.want)
			}
		})
	}
}

// TestFailureLeavesNothing makes a gateway fail halfway: its descriptors must be gone.
func TestFailureLeavesNothing(t *testing.T) {
	requireRoot(t)
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old)
	before := count()
	for extra := range 8 { // each step that needs a descriptor fails once
		limit := syscall.Rlimit{Cur: uint64(before + extra), Max: old.Max}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		g, err := NewGateway(GatewayConfig{Policy: mixed})
		syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old)
		if err == nil {
			g.Close()
		} else if extra > 5 {
			t.Errorf("with %d descriptors: %v", extra, err)
		}
		if got := count(); got > before {
			t.Errorf("with %d descriptors: %d are open afterwards, want %d", extra, got, before)
		}
	}
}
