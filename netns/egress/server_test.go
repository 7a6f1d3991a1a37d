package egress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

func denied(t testing.TB, w *world, host string, port uint16, proto string) Destination {
	t.Helper()
	st, err := w.Stats()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range st.Denied {
		if d.Host == host && d.Port == port && d.Proto == proto {
			return d
		}
	}
	return Destination{}
}

func allowed(t testing.TB, w *world, host string, port uint16) Destination {
	t.Helper()
	st, err := w.Stats()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range st.Allowed {
		if d.Host == host && d.Port == port {
			return d
		}
	}
	return Destination{}
}

func TestNamesReachWhatTheyNameForAnyProtocol(t *testing.T) {
	w := newWorld(t, policy(t, "ssh.example:22,*.wild.example:25,chain.example:22", ""))
	w.dns.set("ssh.example", "203.0.113.10")
	w.dns.set("a.wild.example", "203.0.113.11")
	w.dns.set("chain.example", "=one.cdn.example")
	w.dns.set("one.cdn.example", "=two.cdn.example")
	w.dns.set("two.cdn.example", "203.0.113.12")
	w.listen(t, 22, banner)
	w.listen(t, 25, banner)
	for name, want := range map[string]string{"ssh.example:22": "203.0.113.10:22", "a.wild.example:25": "203.0.113.11:25", "chain.example:22": "203.0.113.12:22"} {
		host, port, _ := net.SplitHostPort(name)
		var n int
		fmt.Sscan(port, &n)
		c, err := w.dialName(t, host, n)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r := bufio.NewReader(c)
		if got, err := r.ReadString('\n'); err != nil || got != "hello from "+want+"\n" {
			t.Errorf("%s says %q, %v; want that of %s", name, got, err, want)
		}
		fmt.Fprint(c, "EHLO there\n")
		if got, err := r.ReadString('\n'); err != nil || got != "echo EHLO there\n" {
			t.Errorf("%s echoes %q, %v", name, got, err)
		}
		c.Close()
	}
	if addr, rcode := w.lookup(t, "tcp", "ssh.example"); rcode != 0 || !addr.IsValid() {
		t.Errorf("over TCP: %v %v", addr, rcode)
	}
	for _, name := range []string{"evil.example", "evilwild.example", "wild.example", "secret.label.ssh.example"} {
		if _, rcode := w.lookup(t, "udp", name); rcode != dnsmessage.RCodeNameError {
			t.Errorf("%s: %v, want NXDOMAIN", name, rcode)
		}
	}
	for _, q := range w.dns.questions() {
		if strings.Contains(q, "evil") || strings.Contains(q, "secret") || q == "wild.example" {
			t.Errorf("the denied name %s was asked on the host", q)
		}
	}
	expect(t, "all sessions end", func() bool { st, _ := w.Stats(); return st.Open == 0 })
	if d := allowed(t, w, "ssh.example", 22); d.Count != 1 || d.TxBytes != 11 || d.RxBytes != int64(len("hello from 203.0.113.10:22\necho EHLO there\n")) || d.Rule != "allow ssh.example" {
		t.Errorf("counted %+v", d)
	}
	if d := denied(t, w, "evil.example", 53, "dns"); d.Count != 1 || d.Rule != ruleNone {
		t.Errorf("counted %+v", d)
	}
}

