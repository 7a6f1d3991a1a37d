package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/integration/testenv"
	"github.com/direct-oci/engine/netns/egress"
)

// places are addresses to try. public is what everybody may reach who may reach
// everything public.
var places = []struct {
	addr   string
	public bool
}{
	{"203.0.113.10", true},
	{"203.0.113.11", true},
	{"203.0.113.66", true},
	{"203.0.113.130", true},
	{"203.0.113.254", true},
	{"203.0.113.12", true},
	{"198.51.100.6", true},
	{"198.51.100.7", true},
	{"8.8.8.8", true},
	{"1.1.1.1", true},
	{"192.0.2.7", true},
	{"223.255.255.1", true},
	{"203.0.113.1", false},
	{"10.9.9.9", false}, // the host
	{"100.64.0.1", false},
	{"100.64.0.2", false},
	{"100.64.0.3", false},
	{"198.18.200.200", false},
	{"198.19.255.1", false},
	{"169.254.169.254", false},
	{"169.254.170.2", false},
	{"169.254.170.23", false},
	{"169.254.169.253", false},
	{"169.254.169.123", false},
	{"169.254.0.23", false},
	{"169.254.42.42", false},
	{"168.63.129.16", false},
	{"100.100.100.200", false},
	{"192.0.0.192", false},
	{"169.254.1.1", false},
	{"10.0.0.1", false},
	{"10.1.2.3", false},
	{"10.7.0.9", false},
	{"10.255.255.255", false},
	{"172.16.0.1", false},
	{"172.17.0.1", false},
	{"172.31.255.254", false},
	{"192.168.0.1", false},
	{"192.168.255.1", false},
	{"100.64.1.1", false},
	{"100.127.255.254", false},
	{"192.0.0.8", false},
	{"192.88.99.1", false},
	{"127.0.0.1", false},
	{"127.0.0.53", false},
	{"0.0.0.0", false},
	{"0.1.2.3", false},
	{"240.0.0.1", false},
	{"224.0.0.1", false},
	{"239.255.255.250", false},
	{"255.255.255.255", false},
	{"::1", false},
	{"fe80::1", false},
	{"fd00::1", false},
	{"fd00:ec2::254", false},
	{"2001:db8::9", true},
	{"2001:db8:1::1", false},
	{"::ffff:10.1.2.3", false},
	{"::ffff:169.254.169.254", false},
	{"64:ff9b::a01:203", false},
	{"64:ff9b::a9fe:a9fe", false},
	{"2002:a01:203::1", false},
	{"ff02::1", false},
	{"::", false},
}

// policyOf is one policy: its flags, and by other means than the engine's what it lets
// through.
type policyOf struct {
	name   string
	flags  []string
	passes func(proto string, addr netip.Addr, port uint16) bool
	names  []string // whose ports are 80 and 443
}

func within(cidr string, addr netip.Addr) bool { return netip.MustParsePrefix(cidr).Contains(addr) }

func public(addr netip.Addr) bool {
	for _, p := range places {
		if netip.MustParseAddr(p.addr) == addr {
			return p.public
		}
	}
	return false
}

func nothing(string, netip.Addr, uint16) bool { return false }

func ranges(proto string, addr netip.Addr, port uint16) bool {
	return proto == "tcp" && within("203.0.113.128/25", addr) && port == 5432 ||
		proto == "udp" && within("198.51.100.0/24", addr) && port == 53 ||
		proto == "tcp" && within("10.7.0.0/16", addr) && port == 8080 ||
		proto == "tcp" && within("2001:db8::/64", addr) && port == 443
}

var rangeFlags = []string{
	"--allow-cidr", "203.0.113.128/25:5432", "--allow-cidr", "198.51.100.0/24:53/udp", "--allow-cidr", "10.7.0.0/16:8080",
	"--allow-cidr", "[2001:db8::/64]:443",
}

