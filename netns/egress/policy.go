package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Policy is what a sandbox may reach. The zero Policy grants nothing. It is plain
// data with a JSON form, the same in a request, a record and a config file, and is
// checked with Validate.
type Policy struct {
	Names    []NameRule `json:"names,omitempty"`
	CIDRs    []CIDRRule `json:"cidrs,omitempty"`
	Internet bool       `json:"internet,omitempty"` // everything public, tcp and udp
	Limits   Limits     `json:"limits,omitzero"`
}

// NameRule grants a host name, over TCP.
type NameRule struct {
	Host  string   `json:"host"`  // canonical; "*.example.com" is every name below example.com, not itself
	Ports []uint16 `json:"ports"` // at least one
}

// CIDRRule grants a range of addresses.
type CIDRRule struct {
	Prefix netip.Prefix `json:"prefix"`
	Proto  string       `json:"proto"` // "tcp" or "udp"
	Port   uint16       `json:"port"`  // 0 is every port
}

// Limits bounds the traffic of one run. A zero field takes its default; for the
// bytes and Total, that is no bound.
type Limits struct {
	Connections  int           `json:"connections,omitempty"`  // open at once; as many udp flows, of which the longest silent gives way; 256
	PerSecond    int           `json:"perSecond,omitempty"`    // new connections and flows; 1000
	SendBytes    int64         `json:"sendBytes,omitempty"`    // out of the sandbox, all connections together
	ReceiveBytes int64         `json:"receiveBytes,omitempty"` // into the sandbox, all connections together
	Idle         time.Duration `json:"idle,omitempty"`         // nanoseconds without a byte either way; 10 minutes
	Total        time.Duration `json:"total,omitempty"`        // nanoseconds of one connection
}

const (
	defaultConnections = 256
	defaultPerSecond   = 1000
	defaultIdle        = 10 * time.Minute

	maxConnections = 4096
	maxRules       = 1024
)

func (l Limits) withDefaults() Limits {
	if l.Connections == 0 {
		l.Connections = defaultConnections
	}
	if l.PerSecond == 0 {
		l.PerSecond = defaultPerSecond
	}
	if l.Idle == 0 {
		l.Idle = defaultIdle
	}
	return l
}

// PolicyError is a grant that cannot be accepted, and what to write instead.
type PolicyError struct {
	Object string // "allow", "allow-cidr", "limits"
	Value  string
	Why    string
	Fix    string // one imperative sentence
}

func (e *PolicyError) Error() string {
	return fmt.Sprintf("cannot accept %s=%s: %s", e.Object, e.Value, e.Why)
}

// Remedy returns what to write instead.
func (e *PolicyError) Remedy() string { return e.Fix }

// ParseAllow reads HOST[:PORT]. Without a port, 80 and 443 are granted. HOST may
// be *.example.com. The error is a *PolicyError.
func ParseAllow(s string) (NameRule, error) {
	bad := func(why, fix string) (NameRule, error) {
		return NameRule{}, &PolicyError{"allow", strconv.QuoteToASCII(s), why, fix}
	}
	if _, _, found := strings.Cut(s, "://"); found {
		return bad("it is a URL", "write the host and its port alone: --allow example.com:443")
	}
	if addr, ok := anyAddress(s); ok {
		return bad("it is an address, not a name", "write "+allowCIDR(addr, "PORT"))
	}
	host, port, hasPort := splitHostPort(s)
	rule := NameRule{Ports: []uint16{80, 443}}
	if hasPort {
		p, err := parsePort(port)
		if err != nil {
			return bad(err.Error(), "write --allow HOST:PORT, and repeat it for further ports")
		}
		rule.Ports = []uint16{p}
	}
	name, err := canonicalPattern(host)
	if err != nil {
		fix := "write a host name, such as --allow example.com:443"
		if addr, ok := anyAddress(host); ok {
			if !hasPort {
				port = "PORT"
			}
			fix = "write " + allowCIDR(addr, port)
		}
		return bad(err.Error(), fix)
	}
	rule.Host = name
	if e := rule.check(); e != nil {
		return NameRule{}, e
	}
	return rule, nil
}