// TestRebindingNeverReachesInside has an allowed name resolve to everything that must
// stay closed. The far side answers at all of these addresses.
func TestRebindingNeverReachesInside(t *testing.T) {
	w := newWorld(t, policy(t, "rebind.example:80,mixed.example:80,chain.example:80,operator.example:80,flip.example:80", "10.7.7.7/32:80"))
	w.listen(t, 80, banner)
	for _, inside := range strings.Fields(`127.0.0.1 0.0.0.0 10.0.0.1 172.16.3.4 192.168.1.1 100.64.0.1 100.127.0.1 169.254.169.254 169.254.170.2
		168.63.129.16 100.100.100.200 192.0.0.192 198.18.0.1 224.0.0.1 255.255.255.255 203.0.113.77 10.9.9.9
		::1 :: ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe 64:ff9b::a00:1 2002:a9fe:a9fe:: fd00:ec2::254 fd20:ce::254 fe80::1 fc00::1 ff02::1 ::10.0.0.1`) {
		w.dns.set("rebind.example", inside)
		w.cache.forget()
		c, err := w.dialName(t, "rebind.example", 80)
		wantRefused(t, c, err, inside)
	}
	if v := w.visits(); len(v) != 0 {
		t.Errorf("arrived on the far side: %v", v)
	}
	w.dns.set("mixed.example", "10.0.0.1", "169.254.169.254", "203.0.113.5", "::ffff:10.0.0.1")
	w.dns.set("chain.example", "=inside.example")
	w.dns.set("inside.example", "192.168.1.1")
	w.dns.set("operator.example", "10.7.7.7")
	for name, want := range map[string]string{"mixed.example": "203.0.113.5:80", "chain.example": "", "operator.example": "10.7.7.7:80"} {
		c, err := w.dialName(t, name, 80)
		if want == "" {
			wantRefused(t, c, err, name)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := line(t, c); got != "hello from "+want+"\n" {
			t.Errorf("%s says %q, want that of %s", name, got, want)
		}
		c.Close()
	}
	// the answer changes after the name was used: the new one is checked like the first
	w.dns.set("flip.example", "203.0.113.6")
	c, _ := w.dialName(t, "flip.example", 80)
	if got := line(t, c); got != "hello from 203.0.113.6:80\n" {
		t.Errorf("flip.example says %q", got)
	}
	c.Close()
	w.dns.set("flip.example", "169.254.169.254")
	w.cache.forget()
	c, err := w.dialName(t, "flip.example", 80)
	wantRefused(t, c, err, "flip.example, later")
	for _, v := range w.visits() {
		if a := v.Addr().String(); a != "203.0.113.5" && a != "10.7.7.7" && a != "203.0.113.6" {
			t.Errorf("arrived at %v", v)
		}
	}
	if d := denied(t, w, "rebind.example", 80, "tcp"); d.Count == 0 {
		t.Error("no denial is counted")
	}
}

func (c *cache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.answers)
}

func TestCIDRsAndWhatIsDenied(t *testing.T) {
	w := newWorld(t, policy(t, "name.example:80", "203.0.113.0/24:5432,10.1.0.0/16:*"))
	w.listen(t, 5432, banner)
	w.listen(t, 80, banner)
	for _, to := range []string{"203.0.113.9:5432", "10.1.2.3:80", "10.1.2.3:5432"} {
		c, err := w.dial(to)
		if err != nil {
			t.Fatalf("%s: %v", to, err)
		}
		if got := line(t, c); got != "hello from "+to+"\n" {
			t.Errorf("%s says %q", to, got)
		}
		c.Close()
	}
	before := len(w.visits())
	addr, _ := w.lookup(t, "udp", "name.example")
	for _, to := range []string{
		"203.0.113.9:80", "203.0.114.9:5432", "10.2.0.1:5432", "169.254.169.254:80", "127.0.0.1:5432", "8.8.8.8:53",
		addr.String() + ":5432", "198.18.99.99:80", "100.64.0.1:22", "203.0.113.77:5432", "10.9.9.9:80",
	} {
		c, err := w.dial(to)
		wantRefused(t, c, err, to)
	}
	if v := w.visits(); len(v) != before {
		t.Errorf("arrived on the far side: %v", v[before:])
	}
	for _, want := range []Destination{
		{Host: "203.0.113.9", Port: 80, Rule: ruleNone},
		{Host: "169.254.169.254", Port: 80, Rule: "metadata"},
		{Host: "10.2.0.1", Port: 5432, Rule: "private"},
		{Host: "name.example", Port: 5432, Rule: ruleNone},
		{Host: "203.0.113.77", Port: 5432, Rule: "local"},
		{Host: "10.9.9.9", Port: 80, Rule: "private"},
	} {
		if d := denied(t, w, want.Host, want.Port, "tcp"); d.Count < 1 || d.Rule != want.Rule && want.Host != "10.9.9.9" {
			t.Errorf("counted %+v, want %+v", d, want)
		}
	}
}

