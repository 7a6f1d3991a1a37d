package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/direct-oci/engine/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// world is a gateway with its sandbox, and a namespace that plays everything beyond
// the host: each address there answers, so that a leak shows.
type world struct {
	*Server
	gateway  *netns.Gateway
	internet *os.File
	dns      *hostileDNS
	seen     decisions

	mu      sync.Mutex
	visited []netip.AddrPort // where connections and datagrams arrived on the far side
}

// newWorld serves a policy. The host's own addresses are 203.0.113.77 and 10.9.9.9.
func newWorld(t testing.TB, p Policy) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	w := &world{}
	var err error
	if w.internet, err = netns.New(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.internet.Close() })
	w.in(t, w.internet, everyAddressIsLocal)
	w.dns = &hostileDNS{records: map[string][]string{}}
	w.dns.serve(t, w)
	if w.gateway, err = netns.NewGateway(netns.GatewayConfig{Limits: p.KernelLimits()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.gateway.Close() })
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return w.dialIn(ctx, w.internet, &net.Dialer{}, network, "203.0.113.53:53")
	}}
	w.Server = serve(t, Config{
		Gateway: w.gateway, Policy: p, Sink: &w.seen,
		Resolver: func(ctx context.Context, name string) ([]netip.Addr, error) {
			return resolver.LookupNetIP(ctx, "ip", name+".")
		},
		HostAddrs: func() ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("203.0.113.77"), netip.MustParseAddr("10.9.9.9")}, nil
		},
		Dial: func(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
			return w.dialIn(ctx, w.internet, d, network, address)
		},
	})
	w.lookup(t, "udp", "localhost") // a link loses packets in its first milliseconds
	return w
}

func everyAddressIsLocal() error {
	for _, all := range []string{"0.0.0.0/0", "::/0"} {
		_, dst, _ := net.ParseCIDR(all)
		r := &netlink.Route{Dst: dst, LinkIndex: 1, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST}
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("route %s: %w", all, err)
		}
	}
	return nil
}

// in runs f on a thread in ns that is never used again.
func (w *world) in(t testing.TB, ns *os.File, f func() error) {
	t.Helper()
	if err := inNS(ns, f); err != nil {
		t.Fatal(err)
	}
}

func inNS(ns *os.File, f func() error) error {
	done := make(chan error, 1)
	var enter func()
	enter = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // the first thread cannot end
			defer runtime.UnlockOSThread()
			again := make(chan struct{})
			go func() { defer close(again); enter() }()
			<-again
			return
		}
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}
	go enter()
	return <-done
}

func (w *world) dialIn(ctx context.Context, ns *os.File, d *net.Dialer, network, address string) (c net.Conn, err error) {
	e := inNS(ns, func() error {
		c, err = d.DialContext(ctx, network, address)
		return nil
	})
	return c, errors.Join(e, err)
}

// dial connects from the sandbox to a literal address.
func (w *world) dial(address string) (net.Conn, error) {
	c, err := w.dialIn(context.Background(), w.gateway.Sandbox(), &net.Dialer{Timeout: 5 * time.Second}, "tcp", address)
	if c != nil {
		c.SetDeadline(time.Now().Add(10 * time.Second))
	}
	return c, err
}

// lookup asks the gateway's resolver from the sandbox, over udp or tcp.
func (w *world) lookup(t testing.TB, network, name string) (netip.Addr, dnsmessage.RCode) {
	t.Helper()
	msg := ask(t, name+".", dnsmessage.TypeA, true)
	var answer []byte
	var err error
	for range 5 {
		if answer, err = w.exchangeDNS(network, msg); err == nil {
			m := parse(t, answer)
			return address(m), m.RCode
		}
	}
	t.Fatalf("look-up of %s over %s: %v", name, network, err)
	return netip.Addr{}, 0
}

func (w *world) exchangeDNS(network string, msg []byte) ([]byte, error) {
	c, err := w.dialIn(context.Background(), w.gateway.Sandbox(), &net.Dialer{}, network, "100.64.0.1:53")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	buf := make([]byte, 1500)
	if network == "tcp" {
		c.Write(append([]byte{0, byte(len(msg))}, msg...))
		if _, err := io.ReadFull(c, buf[:2]); err != nil {
			return nil, err
		}
		buf = buf[:int(buf[0])<<8|int(buf[1])]
		_, err := io.ReadFull(c, buf)
		return buf, err
	}
	c.Write(msg)
	n, err := c.Read(buf)
	return buf[:n], err
}

