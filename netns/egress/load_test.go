package egress

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// TestSlowClientsOfTheProxy has clients that send a byte now and then: the time to
// ask is a whole, not one for each byte.
func TestSlowClientsOfTheProxy(t *testing.T) {
	p := policy(t, "web.example", "")
	p.Limits.Idle = 300 * time.Millisecond
	w := newWorld(t, p)
	for what, first := range map[string]string{"HTTP": "CONNECT web.example:443 HTTP/1.1\r\nX: ", "SOCKS": "\x05\xff", "nothing": ""} {
		c, err := w.dial("100.64.0.1:3128")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		io.WriteString(c, first)
		for err == nil && time.Since(began) < 5*time.Second {
			<-time.After(50 * time.Millisecond)
			_, err = c.Write([]byte("a"))
		}
		if err == nil {
			t.Errorf("%s: still connected after 5 s", what)
		}
		c.Close()
	}
	expect(t, "all sessions end", func() bool { st, _ := w.Stats(); return st.Open == 0 })
}

// TestFloods sends far more than the limits, and wants the server to work and to be
// no larger afterwards.
func TestFloods(t *testing.T) {
	p := policy(t, "ssh.example:22", "203.0.113.0/24:22,203.0.113.0/24:9/udp")
	w := newWorld(t, p)
	w.dns.set("ssh.example", "203.0.113.1")
	w.listen(t, 22, banner)
	before := runtime.NumGoroutine()
	most := 0
	for i := range 2000 {
		address := fmt.Sprintf("203.0.113.%d:22", i%250+1)
		if i%3 == 0 {
			address = "100.64.0.1:3128"
		}
		if c, err := w.dial(address); err == nil {
			c.Close()
		}
		most = max(most, runtime.NumGoroutine()-before)
	}
	if limit := 5*defaultConnections + 100; most > limit {
		t.Errorf("%d goroutines for one flood, want at most %d", most, limit)
	}
	u, err := w.dialIn(context.Background(), w.gateway.Sandbox(), &net.Dialer{}, "udp", "203.0.113.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for range 20_000 {
		u.Write(make([]byte, 1000))
	}
	expect(t, "the bucket fills", func() bool {
		c, err := w.dialName(t, "ssh.example", 22)
		if err != nil {
			return false
		}
		defer c.Close()
		n, _ := c.Read(make([]byte, 10))
		return n > 0
	})
	st, err := w.Stats()
	if err != nil || len(st.Denied) > maxDestinations+2 {
		t.Errorf("%d denied destinations, %v", len(st.Denied), err)
	}
}

// TestDNSKeepsUp sends look-ups as fast as a program that waits for a few at a time.
func TestDNSKeepsUp(t *testing.T) {
	w := newWorld(t, policy(t, "ssh.example:22", ""))
	c, err := w.dialIn(t.Context(), w.gateway.Sandbox(), &net.Dialer{}, "udp", "100.64.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	msgs := [][]byte{ask(t, "ssh.example.", dnsmessage.TypeA, true), ask(t, "ssh.example.", dnsmessage.TypeAAAA, true), ask(t, "evil.example.", dnsmessage.TypeA, true)}
	began, buf := time.Now(), make([]byte, 1500)
	for i := range 4000 {
		c.Write(msgs[i%len(msgs)])
		if i >= 16 {
			if _, err := c.Read(buf); err != nil {
				t.Fatalf("after %d look-ups in %v: %v", i, time.Since(began), err)
			}
		}
	}
}

func TestLedgerIsBounded(t *testing.T) {
	var seen decisions
	l := newLedger(&seen)
	for i := range 3 * maxReported {
		a := netip.AddrFrom4([4]byte{8, byte(i >> 16), byte(i >> 8), byte(i)})
		l.record(target{addr: a, port: 80, proto: "tcp"}.decision(ruleNone, ""))
	}
	st := l.stats()
	var sum int64
	for _, d := range st.Denied {
		sum += d.Count
	}
	last := st.Denied[len(st.Denied)-1]
	if len(st.Denied) != maxDestinations+1 || sum != 3*maxReported || last.Host != Others {
		t.Errorf("%d destinations, %d counted, last %+v", len(st.Denied), sum, last)
	}
	if n := len(seen.all()); n != maxReported {
		t.Errorf("%d reported, want %d", n, maxReported)
	}
}