func TestSecondWitness(t *testing.T) {
	w := newWorld(t, policy(t, "web.example", ""))
	w.dns.set("web.example", "203.0.113.1")
	got := make(chan []byte, 10)
	w.listen(t, 80, httpServer)
	w.listen(t, 443, func(c net.Conn) {
		b := make([]byte, 4096)
		n, _ := c.Read(b)
		got <- b[:n]
		c.Write([]byte("server\n"))
	})
	hello := helloFor(t, "web.example")
	c, err := w.dialName(t, "web.example", 443)
	if err != nil {
		t.Fatal(err)
	}
	for part := range bytes.Lines(hello[:20]) { // slowly
		c.Write(part)
	}
	c.Write(hello[20:])
	if b := <-got; !bytes.Equal(b, hello) {
		t.Errorf("the server got %d bytes, want the hello of %d", len(b), len(hello))
	}
	line(t, c)
	c.Close()
	for what, b := range map[string][]byte{"another name": helloFor(t, "evil.example"), "no name": helloFor(t, "203.0.113.1")} {
		c, err := w.dialName(t, "web.example", 443)
		if err != nil {
			t.Fatal(err)
		}
		c.Write(b)
		wantReset(t, c, "TLS with "+what)
		c.Close()
		if b := <-got; len(b) != 0 {
			t.Errorf("TLS with %s: the server got %d bytes", what, len(b))
		}
	}
	for host, ok := range map[string]bool{"web.example": true, "WEB.example:80": true, "evil.example": false} {
		c, err := w.dialName(t, "web.example", 80)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		if ok {
			b, err := io.ReadAll(c)
			if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
				t.Errorf("Host %s: %q, %v", host, b, err)
			}
		} else {
			wantReset(t, c, "Host "+host)
		}
		c.Close()
	}
	if d := denied(t, w, "web.example", 80, "tcp"); d.Rule != ruleWitness {
		t.Errorf("counted %+v", d)
	}
	// the same on a tunnel
	c, err = w.dial("100.64.0.1:3128")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "CONNECT web.example:443 HTTP/1.1\r\nHost: web.example:443\r\n\r\n%s", helloFor(t, "evil.example"))
	io.ReadAll(c)
	if b := <-got; len(b) != 0 {
		t.Errorf("the server got %d bytes through a tunnel", len(b))
	}
}

func TestUpdateNarrows(t *testing.T) {
	wide := policy(t, "a.example:22,b.example:22", "203.0.113.50/32:22")
	w := newWorld(t, wide)
	w.dns.set("a.example", "203.0.113.1")
	w.dns.set("b.example", "203.0.113.2")
	w.listen(t, 22, banner)
	conns := map[string]net.Conn{}
	for _, name := range []string{"a.example", "b.example"} {
		c, err := w.dialName(t, name, 22)
		if err != nil {
			t.Fatal(err)
		}
		line(t, c)
		conns[name] = c
	}
	c, err := w.dial("203.0.113.50:22")
	if err != nil {
		t.Fatal(err)
	}
	line(t, c)
	if err := w.Update(policy(t, "a.example:22", "")); err != nil {
		t.Fatal(err)
	}
	wantReset(t, conns["b.example"], "a name no longer allowed")
	wantReset(t, c, "an address no longer allowed")
	fmt.Fprint(conns["a.example"], "still here\n")
	if got := line(t, conns["a.example"]); got != "echo still here\n" {
		t.Errorf("the one still allowed says %q", got)
	}
	if _, rcode := w.lookup(t, "udp", "b.example"); rcode != dnsmessage.RCodeNameError {
		t.Errorf("b.example: %v", rcode)
	}
	if err := w.Update(wide); err != nil {
		t.Fatal(err)
	}
	again, err := w.dialName(t, "b.example", 22)
	if err != nil {
		t.Fatal(err)
	}
	line(t, again)
	if err := w.Update(Policy{Names: []NameRule{{"BAD", nil}}}); err == nil {
		t.Error("a bad policy was accepted")
	}
	if err := w.Update(Policy{}); err != nil {
		t.Fatal(err)
	}
	wantReset(t, again, "with no policy at all")
	wantReset(t, conns["a.example"], "with no policy at all")
}