// dialName looks a name up and connects to what it gets.
func (w *world) dialName(t testing.TB, name string, port int) (net.Conn, error) {
	t.Helper()
	addr, rcode := w.lookup(t, "udp", name)
	if rcode != dnsmessage.RCodeSuccess {
		return nil, fmt.Errorf("look-up: %v", rcode)
	}
	return w.dial(fmt.Sprintf("%s:%d", addr, port))
}

// listen runs a server on the far side, on a port of every address.
func (w *world) listen(t testing.TB, port int, serve func(net.Conn)) {
	t.Helper()
	var l net.Listener
	w.in(t, w.internet, func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
		return err
	})
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() {
		l.Close()
		stop()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.visit(localAddr(c))
			wg.Go(func() {
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				serve(c)
			})
		}
	})
}

func (w *world) visit(a netip.AddrPort) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.visited = append(w.visited, a)
}

func (w *world) visits() []netip.AddrPort {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.visited)
}

// banner is a server that speaks first and then echoes lines.
func banner(c net.Conn) {
	fmt.Fprintf(c, "hello from %s\n", localAddr(c))
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		fmt.Fprintf(c, "echo %s", line)
	}
}

// echoUDP runs a server on the far side that answers each datagram.
func (w *world) echoUDP(t testing.TB, address string) {
	t.Helper()
	var p net.PacketConn
	w.in(t, w.internet, func() (err error) {
		p, err = net.ListenPacket("udp4", address)
		return err
	})
	done := make(chan struct{})
	t.Cleanup(func() {
		p.Close()
		<-done
	})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			w.visit(netip.MustParseAddrPort(address))
			p.WriteTo(append([]byte("re: "), buf[:n]...), from)
		}
	}()
}

// httpServer answers each request with its own text, and closes.
func httpServer(c net.Conn) {
	r := bufio.NewReader(c)
	var head strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		head.WriteString(line)
		if line == "\r\n" {
			break
		}
	}
	body := head.String()
	fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
}

// hostileDNS is the name server of the far side. Records are addresses or "=name".
type hostileDNS struct {
	mu      sync.Mutex
	records map[string][]string
	asked   []string
}

func (h *hostileDNS) set(name string, records ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.records[name] = records
}

func (h *hostileDNS) questions() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.asked)
}

func (h *hostileDNS) serve(t testing.TB, w *world) {
	var p net.PacketConn
	w.in(t, w.internet, func() (err error) {
		p, err = net.ListenPacket("udp4", "203.0.113.53:53")
		return err
	})
	done := make(chan struct{})
	t.Cleanup(func() {
		p.Close()
		<-done
	})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, from, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) == nil && len(m.Questions) == 1 {
				if b, err := h.answer(m); err == nil {
					p.WriteTo(b, from)
				}
			}
		}
	}()
}

func (h *hostileDNS) answer(m dnsmessage.Message) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := m.Questions[0]
	name := strings.TrimSuffix(strings.ToLower(q.Name.String()), ".")
	h.asked = append(h.asked, name)
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	records, ok := h.records[name]
	if !ok {
		m.RCode = dnsmessage.RCodeNameError
		return m.Pack()
	}
	owner := q.Name
	for len(records) == 1 && strings.HasPrefix(records[0], "=") {
		to := dnsmessage.MustNewName(records[0][1:] + ".")
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: owner, Type: dnsmessage.TypeCNAME, Class: dnsmessage.ClassINET},
			Body:   &dnsmessage.CNAMEResource{CNAME: to},
		})
		records, owner = h.records[records[0][1:]], to
	}
	for _, r := range records {
		a := netip.MustParseAddr(r)
		rh := dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET}
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: rh, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: rh, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	return m.Pack()
}

// expect waits until f is true.
func expect(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 10 seconds", what)
		}
		runtime.Gosched()
		<-time.After(time.Millisecond)
	}
}

func line(t testing.TB, c net.Conn) string {
	t.Helper()
	s, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return s
}

// wantReset reads from a connection that must have been reset.
func wantReset(t testing.TB, c net.Conn, what string) {
	t.Helper()
	began := time.Now()
	if _, err := io.Copy(io.Discard, c); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%s: %v, want a reset", what, err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("%s: the reset took %v", what, took)
	}
}

// wantRefused wants a connection that came to nothing, at once.
func wantRefused(t testing.TB, c net.Conn, err error, what string) {
	t.Helper()
	switch {
	case err == nil:
		wantReset(t, c, what)
		c.Close()
	case !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ECONNRESET):
		t.Errorf("%s: %v, want a refusal", what, err)
	}
}
