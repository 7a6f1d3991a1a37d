package egress

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseAllow(t *testing.T) {
	tests := []struct {
		in    string
		host  string
		ports []uint16
	}{
		{"example.com", "example.com", []uint16{80, 443}},
		{"Example.COM.:22", "example.com", []uint16{22}},
		{"*.example.com", "*.example.com", []uint16{80, 443}},
		{"*.example.com:8443", "*.example.com", []uint16{8443}},
		{"registry:5000", "registry", []uint16{5000}},
		{"bücher.example:443", "xn--bcher-kva.example", []uint16{443}},
	}
	for _, tt := range tests {
		got, err := ParseAllow(tt.in)
		if want := (NameRule{tt.host, tt.ports}); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("ParseAllow(%q) = %+v, %v; want %+v", tt.in, got, err, want)
		}
	}
}

func TestRefusedGrantsSayWhatToWrite(t *testing.T) {
	allow := func(s string) error { _, err := ParseAllow(s); return err }
	cidr := func(s string) error { _, err := ParseAllowCIDR(s); return err }
	tests := []struct {
		parse   func(string) error
		in, fix string // the fix holds this
	}{
		{allow, "https://example.com/", "--allow example.com:443"},
		{allow, "203.0.113.7", "--allow-cidr 203.0.113.7/32:PORT"},
		{allow, "203.0.113.7:443", "--allow-cidr 203.0.113.7/32:443"},
		{allow, "[2001:db8::1]:443", "--allow-cidr [2001:db8::1/128]:443"},
		{allow, "2001:db8::1", "--allow-cidr [2001:db8::1/128]:PORT"},
		{allow, "example.com:*", "HOST:PORT"},
		{allow, "example.com:0", "HOST:PORT"},
		{allow, "example.com:65536", "HOST:PORT"},
		{allow, "example.com:http", "HOST:PORT"},
		{allow, "*", "--allow example.com:443"},
		{allow, "*.com", "--network internet"},
		{allow, "a.*.com", "--allow example.com:443"},
		{allow, "*example.com", "--allow example.com:443"},
		{allow, "localhost:80", "--allow-cidr 127.0.0.1/32:PORT"},
		{allow, "", "--allow example.com:443"},
		{allow, "user@example.com", "--allow example.com:443"},
		{cidr, "203.0.113.0/24", "203.0.113.0/24:443"},
		{cidr, "203.0.113.7:443", "--allow-cidr 203.0.113.7/32:443"},
		{cidr, "203.0.113.7/24:443", "write 203.0.113.0/24:443"},
		{cidr, "2001:db8::/32:443", "[2001:db8::/32]:443"},
		{cidr, "[2001:db8::1]:443", "--allow-cidr [2001:db8::1/128]:443"},
		{cidr, "example.com:443", "--allow"},
		{cidr, "203.0.113.0/24:x", ":53/udp"},
		{cidr, "203.0.113.0/24:53/sctp", ":53/udp"},
		{cidr, "127.0.0.0/8:80", "127.0.0.1/32:80"},
		{cidr, "169.254.169.254/32:80", "leave it out"},
		{cidr, "[fd00:ec2::254/128]:80", "leave it out"},
		{cidr, "100.100.100.200/32:80", "leave it out"},
		{cidr, "168.63.129.16/32:80", "leave it out"},
		{cidr, "192.0.0.192/32:80", "leave it out"},
		{cidr, "224.0.0.0/4:5353/udp", "leave it out"},
		{cidr, "[64:ff9b::/96]:80", "leave it out"},
		{cidr, "[::ffff:10.0.0.1/128]:80", "leave it out"},
		{cidr, "0.0.0.0/8:80", "leave it out"},
		{cidr, "100.64.0.1/32:22", "leave it out"},
		{cidr, "198.18.0.0/16:80", "leave it out"},
	}
	for _, tt := range tests {
		err := tt.parse(tt.in)
		var e *PolicyError
		if !errors.As(err, &e) {
			t.Errorf("%q: error %v, want a *PolicyError", tt.in, err)
			continue
		}
		if !strings.HasPrefix(err.Error(), "cannot accept allow") || !strings.Contains(e.Remedy(), tt.fix) {
			t.Errorf("%q: %q, fix %q; want a fix with %q", tt.in, err, e.Remedy(), tt.fix)
		}
	}
}