var nameFlags = []string{"--allow", "ok.test", "--allow", "*.wild.test"}

var policies = []policyOf{
	{"none", nil, nothing, nil},
	{"names", nameFlags, nothing, []string{"ok.test", "a.wild.test", "b.a.wild.test"}},
	{"cidr", rangeFlags, ranges, nil},
	{"names and cidr", slices.Concat(nameFlags, rangeFlags), ranges, []string{"ok.test", "a.wild.test", "b.a.wild.test"}},
	{"everything public", []string{"--network", "internet"}, func(_ string, addr netip.Addr, _ uint16) bool { return public(addr) }, []string{
		"ok.test", "ssh.test", "denied.test", "wild.test", "a.wild.test", "b.a.wild.test", "mixed.test", "six.test",
	}},
	{"everything public, and a range", append([]string{"--network", "internet"}, rangeFlags...), func(proto string, addr netip.Addr, port uint16) bool {
		return public(addr) || ranges(proto, addr, port)
	}, []string{"ok.test", "ssh.test", "denied.test", "wild.test", "a.wild.test", "b.a.wild.test", "mixed.test", "six.test"}},
}

// probeLine is one thing to try, and whether it must work.
type probeLine struct {
	text string
	ok   bool
}

func (p policyOf) lines(few bool) []probeLine {
	var list []probeLine
	add := func(ok bool, format string, args ...any) {
		list = append(list, probeLine{fmt.Sprintf(format, args...), ok})
	}
	tried := ports
	if few {
		tried = []uint16{22, 53, 443, 5432, 8080}
	}
	for _, place := range places {
		addr := netip.MustParseAddr(place.addr)
		for _, port := range tried {
			own := addr.String() == "100.64.0.1" && (port == 53 || port == 3128) // the gateway's services
			v4 := addr.Unmap().Is4()
			target := netip.AddrPortFrom(addr, port)
			if groupAddress(target.String()) && port != 53 {
				continue // nobody answers, which takes long to see
			}
			if !own {
				add(v4 && !addr.Is4In6() && p.passes("tcp", addr, port), "tcp %s", target)
				add(v4 && !addr.Is4In6() && p.passes("udp", addr, port), "udp %s", target)
			}
			if p.flags == nil || port != 443 && port != 8080 && port != 5432 {
				continue
			}
			add(p.passes("tcp", addr, port), "connect %s", target)
			add(p.passes("tcp", addr, port), "socks %s", target)
		}
	}
	for name := range records {
		if name == webName || name == "other.test" {
			continue // speak when they are spoken to in their own language
		}
		allowed := slices.Contains(p.names, name)
		add(allowed, "name %s", name)
		for _, port := range []uint16{22, 443} {
			add(allowed && (port == 443 || slices.Contains(p.flags, "internet")), "tcp %s:%d", name, port)
			if p.flags != nil {
				add(allowed && (port == 443 || slices.Contains(p.flags, "internet")), "connect %s:%d", name, port)
			}
		}
	}
	return list
}

const webName = "web.test"

// TestTuples tries more than a thousand destinations under each policy and runtime:
// what is allowed answers, what is not is refused at once, and no packet of it is seen
// outside.
func TestTuples(t *testing.T) {
	total := 0
	eachRuntime(t, func(t *testing.T, runtime string) {
		for _, p := range policies {
			sampled := p.name == "names and cidr" || p.name == "everything public" && !testenv.InVM() || p.name == "everything public, and a range" && runtime == "embedded"
			if !everything() && !sampled {
				continue
			}
			t.Run(p.name, func(t *testing.T) { total += tryTuples(t, runtime, p) })
		}
	})
	t.Logf("%d tuples", total)
}