// TestUpdateWhileConnecting changes the policy all the time under clients: after an
// Update that forbids, nothing is left open.
func TestUpdateWhileConnecting(t *testing.T) {
	open := policy(t, "a.example:22", "")
	w := newWorld(t, open)
	w.dns.set("a.example", "203.0.113.1")
	w.listen(t, 22, banner)
	addr, _ := w.lookup(t, "udp", "a.example")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if c, err := w.dial(addr.String() + ":22"); err == nil {
					io.CopyN(io.Discard, c, 5)
					c.Close()
				}
			}
		})
	}
	for i := range 100 {
		p := open
		if i%2 == 1 {
			p = Policy{}
		}
		if err := w.Update(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Update(Policy{}); err != nil {
		t.Fatal(err)
	}
	close(stop)
	wg.Wait()
	expect(t, "nothing is open", func() bool { st, _ := w.Stats(); return st.Open == 0 })
}

func TestUDP(t *testing.T) {
	w := newWorld(t, policy(t, "", "203.0.113.0/24:53/udp,203.0.113.0/24:9999/udp"))
	w.echoUDP(t, "203.0.113.9:9999")
	w.echoUDP(t, "203.0.113.9:1000")
	for range 3 { // flows of their own to one destination
		c, err := w.dialIn(t.Context(), w.gateway.Sandbox(), &net.Dialer{}, "udp", "203.0.113.9:9999")
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(5 * time.Second))
		buf := make([]byte, 100)
		for i := range 5 {
			fmt.Fprintf(c, "ping %d", i)
			n, err := c.Read(buf)
			if want := fmt.Sprintf("re: ping %d", i); err != nil || string(buf[:n]) != want {
				t.Fatalf("got %q, %v; want %q", buf[:n], err, want)
			}
		}
		c.Close()
	}
	c, err := w.dialIn(t.Context(), w.gateway.Sandbox(), &net.Dialer{}, "udp", "203.0.113.9:1000")
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(5 * time.Second))
	c.Write([]byte("x"))
	if _, err := c.Read(make([]byte, 10)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a denied port: %v, want a refusal", err)
	}
	if d := allowed(t, w, "203.0.113.9", 9999); d.Count != 3 || d.TxBytes != 15*6 || d.RxBytes != 15*10 || d.Proto != "udp" {
		t.Errorf("counted %+v", d)
	}
	if d := denied(t, w, "203.0.113.9", 1000, "udp"); d.Count != 1 {
		t.Errorf("counted %+v", d)
	}
	if n := len(w.visits()); n != 15 {
		t.Errorf("%d datagrams arrived, want 15", n)
	}
}

// TestManyFlows has a program use a new port for each of its questions, with far
// more questions than flows may be open.
func TestManyFlows(t *testing.T) {
	p := policy(t, "", "203.0.113.0/24:9999/udp")
	p.Limits.Connections = 5
	w := newWorld(t, p)
	w.echoUDP(t, "203.0.113.9:9999")
	for i := range 400 {
		c, err := w.dialIn(t.Context(), w.gateway.Sandbox(), &net.Dialer{}, "udp", "203.0.113.9:9999")
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(5 * time.Second))
		c.Write([]byte("x"))
		if _, err := c.Read(make([]byte, 10)); err != nil {
			t.Fatalf("question %d: %v", i, err)
		}
		c.Close()
	}
	expect(t, "at most 5 flows are open", func() bool { st, _ := w.Stats(); return st.Open <= 5 })
}