func TestParseAllowCIDR(t *testing.T) {
	tests := []struct {
		in   string
		want CIDRRule
	}{
		{"203.0.113.0/24:443", CIDRRule{netip.MustParsePrefix("203.0.113.0/24"), "tcp", 443}},
		{"203.0.113.0/24:443/tcp", CIDRRule{netip.MustParsePrefix("203.0.113.0/24"), "tcp", 443}},
		{"203.0.113.9/32:53/udp", CIDRRule{netip.MustParsePrefix("203.0.113.9/32"), "udp", 53}},
		{"10.0.0.0/8:*", CIDRRule{netip.MustParsePrefix("10.0.0.0/8"), "tcp", 0}},
		{"10.0.0.0/8:*/udp", CIDRRule{netip.MustParsePrefix("10.0.0.0/8"), "udp", 0}},
		{"[2001:db8::/32]:443", CIDRRule{netip.MustParsePrefix("2001:db8::/32"), "tcp", 443}},
		{"127.0.0.1/32:3128", CIDRRule{netip.MustParsePrefix("127.0.0.1/32"), "tcp", 3128}},
		{"0.0.0.0/0:443", CIDRRule{netip.MustParsePrefix("0.0.0.0/0"), "tcp", 443}},
	}
	for _, tt := range tests {
		got, err := ParseAllowCIDR(tt.in)
		if err != nil || got != tt.want {
			t.Errorf("ParseAllowCIDR(%q) = %+v, %v; want %+v", tt.in, got, err, tt.want)
			continue
		}
		if again, err := ParseAllowCIDR(got.String()); err != nil || again != got {
			t.Errorf("ParseAllowCIDR(%q).String() = %q, which reads as %+v, %v", tt.in, got, again, err)
		}
	}
}

