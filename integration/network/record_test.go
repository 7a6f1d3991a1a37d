package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/integration/testenv"
)

func deniedOf(r engine.Result, host string, port uint16, proto string) (engine.Denied, bool) {
	i := slices.IndexFunc(r.Network.Denied, func(d engine.Denied) bool { return d.Host == host && d.Port == port && d.Proto == proto })
	if i < 0 {
		return engine.Denied{}, false
	}
	return r.Network.Denied[i], true
}

func allowedOf(r engine.Result, host string, port uint16) (engine.Allowed, bool) {
	i := slices.IndexFunc(r.Network.Allowed, func(a engine.Allowed) bool { return a.Host == host && a.Port == port })
	if i < 0 {
		return engine.Allowed{}, false
	}
	return r.Network.Allowed[i], true
}

// TestRecord proves that the result and the record of decisions say what happened, with
// counts, and that whoever is denied is told what to ask for.
func TestRecord(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		b := newBed(t)
		s := b.start(runtime, "--allow", "ssh.test:22", "--allow", "private.test:80", "--allow", "meta.test:80", "--allow-cidr", "203.0.113.130/32:5432")
		for range 3 {
			if f := s.want("tcp ssh.test:22", "ok"); f.Text != "SSH-2.0-far 203.0.113.11" {
				t.Errorf("%v, want the server's greeting", f)
			}
			s.want("tcp 203.0.113.130:5432", "ok")
			s.want("tcp 8.8.8.8:443", "refused")
			s.want("udp 8.8.8.8:53", "refused")
			s.want("name denied.test", "nxdomain")
			s.want("tcp private.test:80", "reset")
			s.want("tcp meta.test:80", "reset")
		}
		f := s.ask("connect denied.test:443")
		for _, words := range []string{"egress policy", "not-allowed", "--allow denied.test:443", "Do not retry"} {
			if f.Got != "http 403" || !strings.Contains(f.Text, words) {
				t.Errorf("%v, want a 403 that says %q", f, words)
			}
		}
		if f := s.want("http http://169.254.169.254/latest/meta-data/", "http 403"); !strings.Contains(f.Text, "No setting opens it") {
			t.Errorf("%v, want it to say that nothing opens it", f)
		}
		s.want("socks denied.test:443", "socks 2")
		r := s.end()
		for _, want := range []engine.Denied{
			{Host: "8.8.8.8", Port: 443, Proto: "tcp", Rule: "not-allowed", Count: 3},
			{Host: "8.8.8.8", Port: 53, Proto: "udp", Rule: "not-allowed", Count: 3},
			{Host: "denied.test", Port: 443, Proto: "tcp", Rule: "not-allowed", Count: 2},
			{Host: "private.test", Port: 80, Proto: "tcp", Rule: "private", Count: 3},
			{Host: "meta.test", Port: 80, Proto: "tcp", Rule: "metadata", Count: 3},
			{Host: "169.254.169.254", Port: 80, Proto: "tcp", Rule: "metadata", Count: 1},
		} {
			if got, _ := deniedOf(r, want.Host, want.Port, want.Proto); got != want {
				t.Errorf("denied = %+v, want %+v", got, want)
			}
		}
		if got, ok := deniedOf(r, "denied.test", 53, "dns"); !ok || got.Count < 3 {
			t.Errorf("denied look-ups = %+v, want three at least", got)
		}
		for host, port := range map[string]uint16{"ssh.test": 22, "203.0.113.130": 5432} {
			a, _ := allowedOf(r, host, port)
			if a.Count != 3 || a.TxBytes != 3*6 || a.RxBytes < 3*10 {
				t.Errorf("allowed = %+v, want 3 connections to %s with what they said", a, host)
			}
		}
		checkAudit(t, s, r)
		b.world.noLeaks(func(p packet) bool {
			return p.dst == netip.MustParseAddr("203.0.113.11") && p.port == 22 || p.dst == netip.MustParseAddr("203.0.113.130") && p.port == 5432
		})
	})
}