func TestInternetMode(t *testing.T) {
	w := newWorld(t, Policy{Internet: true})
	w.dns.set("any.example", "203.0.113.1")
	w.dns.set("inside.example", "10.0.0.1")
	w.listen(t, 4321, banner)
	c, err := w.dialName(t, "any.example", 4321)
	if err != nil {
		t.Fatal(err)
	}
	if got := line(t, c); got != "hello from 203.0.113.1:4321\n" {
		t.Errorf("any.example says %q", got)
	}
	c.Close()
	if c, err = w.dial("198.51.100.1:4321"); err != nil {
		t.Fatal(err)
	}
	if got := line(t, c); got != "hello from 198.51.100.1:4321\n" {
		t.Errorf("198.51.100.1 says %q", got)
	}
	c.Close()
	for _, name := range []string{"inside.example", "missing.example"} {
		if _, rcode := w.lookup(t, "udp", name); rcode != dnsmessage.RCodeNameError {
			t.Errorf("%s: %v", name, rcode)
		}
	}
	before := len(w.visits())
	for _, to := range []string{"10.0.0.1:4321", "169.254.169.254:4321", "203.0.113.77:4321", "192.168.0.1:4321", "127.0.0.1:4321"} {
		c, err := w.dial(to)
		wantRefused(t, c, err, to)
	}
	if v := w.visits(); len(v) != before {
		t.Errorf("arrived: %v", v[before:])
	}
	u, err := w.dialIn(t.Context(), w.gateway.Sandbox(), &net.Dialer{}, "udp", "198.51.100.1:123")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	var p net.PacketConn
	w.in(t, w.internet, func() (err error) { p, err = net.ListenPacket("udp4", "198.51.100.1:123"); return err })
	defer p.Close()
	u.Write([]byte("time?"))
	p.SetReadDeadline(time.Now().Add(5 * time.Second))
	buf := make([]byte, 10)
	if n, _, err := p.ReadFrom(buf); err != nil || string(buf[:n]) != "time?" {
		t.Errorf("udp: %q, %v", buf[:n], err)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	before := runtime.NumGoroutine()
	w := newWorld(t, policy(t, "a.example:22", "203.0.113.0/24:22"))
	w.dns.set("a.example", "203.0.113.1")
	w.listen(t, 22, banner)
	var conns []net.Conn
	for range 20 {
		c, err := w.dialName(t, "a.example", 22)
		if err != nil {
			t.Fatal(err)
		}
		line(t, c)
		conns = append(conns, c)
	}
	slow, err := w.dial("100.64.0.1:3128") // a client that says nothing
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("Close took %v", took)
	}
	for _, c := range conns {
		wantReset(t, c, "after Close")
	}
	slow.Close()
	if _, err := w.dial("203.0.113.1:22"); err == nil {
		t.Error("a connection after Close")
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	// what the test itself runs: the far side's servers and their connections
	expect(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+2+2+20 })
}

func TestEveryDecisionIsReported(t *testing.T) {
	w := newWorld(t, policy(t, "a.example:22", ""))
	w.dns.set("a.example", "203.0.113.1")
	w.listen(t, 22, banner)
	c, err := w.dialName(t, "a.example", 22)
	if err != nil {
		t.Fatal(err)
	}
	line(t, c)
	w.lookup(t, "udp", "evil.example")
	for range 3 {
		w.dial("203.0.113.9:443")
	}
	w.Stats()
	var got []string
	for _, d := range w.seen.all() {
		got = append(got, fmt.Sprintf("%v %s %s %v %d %s %s %d", d.Allowed, d.Route, d.Host, d.Addr, d.Port, d.Proto, d.Rule, d.Count))
	}
	want := []string{
		"true transparent a.example 203.0.113.1 22 tcp allow a.example 1",
		"false dns evil.example invalid IP 53 dns not-allowed 1",
		"false kernel  203.0.113.9 443 tcp not-allowed 3",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("reported\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestDeniedDatagramsAreRefused sends to what the kernel's rules let through and the
// policy does not: the program must not wait for an answer.
func TestDeniedDatagramsAreRefused(t *testing.T) {
	p := Policy{Internet: true}
	w := newWorld(t, p)
	for _, to := range []string{"203.0.113.77:5000", "198.18.200.200:5000", "203.0.113.9:4999"} { // the host; no name; nobody listens
		c, err := w.dialIn(t.Context(), w.gateway.Sandbox(), &net.Dialer{}, "udp", to)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(5 * time.Second))
		c.Write([]byte("hello"))
		if _, err := c.Read(make([]byte, 10)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("a datagram to %s: %v, want a refusal", to, err)
		}
		c.Close()
	}
}