func tryTuples(t *testing.T, runtime string, p policyOf) int {
	b := newBed(t)
	lines := p.lines(!everything() && (runtime == "runsc" || testenv.InVM()))
	var texts []string
	for _, l := range lines {
		texts = append(texts, l.text)
	}
	found, r := b.probe(runtime, p.flags, texts)
	wrong := 0
	for _, l := range lines {
		f := found[l.text]
		if complaint := judge(l, f); complaint != "" {
			if wrong++; wrong <= 20 {
				t.Errorf("%v: %s", f, complaint)
			}
		}
	}
	if wrong > 20 {
		t.Errorf("%d of %d tuples in all", wrong, len(lines))
	}
	b.world.noLeaks(func(seen packet) bool {
		if p.passes(seen.proto, seen.dst, seen.port) {
			return true
		}
		return seen.proto == "tcp" && slices.ContainsFunc(p.names, func(name string) bool {
			return slices.Contains(records[name], seen.dst.String()) && public(seen.dst) && (seen.port == 80 || seen.port == 443)
		})
	})
	for _, q := range b.world.dns.queries() {
		if _, isOurs := records[q]; !isOurs || !slices.Contains(p.flags, "internet") && !slices.Contains(p.names, q) {
			t.Errorf("%q was asked upstream", q)
		}
	}
	checkCounts(t, r)
	t.Logf("%d tuples", len(lines))
	return len(lines)
}

// judge says what is wrong with a finding.
func judge(l probeLine, f finding) string {
	kind, target, _ := strings.Cut(l.text, " ")
	switch {
	case l.ok && f.Got != "ok":
		return "want ok"
	case l.ok:
		return ""
	case f.Got == "ok":
		return "want a refusal"
	case f.Got == "timeout" && !groupAddress(target):
		return "hangs"
	case f.Ms > 1000 && !testenv.InVM() && !groupAddress(target):
		return "want the refusal within a second"
	case kind == "name" && f.Got != "nxdomain" && f.Got != "refused":
		return "want nxdomain"
	case kind == "connect" && !slices.Contains([]string{"http 403", "http 400", "http 502", "refused"}, f.Got):
		return "want 403 or 400"
	}
	return ""
}

// groupAddress tells addresses of which nobody can be told that they are refused.
func groupAddress(target string) bool {
	a, err := netip.ParseAddrPort(target)
	const broadcast = "100.64.0.3" // of the sandbox's own link
	return err == nil && (a.Addr().String() == broadcast || a.Addr().IsMulticast() || within("240.0.0.0/4", a.Addr()) || within("0.0.0.0/8", a.Addr()))
}

// checkCounts wants in a result what follows from its policy alone.
func checkCounts(t *testing.T, r engine.Result) {
	t.Helper()
	rx, tx := r.Actuals.RxBytes, r.Actuals.TxBytes
	if rx == nil || tx == nil {
		t.Fatalf("bytes are unknown: %s", why(r))
	}
	if r.Network.Mode == "none" {
		if *rx != 0 || *tx != 0 || len(r.Network.Denied)+len(r.Network.Allowed) > 0 {
			t.Errorf("a run without a network has %d and %d bytes and %+v", *rx, *tx, r.Network)
		}
		return
	}
	var payloadRx, payloadTx int64
	for _, a := range r.Network.Allowed {
		payloadRx, payloadTx = payloadRx+a.RxBytes, payloadTx+a.TxBytes
		if !strings.HasPrefix(a.Rule, "allow") && a.Rule != "internet" {
			t.Errorf("allowed by rule %q: %+v", a.Rule, a)
		}
	}
	if *rx < payloadRx || *tx < payloadTx || payloadRx == 0 || payloadTx == 0 {
		t.Errorf("counted %d and %d bytes at the gateway, and %d and %d of payload", *rx, *tx, payloadRx, payloadTx)
	}
	if len(r.Network.Denied) == 0 {
		t.Error("nothing is on record as denied")
	}
	for _, d := range r.Network.Denied {
		if d.Count < 1 || d.Rule == "" && d.Host != egress.Others {
			t.Errorf("denied without a count or a rule: %+v", d)
		}
	}
}