// checkAudit adds the decisions on record up, and compares them with the result.
func checkAudit(t *testing.T, s *session, r engine.Result) {
	t.Helper()
	key := func(allowed bool, host any, port, proto, rule any) string {
		return fmt.Sprint(allowed, host, port, proto, rule)
	}
	sums := map[string]int64{}
	for _, line := range s.audit() {
		host := line["host"]
		if host == "" {
			host = line["addr"]
		}
		allowed, ok := line["allowed"].(bool)
		count, isNumber := line["count"].(float64)
		if !ok || !isNumber || line["time"] == nil || line["route"] == "" {
			t.Errorf("network.log lacks something: %v", line)
			continue
		}
		sums[key(allowed, host, line["port"], line["proto"], line["rule"])] += int64(count)
	}
	want := map[string]int64{}
	for _, d := range r.Network.Denied {
		want[key(false, d.Host, d.Port, d.Proto, d.Rule)] = d.Count
	}
	for _, a := range r.Network.Allowed {
		want[key(true, a.Host, a.Port, a.Proto, a.Rule)] = a.Count
	}
	if fmt.Sprint(sums) != fmt.Sprint(want) {
		t.Errorf("network.log adds up to\n%v\nand the result says\n%v", sums, want)
	}
}

// TestNamesThatMove uses names whose owner points them inside, at once or later.
func TestNamesThatMove(t *testing.T) {
	someRuntimes(t, func(t *testing.T, runtime string) {
		b := newBed(t)
		flags := []string{"--allow", rebinding + ":5432"}
		var inside []string
		for name, addrs := range records {
			if !slices.ContainsFunc(addrs, func(a string) bool { return public(netip.MustParseAddr(a)) }) && name != webName && name != "other.test" {
				inside = append(inside, name)
				flags = append(flags, "--allow", name+":5432")
			}
		}
		flags = append(flags, "--allow", "mixed.test:5432")
		s := b.start(runtime, flags...)
		for _, name := range inside {
			s.want("name "+name, "ok") // it says nothing about where it leads
			if f := s.ask("tcp " + name + ":5432"); f.Got == "ok" || f.Got == "timeout" {
				t.Errorf("%v, want a refusal", f)
			}
			s.want("connect "+name+":5432", "http 403")
		}
		s.want("tcp mixed.test:5432", "ok") // by its public address
		s.want("tcp "+rebinding+":5432", "ok")
		testenv.WaitFor(t, testenv.Patience, rebinding+" to be looked up anew", func() bool {
			return s.ask("tcp "+rebinding+":5432").Got != "ok"
		})
		s.want("connect "+rebinding+":5432", "http 403")
		r := s.end()
		if d, _ := deniedOf(r, rebinding, 5432, "tcp"); d.Rule != "private" {
			t.Errorf("denied = %+v, want it for its private address", d)
		}
		b.world.noLeaks(func(p packet) bool {
			return p.port == 5432 && (p.dst.String() == "203.0.113.12" || p.dst.String() == "203.0.113.13")
		})
	})
}

// TestNothingLeaksThroughNames asks for names that carry words out, in every way: none
// is ever asked upstream.
func TestNothingLeaksThroughNames(t *testing.T) {
	someRuntimes(t, func(t *testing.T, runtime string) {
		b := newBed(t)
		var lines []string
		names := 40
		if testenv.InVM() {
			names = 6
		}
		for i := range names {
			secret := fmt.Sprintf("c2VjcmV0%d", i)
			for _, tail := range []string{"attacker.test", "ok.test", "ok.test.attacker.test", "denied.test", "test"} {
				lines = append(lines, "name "+secret+"."+tail, "tcp "+secret+"."+tail+":443", "connect "+secret+"."+tail+":443",
					"socks "+secret+"."+tail+":443", "http http://"+secret+"."+tail+"/")
			}
		}
		lines = append(lines, "udp 203.0.113.53:53", "tcp 203.0.113.53:53", "udp 8.8.8.8:53", "tcp 8.8.8.8:53")
		found, _ := b.probe(runtime, []string{"--allow", "ok.test:443"}, lines)
		for line, f := range found {
			if f.Got == "ok" || f.Got == "timeout" {
				t.Errorf("%s: %v, want a refusal", line, f)
			}
		}
		if asked := b.world.dns.queries(); len(asked) > 0 {
			t.Errorf("upstream was asked for %q", asked)
		}
		b.world.noLeaks(func(packet) bool { return false })
		if n := b.world.sniffer.count(53); n > 0 {
			t.Errorf("%d packets went to a resolver", n)
		}
	})
}

// TestOrdinaryProgramsSendNoFrames proves that a program gets none of the sockets by
// which frames could be made.
func TestOrdinaryProgramsSendNoFrames(t *testing.T) {
	someRuntimes(t, func(t *testing.T, runtime string) {
		b := newBed(t)
		s := b.start(runtime, "--network", "internet")
		for _, kind := range []string{"packet", "icmp", "raw"} {
			if f := s.ask("raw " + kind); f.Got == "ok" {
				t.Errorf("%v, want it to be forbidden", f)
			}
		}
		s.end()
	})
}
