package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Decision is what the policy said to one destination. It is plain data, and one
// line of the run's record.
type Decision struct {
	Allowed bool       `json:"allowed"`
	Route   string     `json:"route"` // transparent, connect, http, socks, dns, or kernel when it refused by itself
	Host    string     `json:"host"`  // canonical name; empty for an address
	Addr    netip.Addr `json:"addr"`  // the address asked for or dialled; the zero Addr if none
	Port    uint16     `json:"port"`
	Proto   string     `json:"proto"` // tcp, udp, or dns for a look-up
	Rule    string     `json:"rule"`  // what allowed it ("allow example.com"), or a word of the ones below
	Why     string     `json:"why"`   // for people; empty when allowed
	Count   int64      `json:"count"` // 1, or more when the kernel refused and only counted
}

// Words for what denied a destination. The ranges of never.go have their own.
const (
	ruleNone    = "not-allowed" // no rule of the policy reaches it
	ruleWitness = "mismatch"    // the client named another host than it dialled
	ruleLimit   = "limit"       // a limit of the run
	ruleBroken  = "malformed"   // no reading of the request is safe
	ruleHost    = "host"        // the host could not say what its addresses are
)

// target is one destination: a name, or an address.
type target struct {
	host  string
	addr  netip.Addr // zero when host is set
	port  uint16
	proto string
	route string
}

func (t target) String() string {
	if t.host != "" {
		return fmt.Sprintf("%s:%d", t.host, t.port)
	}
	return netip.AddrPortFrom(t.addr, t.port).String()
}

func (t target) decision(rule, why string) Decision {
	return Decision{Route: t.route, Host: t.host, Addr: t.addr, Port: t.port, Proto: t.proto, Rule: rule, Why: why, Count: 1}
}

// rules is a policy made ready for look-ups.
type rules struct {
	policy Policy
	names  map[string][]uint16 // exact names and wildcards by their text
}

func newRules(p Policy) *rules {
	p.Limits = p.Limits.withDefaults()
	r := &rules{policy: p, names: map[string][]uint16{}}
	for _, n := range p.Names {
		r.names[n.Host] = append(r.names[n.Host], n.Ports...)
	}
	return r
}

// nameRule returns the rule that grants a canonical name: the exact one first,
// then wildcards from the nearest domain up. With port 0, any port will do.
func (r *rules) nameRule(name string, port uint16) (string, bool) {
	granted := func(pattern string) bool {
		ports, ok := r.names[pattern]
		return ok && (port == 0 || slices.Contains(ports, port))
	}
	if granted(name) {
		return "allow " + name, true
	}
	for rest := name; ; {
		_, parent, ok := strings.Cut(rest, ".")
		if !ok {
			return "", false
		}
		if granted("*." + parent) {
			return "allow *." + parent, true
		}
		rest = parent
	}
}

// cidrRule returns the most exact rule that grants an address.
func (r *rules) cidrRule(addr netip.Addr, port uint16, proto string) (CIDRRule, bool) {
	var best CIDRRule
	found := false
	for _, c := range r.policy.CIDRs {
		if c.Proto == proto && (c.Port == 0 || c.Port == port) && c.Prefix.Contains(addr) &&
			(!found || c.Prefix.Bits() > best.Prefix.Bits()) {
			best, found = c, true
		}
	}
	return best, found
}

// decide answers for every route. A name that is allowed is not yet dialled: each
// address it resolves to goes through decideAddr as well.
func (r *rules) decide(t target, own *hostAddrs) Decision {
	if t.host == "" {
		return r.decideAddr(t, t.addr, own)
	}
	d := t.decision(ruleNone, "")
	if rule, ok := r.nameRule(t.host, t.port); ok && t.proto == "tcp" {
		d.Allowed, d.Rule = true, rule
		return d
	}
	if r.policy.Internet {
		d.Allowed, d.Rule = true, "internet"
		return d
	}
	d.Why = fmt.Sprintf("no rule allows %s over %s", t, t.proto)
	return d
}

// decideAddr decides about an address: one that the sandbox named itself, or one
// that an allowed name resolved to.
func (r *rules) decideAddr(t target, addr netip.Addr, own *hostAddrs) Decision {
	// SECURITY: private, local and metadata addresses are closed in every mode, also
	// behind an allowed name; a rule opens one only if it names it closely enough.
	// Holds because: every route dials through dialAllowed, which asks here about each
	// address and again on the socket that is about to connect.
	// Not covered: a public address that some other host forwards to a private one.
	// Checked by: TestRebindingNeverReachesInside.
	named := t
	named.addr = addr
	d := named.decision(ruleNone, "")
	closed, isClosed, err := own.closedNow(addr)
	if err != nil {
		d.Rule, d.Why = ruleHost, err.Error()
		return d
	}
	rule, granted := r.cidrRule(addr, t.port, t.proto)
	switch {
	case isClosed && !(granted && closed.opens(rule.Prefix)):
		d.Rule = closed.rule
		d.Why = fmt.Sprintf("%s is %s", addr, closed.what)
	case granted:
		d.Allowed, d.Rule = true, "allow-cidr "+rule.String()
	case t.host != "":
		d.Allowed = true // public, and the name has been allowed
	case r.policy.Internet:
		d.Allowed, d.Rule = true, "internet"
	default:
		d.Why = fmt.Sprintf("no rule allows %s over %s", t, t.proto)
	}
	return d
}

// advice is what to ask for when d was denied, as a flag; empty when nothing helps.
func advice(d Decision) string {
	switch d.Rule {
	case ruleNone:
		if d.Host != "" {
			return fmt.Sprintf("--allow %s:%d", d.Host, d.Port)
		}
		return allowCIDR(d.Addr, portProto(d))
	case "private", "local":
		return allowCIDR(d.Addr, portProto(d))
	default:
		return ""
	}
}

func portProto(d Decision) string {
	if d.Proto == "udp" {
		return fmt.Sprintf("%d/udp", d.Port)
	}
	return fmt.Sprint(d.Port)
}
