package sandbox

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/netns/egress"
)

// ParseGrants reads grants as they are written: HOST[:PORT], CIDR:PORT[/udp], or
// "internet". The error is an *engine.Error.
func ParseGrants(grants []string) (egress.Policy, error) {
	var p egress.Policy
	for _, g := range grants {
		if g == "internet" {
			p.Internet = true
			continue
		}
		if looksLikeCIDR(g) {
			rule, err := egress.ParseAllowCIDR(g)
			if err != nil {
				return egress.Policy{}, engine.Refused("bad_network", "%w", err)
			}
			p.CIDRs = append(p.CIDRs, rule)
			continue
		}
		rule, err := egress.ParseAllow(g)
		if err != nil {
			return egress.Policy{}, engine.Refused("bad_network", "%w", err)
		}
		p.Names = append(p.Names, rule)
	}
	if err := p.Validate(); err != nil {
		return egress.Policy{}, engine.Refused("bad_network", "%w", err)
	}
	return p, nil
}

// looksLikeCIDR tells an address range, which has a slash behind an address, from a name.
func looksLikeCIDR(g string) bool {
	host, _, found := strings.Cut(strings.TrimPrefix(g, "["), "/")
	if !found {
		return false
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}

// Grants writes a policy as ParseGrants reads it, sorted, one grant of a name for each
// port, so that equal policies have equal grants.
func Grants(p egress.Policy) []string {
	grants := []string{}
	for _, n := range p.Names {
		for _, port := range n.Ports {
			grants = append(grants, n.Host+":"+strconv.Itoa(int(port)))
		}
	}
	for _, c := range p.CIDRs {
		grants = append(grants, c.String())
	}
	if p.Internet {
		grants = append(grants, "internet")
	}
	sort.Strings(grants)
	return slices.Compact(grants)
}

// Resolve is the policy that a program gets which asks for egress: false, nothing;
// true, all that the ceiling has; a grant, or a list of them, just those. Nothing
// above the ceiling is granted, which the config has under key. The error is an
// *engine.Error.
func Resolve(ask any, ceiling egress.Policy, key string) (egress.Policy, error) {
	var grants []string
	switch ask := ask.(type) {
	case nil:
	case bool:
		if !ask {
			break
		}
		if ceiling.Mode() == "none" {
			return egress.Policy{}, engine.Refused("egress_refused", "cannot grant egress: the config grants none").
				WithFix("ask without egress, or have " + key + " in the config changed")
		}
		p := ceiling
		p.Limits = egress.Limits{}
		return p, nil
	case string:
		grants = []string{ask}
	case []string:
		grants = ask
	case []any:
		for _, g := range ask {
			text, _ := g.(string)
			grants = append(grants, text)
		}
	}
	p, err := ParseGrants(grants)
	if err != nil {
		return egress.Policy{}, err
	}
	if g := above(p, ceiling); g != "" {
		return egress.Policy{}, engine.Refused("egress_refused", "cannot grant egress=%s: it is above what the config grants", g).
			WithFix("ask for less, or have " + key + " in the config changed")
	}
	return p, nil
}

// above returns the first grant of p that ceiling does not cover, "" if there is none.
func above(p, ceiling egress.Policy) string {
	if p.Internet && !ceiling.Internet {
		return "internet"
	}
	for _, n := range p.Names {
		for _, port := range n.Ports {
			if !ceiling.Internet && !slices.ContainsFunc(ceiling.Names, func(c egress.NameRule) bool { return coversName(c, n.Host, port) }) {
				return fmt.Sprintf("%s:%d", n.Host, port)
			}
		}
	}
	for _, c := range p.CIDRs {
		if !slices.ContainsFunc(ceiling.CIDRs, func(have egress.CIDRRule) bool { return coversCIDR(have, c) }) {
			return c.String()
		}
	}
	return ""
}

func coversName(c egress.NameRule, host string, port uint16) bool {
	if !slices.Contains(c.Ports, port) {
		return false
	}
	base, wild := strings.CutPrefix(c.Host, "*")
	return c.Host == host || wild && strings.HasSuffix(host, base)
}

func coversCIDR(have, want egress.CIDRRule) bool {
	return have.Proto == want.Proto && (have.Port == 0 || have.Port == want.Port) &&
		have.Prefix.Bits() <= want.Prefix.Bits() && have.Prefix.Contains(want.Prefix.Addr())
}