func anyAddress(s string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	return addr, err == nil
}

// allowCIDR is the flag that grants one address.
func allowCIDR(addr netip.Addr, port string) string {
	if addr.Is6() {
		return fmt.Sprintf("--allow-cidr [%s/128]:%s", addr, port)
	}
	return fmt.Sprintf("--allow-cidr %s/32:%s", addr, port)
}

// canonicalPattern is Canonical for a name that may begin with "*.".
func canonicalPattern(unsafeName string) (string, error) {
	base, wild := strings.CutPrefix(unsafeName, "*.")
	name, err := Canonical(base)
	if err != nil {
		return "", err
	}
	if wild {
		return "*." + name, nil
	}
	return name, nil
}

// check returns nil or why the rule cannot be accepted.
func (r NameRule) check() error {
	value := strconv.QuoteToASCII(r.Host)
	name, err := canonicalPattern(r.Host)
	base, wild := strings.CutPrefix(name, "*.")
	switch {
	case err != nil:
		return &PolicyError{"allow", value, err.Error(), "write a host name, such as example.com:443"}
	case name != r.Host:
		return &PolicyError{"allow", value, "it is not in canonical form", "write " + name}
	case wild && !strings.Contains(base, "."):
		return &PolicyError{"allow", value, "it would grant a whole top-level domain", "name a domain below it, such as *.example." + base + ", or grant everything public with --network internet"}
	case wild && len(base) > maxName-2:
		return &PolicyError{"allow", value, "no name fits below it", "write a shorter domain"}
	case isLocalhost(base):
		return &PolicyError{"allow", value, "in a sandbox this name means the sandbox itself", "leave it out, or grant a service of the host by its address: --allow-cidr 127.0.0.1/32:PORT"}
	case len(r.Ports) == 0:
		return &PolicyError{"allow", value, "it has no port", "write " + name + ":443"}
	case slices.Contains(r.Ports, 0):
		return &PolicyError{"allow", value, "0 is not a port", "write a port from 1 to 65535"}
	}
	return nil
}