func TestPolicyJSONAndMode(t *testing.T) {
	p := policy(t, "example.com,*.example.org:22", "203.0.113.0/24:53/udp")
	p.Internet, p.Limits = true, Limits{Connections: 3, Idle: time.Second}
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"names":[{"host":"example.com","ports":[80,443]},{"host":"*.example.org","ports":[22]}],` +
		`"cidrs":[{"prefix":"203.0.113.0/24","proto":"udp","port":53}],"internet":true,"limits":{"connections":3,"idle":1000000000}}`
	if string(b) != want {
		t.Errorf("JSON is\n%s\nwant\n%s", b, want)
	}
	var back Policy
	if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, p) {
		t.Errorf("read back as %+v, %v; want %+v", back, err, p)
	}
	if err := back.Validate(); err != nil {
		t.Error(err)
	}
	if got := p.Mode(); got != "names+cidr+internet" {
		t.Errorf("mode = %q", got)
	}
	if got := (Policy{}).Mode(); got != "none" {
		t.Errorf("mode of no policy = %q", got)
	}
}

func TestValidateRefusesWhatTheParsersNeverGive(t *testing.T) {
	tests := []struct {
		name string
		p    Policy
	}{
		{"upper case", Policy{Names: []NameRule{{"Example.com", []uint16{1}}}}},
		{"no ports", Policy{Names: []NameRule{{"example.com", nil}}}},
		{"port 0", Policy{Names: []NameRule{{"example.com", []uint16{0}}}}},
		{"address as a name", Policy{Names: []NameRule{{"127.0.0.1", []uint16{1}}}}},
		{"zero prefix", Policy{CIDRs: []CIDRRule{{Proto: "tcp", Port: 1}}}},
		{"protocol", Policy{CIDRs: []CIDRRule{{netip.MustParsePrefix("203.0.113.0/24"), "sctp", 1}}}},
		{"negative limit", Policy{Limits: Limits{SendBytes: -1}}},
		{"too many connections", Policy{Limits: Limits{Connections: 1 << 20}}},
		{"too many rules", Policy{Names: make([]NameRule, maxRules+1)}},
	}
	for _, tt := range tests {
		if err := tt.p.Validate(); err == nil {
			t.Errorf("%s: accepted", tt.name)
		}
	}
}

// policy makes a policy of comma-separated grants.
func policy(t testing.TB, allow, cidrs string) Policy {
	t.Helper()
	var p Policy
	for s := range strings.SplitSeq(allow, ",") {
		if s == "" {
			continue
		}
		r, err := ParseAllow(s)
		if err != nil {
			t.Fatal(err)
		}
		p.Names = append(p.Names, r)
	}
	for s := range strings.SplitSeq(cidrs, ",") {
		if s == "" {
			continue
		}
		r, err := ParseAllowCIDR(s)
		if err != nil {
			t.Fatal(err)
		}
		p.CIDRs = append(p.CIDRs, r)
	}
	return p
}

func TestDecide(t *testing.T) {
	own := &hostAddrs{list: func() ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("203.0.113.77"), netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("127.0.0.1")}, nil
	}}
	names := policy(t, "example.com,*.wild.example:22,example.org:443", "")
	cidr := policy(t, "", "203.0.113.0/24:443,203.0.113.0/24:53/udp,10.1.0.0/16:*,0.0.0.0/0:8080,127.0.0.1/32:3128,[2001:db8::/32]:443,[2600::/12]:*")
	internet := Policy{Internet: true}
	tests := []struct {
		name   string
		policy Policy
		dest   string
		proto  string
		rule   string
		want   bool
	}{
		{"exact name", names, "example.com:443", "tcp", "allow example.com", true},
		{"exact name, default port 80", names, "example.com:80", "tcp", "allow example.com", true},
		{"another port", names, "example.com:22", "tcp", "not-allowed", false},
		{"udp to a name", names, "example.com:443", "udp", "not-allowed", false},
		{"below an exact name", names, "a.example.com:443", "tcp", "not-allowed", false},
		{"wildcard", names, "a.wild.example:22", "tcp", "allow *.wild.example", true},
		{"wildcard, deeper", names, "a.b.wild.example:22", "tcp", "allow *.wild.example", true},
		{"wildcard's own domain", names, "wild.example:22", "tcp", "not-allowed", false},
		{"not at a label", names, "evilwild.example:22", "tcp", "not-allowed", false},
		{"allowed name as a label", names, "example.com.evil.net:443", "tcp", "not-allowed", false},
		{"address in names mode", names, "203.0.113.5:443", "tcp", "not-allowed", false},
		{"cidr", cidr, "203.0.113.5:443", "tcp", "allow-cidr 203.0.113.0/24:443", true},
		{"cidr, other port", cidr, "203.0.113.5:444", "tcp", "not-allowed", false},
		{"cidr, udp", cidr, "203.0.113.5:53", "udp", "allow-cidr 203.0.113.0/24:53/udp", true},
		{"cidr, tcp for udp", cidr, "203.0.113.5:53", "tcp", "not-allowed", false},
		{"private by an exact rule", cidr, "10.1.2.3:9", "tcp", "allow-cidr 10.1.0.0/16:*", true},
		{"private beside it", cidr, "10.2.2.3:8080", "tcp", "private", false},
		{"the host's private address, within a granted range", cidr, "10.1.1.1:9", "tcp", "local", false},
		{"everything does not mean private", cidr, "192.168.1.1:8080", "tcp", "private", false},
		{"everything does not mean loopback", cidr, "127.0.0.1:8080", "tcp", "local", false},
		{"everything does not mean metadata", cidr, "169.254.169.254:8080", "tcp", "metadata", false},
		{"everything does not mean the host", cidr, "203.0.113.77:8080", "tcp", "local", false},
		{"the host's public address", cidr, "203.0.113.77:443", "tcp", "local", false},
		{"the host's loopback address by name", cidr, "127.0.0.1:3128", "tcp", "allow-cidr 127.0.0.1/32:3128", true},
		{"cidr 6", cidr, "[2001:db8::7]:443", "tcp", "allow-cidr [2001:db8::/32]:443", true},
		{"mapped", cidr, "[::ffff:203.0.113.5]:443", "tcp", "special", false},
		{"internet, name", internet, "anything.example:1234", "tcp", "internet", true},
		{"internet, address", internet, "203.0.113.5:1234", "udp", "internet", true},
		{"internet, private", internet, "10.1.2.3:80", "tcp", "private", false},
		{"internet, gateway", internet, "100.64.0.1:22", "tcp", "special", false},
		{"internet, unknown synthetic", internet, "198.18.200.1:80", "tcp", "special", false},
		{"internet, global 6", internet, "[2606:4700::1]:443", "tcp", "internet", true},
		{"internet, documentation-free unassigned 6", internet, "[4000::1]:443", "tcp", "special", false},
		{"nothing", Policy{}, "203.0.113.5:443", "tcp", "not-allowed", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			to, err := parseAuthority(tt.dest)
			if err != nil {
				t.Fatal(err)
			}
			to.proto = tt.proto
			d := newRules(tt.policy).decide(to, own)
			if d.Allowed != tt.want || d.Rule != tt.rule || (d.Why == "") != tt.want {
				t.Errorf("decide(%s) = %+v; want allowed=%v rule=%q", tt.dest, d, tt.want, tt.rule)
			}
		})
	}
}

func TestHostAddressesUnknownIsClosed(t *testing.T) {
	own := &hostAddrs{list: func() ([]netip.Addr, error) { return nil, errors.New("no netlink") }}
	to := target{addr: netip.MustParseAddr("203.0.113.5"), port: 443, proto: "tcp"}
	if d := newRules(Policy{Internet: true}).decide(to, own); d.Allowed || d.Rule != ruleHost {
		t.Errorf("decision without the host's addresses = %+v, want denied", d)
	}
}

func TestExplain(t *testing.T) {
	p := policy(t, "example.com,*.example.org:22", "203.0.113.0/24:53/udp,10.0.0.7/32:5432,[2001:db8::/32]:*")
	p.Limits.SendBytes = 1000
	got := Explain(p)
	for _, want := range []string{
		"mode: names+cidr\n", "  the name example.com, tcp port 80 and 443\n", "  every name below example.org (not example.org itself), tcp port 22\n",
		"  addresses in 203.0.113.0/24, udp port 53\n", "  the address 10.0.0.7, tcp port 5432 (a private address, opened by this rule)\n",
		"  addresses in 2001:db8::/32, tcp every port, through the proxy\n", "; 1000 bytes out.",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("Explain lacks %q:\n%s", want, got)
		}
	}
	if got := Explain(Policy{}); !strings.Contains(got, "nothing else") {
		t.Errorf("Explain of no policy:\n%s", got)
	}
}

// TestClosedRanges walks one address of every range that must be closed.
func TestClosedRanges(t *testing.T) {
	own := &hostAddrs{list: func() ([]netip.Addr, error) { return nil, nil }}
	everything := Policy{Internet: true, CIDRs: []CIDRRule{
		{netip.MustParsePrefix("0.0.0.0/0"), "tcp", 0}, {netip.MustParsePrefix("::/0"), "tcp", 0},
	}}
	r := newRules(everything)
	for _, a := range strings.Fields(`0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.64.9.9 100.127.255.255 100.100.100.200
		127.0.0.1 127.255.255.254 168.63.129.16 169.254.0.1 169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255 192.0.0.1
		192.0.0.192 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
		:: ::1 ::2 ::ffff:1.1.1.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::1.1.1.1 64:ff9b::a9fe:a9fe 64:ff9b::101:101 64:ff9b:1::1
		2002:a9fe:a9fe:: 2001:0:1::1 100::1 fc00::1 fd00:ec2::254 fd00:ec2::23 fd20:ce::254 fdff::1 fe80::1 fe80::a9fe:a9fe fec0::1 ff02::1
		4000::1 8000::1 1::1`) {
		to := target{addr: netip.MustParseAddr(a), port: 80, proto: "tcp"}
		if d := r.decide(to, own); d.Allowed {
			t.Errorf("%s is open: %+v", a, d)
		}
	}
	for _, a := range strings.Fields(`1.1.1.1 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.1 128.0.0.1 168.63.129.15 172.15.255.255
		172.32.0.1 192.0.1.1 192.167.1.1 198.17.255.255 198.20.0.1 223.255.255.255 2606:4700::1111 2001:4860::8888 2a00::1`) {
		to := target{addr: netip.MustParseAddr(a), port: 80, proto: "tcp"}
		if d := r.decide(to, own); !d.Allowed {
			t.Errorf("%s is closed: %+v", a, d)
		}
	}
}
