package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/direct-oci/engine/netns"
	"golang.org/x/net/dns/dnsmessage"
)

// quietGateway is a gateway of sockets on the loopback device, for tests that send
// nothing through it.
type quietGateway struct{}

func (quietGateway) Listen(network, _ string) (net.Listener, error) {
	return net.Listen(network, "127.0.0.1:0")
}

func (quietGateway) ListenPacket(network, _ string) (net.PacketConn, error) {
	return net.ListenPacket(network, "127.0.0.1:0")
}
func (quietGateway) SetPolicy(netns.Policy) error             { return nil }
func (quietGateway) Refused() ([]netns.Refused, error)        { return nil, nil }
func (quietGateway) RefuseDatagram(_, _ netip.AddrPort) error { return nil }

// decisions is a Sink that remembers.
type decisions struct {
	mu   sync.Mutex
	list []Decision
}

func (d *decisions) Decision(x Decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, x)
}

func (d *decisions) all() []Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Decision(nil), d.list...)
}

func noHostAddrs() ([]netip.Addr, error) { return nil, nil }

func serve(t testing.TB, c Config) *Server {
	t.Helper()
	if c.Gateway == nil {
		c.Gateway = quietGateway{}
	}
	if c.HostAddrs == nil {
		c.HostAddrs = noHostAddrs
	}
	s, err := Serve(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func ask(t testing.TB, name string, kind dnsmessage.Type, edns bool) []byte {
	t.Helper()
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7, RecursionDesired: true})
	n, err := dnsmessage.NewName(name)
	if err != nil {
		t.Fatal(err)
	}
	b.StartQuestions()
	b.Question(dnsmessage.Question{Name: n, Type: kind, Class: dnsmessage.ClassINET})
	if edns {
		var rh dnsmessage.ResourceHeader
		rh.SetEDNS0(4096, 0, true)
		b.StartAdditionals()
		b.OPTResource(rh, dnsmessage.OPTResource{Options: []dnsmessage.Option{{Code: 10, Data: []byte("12345678")}}})
	}
	msg, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

func parse(t testing.TB, msg []byte) dnsmessage.Message {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(msg); err != nil {
		t.Fatalf("the answer cannot be read: %v", err)
	}
	return m
}

func address(m dnsmessage.Message) netip.Addr {
	for _, r := range m.Answers {
		switch b := r.Body.(type) {
		case *dnsmessage.AResource:
			return netip.AddrFrom4(b.A)
		case *dnsmessage.AAAAResource:
			return netip.AddrFrom16(b.AAAA)
		}
	}
	return netip.Addr{}
}

func TestDNSAnswers(t *testing.T) {
	var upstream atomic.Int64
	s := serve(t, Config{Policy: policy(t, "example.com,*.wild.example", ""), Resolver: func(context.Context, string) ([]netip.Addr, error) {
		upstream.Add(1)
		return nil, errors.New("nobody should ask")
	}})
	const allowed, denied = "allowed", "denied"
	tests := []struct {
		name string
		kind dnsmessage.Type
		want string
	}{
		{"example.com.", dnsmessage.TypeA, "198.18.0.1"},
		{"ExAmPlE.cOm.", dnsmessage.TypeA, "198.18.0.1"},
		{"example.com.", dnsmessage.TypeAAAA, allowed},
		{"example.com.", dnsmessage.TypeTXT, allowed},
		{"example.com.", dnsmessage.TypeALL, allowed},
		{"example.com.", dnsmessage.TypeMX, allowed},
		{"example.com.", 64, allowed},
		{"example.com.", 65, allowed},
		{"a.wild.example.", dnsmessage.TypeA, "198.18.0.2"},
		{"b.a.wild.example.", dnsmessage.TypeA, "198.18.0.3"},
		{"a.wild.example.", dnsmessage.TypeA, "198.18.0.2"},
		{"wild.example.", dnsmessage.TypeA, denied},
		{"evilwild.example.", dnsmessage.TypeA, denied},
		{"x.example.com.", dnsmessage.TypeA, denied},
		{"example.com.evil.net.", dnsmessage.TypeA, denied},
		{"evil.net.", dnsmessage.TypeA, denied},
		{"evil.net.", dnsmessage.TypeTXT, denied},
		{"c2VjcmV0.evil.net.", dnsmessage.TypeA, denied},
		{"1.0.0.127.in-addr.arpa.", dnsmessage.TypePTR, denied},
		{"127.0.0.1.", dnsmessage.TypeA, denied},
		{".", dnsmessage.TypeNS, denied},
		{"localhost.", dnsmessage.TypeA, "127.0.0.1"},
		{"localhost.", dnsmessage.TypeAAAA, "::1"},
		{"db.localhost.", dnsmessage.TypeA, "127.0.0.1"},
	}
	for _, tt := range tests {
		m := parse(t, s.respond(t.Context(), ask(t, tt.name, tt.kind, true)))
		if m.ID != 7 || !m.Response || !m.RecursionDesired || len(m.Questions) != 1 || m.Questions[0].Name.String() != tt.name {
			t.Errorf("%s: header %+v question %v", tt.name, m.Header, m.Questions)
		}
		if len(m.Additionals) != 1 || m.Additionals[0].Header.Type != dnsmessage.TypeOPT {
			t.Errorf("%s: the answer lacks EDNS", tt.name)
		}
		switch tt.want {
		case denied:
			if m.RCode != dnsmessage.RCodeNameError || len(m.Answers) != 0 {
				t.Errorf("%s %v: %v %v, want NXDOMAIN", tt.name, tt.kind, m.RCode, m.Answers)
			}
		case allowed:
			if m.RCode != dnsmessage.RCodeSuccess || len(m.Answers) != 0 {
				t.Errorf("%s %v: %v %v, want an empty answer", tt.name, tt.kind, m.RCode, m.Answers)
			}
		default:
			if got := address(m); m.RCode != dnsmessage.RCodeSuccess || got.String() != tt.want || len(m.Answers) != 1 {
				t.Errorf("%s %v: %v %v, want %s", tt.name, tt.kind, m.RCode, got, tt.want)
			}
		}
	}
	if n := upstream.Load(); n != 0 {
		t.Errorf("%d look-ups went to the host, want none", n)
	}
}

func TestDNSMalformed(t *testing.T) {
	s := serve(t, Config{Policy: policy(t, "example.com", "")})
	good := ask(t, "example.com.", dnsmessage.TypeA, false)
	change := func(at int, b ...byte) []byte {
		m := append([]byte(nil), good...)
		copy(m[at:], b)
		return m
	}
	const drop, formerr, notimp = -1, int(dnsmessage.RCodeFormatError), int(dnsmessage.RCodeNotImplemented)
	tests := []struct {
		name string
		msg  []byte
		want int
	}{
		{"nothing", nil, drop},
		{"half a header", good[:6], drop},
		{"an answer", change(2, 0x81), drop},
		{"another opcode", change(2, 0x29), notimp},
		{"no question", change(4, 0, 0), formerr},
		{"two questions", change(4, 0, 2), formerr},
		{"cut off", good[:len(good)-3], formerr},
		{"answers that are not there", change(6, 0, 9), formerr},
		{"65535 additional records", change(10, 0xff, 0xff), formerr},
		{"a name that points to itself", change(12, 0xc0, 12), formerr},
		{"a label beyond the end", change(12, 63), formerr},
		{"a reserved label", change(12, 0x80), formerr},
		{"a dot within a label", change(12, 11, 'e', '.', 'x'), formerr},
		{"too long", append(good, make([]byte, maxQuery)...), formerr},
	}
	for _, tt := range tests {
		got := s.respond(t.Context(), tt.msg)
		switch {
		case got == nil && tt.want == drop:
		case got == nil || tt.want == drop:
			t.Errorf("%s: answer %v, want code %d", tt.name, got, tt.want)
		default:
			if m := parse(t, got); int(m.RCode) != tt.want || m.ID != 7 {
				t.Errorf("%s: %v, want code %d", tt.name, m.Header, tt.want)
			}
		}
	}
	chaos := ask(t, "version.bind.", dnsmessage.TypeTXT, false)
	chaos[len(chaos)-1] = 3
	if m := parse(t, s.respond(t.Context(), chaos)); m.RCode != dnsmessage.RCodeNameError {
		t.Errorf("class CHAOS: %v", m.RCode)
	}
	version := ask(t, "example.com.", dnsmessage.TypeA, true)
	version[len(version)-17] = 1 // the OPT record's version
	m := parse(t, s.respond(t.Context(), version))
	if rcode := m.Additionals[0].Header.ExtendedRCode(m.RCode); rcode != 16 || len(m.Answers) != 0 {
		t.Errorf("EDNS version 1: code %d %v, want 16 (BADVERS)", rcode, m.Answers)
	}
}

func TestDNSPoolIsBounded(t *testing.T) {
	s := serve(t, Config{Policy: policy(t, "*.wild.example,exact.example", "")})
	seen := map[netip.Addr]string{}
	full := false
	for i := range maxNames + 10 {
		name := strings.Repeat("x", i%50+1) + "." + strings.Repeat("y", i/50%60+1) + "." + strings.Repeat("z", i/3000+1) + ".wild.example."
		m := parse(t, s.respond(t.Context(), ask(t, name, dnsmessage.TypeA, false)))
		if m.RCode == dnsmessage.RCodeNameError {
			full = true
			continue
		}
		a := address(m)
		if other, ok := seen[a]; ok || !netns.Synthetic.Contains(a) {
			t.Fatalf("%s and %s share %v", name, other, a)
		}
		if b := a.As4(); b[3] == 0 || b[3] == 255 {
			t.Fatalf("%s has %v", name, a)
		}
		seen[a] = name
	}
	if !full {
		t.Error("the pool never filled")
	}
	if m := parse(t, s.respond(t.Context(), ask(t, "exact.example.", dnsmessage.TypeA, false))); m.RCode != dnsmessage.RCodeSuccess {
		t.Errorf("a full pool starved an exact name: %v", m.RCode)
	}
}

func TestDNSInternetAsksTheHost(t *testing.T) {
	answers := map[string]string{
		"public.example": "203.0.113.5", "private.example": "10.0.0.1", "meta.example": "169.254.169.254",
		"mixed.example": "10.0.0.1 203.0.113.5", "mapped.example": "::ffff:10.0.0.1", "host.example": "203.0.113.77",
	}
	s := serve(t, Config{
		Policy: Policy{Internet: true},
		Resolver: func(_ context.Context, name string) ([]netip.Addr, error) {
			if name == "broken.example" {
				return nil, &net.DNSError{Err: "server misbehaving", IsTemporary: true}
			}
			list, ok := answers[name]
			if !ok {
				return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
			}
			var addrs []netip.Addr
			for a := range strings.FieldsSeq(list) {
				addrs = append(addrs, netip.MustParseAddr(a))
			}
			return addrs, nil
		},
		HostAddrs: func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("203.0.113.77")}, nil },
	})
	for name, want := range map[string]dnsmessage.RCode{
		"public.example.": dnsmessage.RCodeSuccess, "mixed.example.": dnsmessage.RCodeSuccess,
		"private.example.": dnsmessage.RCodeNameError, "meta.example.": dnsmessage.RCodeNameError,
		"mapped.example.": dnsmessage.RCodeNameError, "host.example.": dnsmessage.RCodeNameError,
		"missing.example.": dnsmessage.RCodeNameError, "broken.example.": dnsmessage.RCodeServerFailure,
	} {
		m := parse(t, s.respond(t.Context(), ask(t, name, dnsmessage.TypeA, false)))
		if m.RCode != want || (want == dnsmessage.RCodeSuccess) != netns.Synthetic.Contains(address(m)) {
			t.Errorf("%s: %v %v, want %v", name, m.RCode, m.Answers, want)
		}
	}
}

func FuzzDNS(f *testing.F) {
	s := serve(f, Config{Policy: policy(f, "example.com,*.wild.example", ""), Resolver: func(context.Context, string) ([]netip.Addr, error) {
		return nil, errors.New("nobody should ask")
	}})
	f.Add(ask(f, "example.com.", dnsmessage.TypeA, true))
	f.Add(ask(f, "a.wild.example.", dnsmessage.TypeAAAA, false))
	f.Add([]byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"))
	f.Fuzz(func(t *testing.T, msg []byte) {
		got := s.respond(t.Context(), msg)
		if got == nil {
			return
		}
		if len(got) > 512 {
			t.Fatalf("an answer of %d bytes", len(got))
		}
		m := parse(t, got)
		if !m.Response || m.ID != uint16(msg[0])<<8|uint16(msg[1]) || len(m.Answers) > 1 {
			t.Fatalf("answer %+v", m)
		}
		if a := address(m); a.IsValid() && netns.Synthetic.Contains(a) {
			name := strings.TrimSuffix(strings.ToLower(m.Questions[0].Name.String()), ".")
			if name != "example.com" && !strings.HasSuffix(name, ".wild.example") {
				t.Fatalf("%q has the address %v", name, a)
			}
		}
	})
}