func isLocalhost(name string) bool {
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// ParseAllowCIDR reads CIDR:PORT[/udp], with an IPv6 CIDR in brackets. PORT may be
// "*". The error is a *PolicyError.
func ParseAllowCIDR(s string) (CIDRRule, error) {
	bad := func(why, fix string) (CIDRRule, error) {
		return CIDRRule{}, &PolicyError{"allow-cidr", strconv.QuoteToASCII(s), why, fix}
	}
	rule := CIDRRule{Proto: "tcp"}
	rest := s
	// The last slash of 10.0.0.0/8:53/udp comes after its last colon; that of 10.0.0.0/8 does not.
	if cidr, proto, ok := cutLast(s, '/'); ok && strings.LastIndexByte(s, ':') < len(cidr) && (proto == "tcp" || proto == "udp") {
		rule.Proto, rest = proto, cidr
	}
	host, port, hasPort := splitHostPort(rest)
	if strings.Count(host, ":") > 0 && !strings.HasPrefix(host, "[") || !hasPort && strings.Count(rest, ":") > 1 {
		return bad("an IPv6 range needs brackets", "write --allow-cidr [2001:db8::/32]:443")
	}
	if !hasPort {
		return bad("it has no port", "write --allow-cidr "+rest+":443, or "+rest+":* for every port")
	}
	if port != "*" {
		p, err := parsePort(port)
		if err != nil {
			return bad(err.Error(), "write --allow-cidr "+host+":443, "+host+":* for every port, or "+host+":53/udp")
		}
		rule.Port = p
	}
	bare := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if addr, err := netip.ParseAddr(bare); err == nil {
		return bad("it has no prefix length", "write "+allowCIDR(addr, port))
	}
	prefix, err := netip.ParsePrefix(bare)
	if err != nil {
		return bad("it is not an address range", "write --allow-cidr 203.0.113.0/24:443, or a name with --allow")
	}
	if prefix.Addr().Is6() != strings.HasPrefix(host, "[") {
		return bad("brackets are for IPv6 ranges, and IPv6 ranges need them", "write --allow-cidr [2001:db8::/32]:443 or 203.0.113.0/24:443")
	}
	rule.Prefix = prefix
	if err := rule.check(); err != nil {
		var e *PolicyError
		if errors.As(err, &e) {
			e.Value = strconv.QuoteToASCII(s)
		}
		return CIDRRule{}, err
	}
	return rule, nil
}

func cutLast(s string, sep byte) (before, after string, found bool) {
	i := strings.LastIndexByte(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// String returns the rule as the flag would have it.
func (r CIDRRule) String() string {
	prefix, port := r.Prefix.String(), "*"
	if r.Prefix.Addr().Is6() {
		prefix = "[" + prefix + "]"
	}
	if r.Port != 0 {
		port = strconv.Itoa(int(r.Port))
	}
	if r.Proto == "udp" {
		port += "/udp"
	}
	return prefix + ":" + port
}

func (r CIDRRule) check() error {
	bad := func(why, fix string) error { return &PolicyError{"allow-cidr", r.String(), why, fix} }
	if !r.Prefix.IsValid() {
		return bad("it is not an address range", "write a range such as 203.0.113.0/24:443")
	}
	if r.Proto != "tcp" && r.Proto != "udp" {
		return bad("the protocol is neither tcp nor udp", "write tcp or udp")
	}
	if masked := r.Prefix.Masked(); masked != r.Prefix {
		fixed := r
		fixed.Prefix = masked
		return bad("it has address bits beyond its prefix length", "write "+fixed.String())
	}
	c, ok := closedAs(r.Prefix.Addr())
	if !ok || r.Prefix.Bits() < c.prefix.Bits() || r.Prefix.Addr().Is4() != c.prefix.Addr().Is4() {
		return nil // it reaches further than one closed range; what is closed in it stays so
	}
	if c.tier == tierClosed {
		return bad("it is "+c.what+", which stays closed in every mode", "leave it out")
	}
	if !c.opens(r.Prefix) {
		one := CIDRRule{netip.PrefixFrom(r.Prefix.Addr().Next(), r.Prefix.Addr().BitLen()), r.Proto, r.Port}
		return bad("it is "+c.what+", and such can be granted only one by one", "name the very address, such as "+one.String())
	}
	return nil
}

// Validate checks a policy from anywhere. The error is a *PolicyError.
func (p Policy) Validate() error {
	if len(p.Names) > maxRules || len(p.CIDRs) > maxRules {
		return &PolicyError{"allow", strconv.Itoa(max(len(p.Names), len(p.CIDRs))), fmt.Sprintf("more than %d rules", maxRules), "use wildcards or larger ranges"}
	}
	for _, r := range p.Names {
		if err := r.check(); err != nil {
			return err
		}
	}
	for _, r := range p.CIDRs {
		if err := r.check(); err != nil {
			return err
		}
	}
	return p.Limits.check()
}

func (l Limits) check() error {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"connections", int64(l.Connections)},
		{"perSecond", int64(l.PerSecond)},
		{"sendBytes", l.SendBytes},
		{"receiveBytes", l.ReceiveBytes},
		{"idle", int64(l.Idle)},
		{"total", int64(l.Total)},
	} {
		if f.value < 0 {
			return &PolicyError{"limits." + f.name, strconv.FormatInt(f.value, 10), "it is negative", "leave it out for the default"}
		}
	}
	if l.Connections > maxConnections {
		return &PolicyError{"limits.connections", strconv.Itoa(l.Connections), fmt.Sprintf("more than %d", maxConnections), "write a smaller number"}
	}
	return nil
}

// Mode is the policy in a word: none, or names, cidr and internet joined by "+".
func (p Policy) Mode() string {
	var words []string
	if len(p.Names) > 0 {
		words = append(words, "names")
	}
	if len(p.CIDRs) > 0 {
		words = append(words, "cidr")
	}
	if p.Internet {
		words = append(words, "internet")
	}
	if words == nil {
		return "none"
	}
	return strings.Join(words, "+")
}
