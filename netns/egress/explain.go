package egress

import (
	"fmt"
	"strings"
)

// Explain says a policy in plain words, a line for each thing it grants.
func Explain(p Policy) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("mode: %s", p.Mode())
	if p.Mode() == "none" {
		line("The sandbox has a loopback device and nothing else.")
		return b.String()
	}
	line("The sandbox may reach:")
	for _, n := range p.Names {
		line("  %s, tcp port %s", explainName(n.Host), joinPorts(n.Ports))
	}
	for _, c := range p.CIDRs {
		line("  %s", explainCIDR(c))
	}
	if p.Internet {
		line("  every public name and address, tcp and udp, every port")
	}
	line("It may not reach anything else. A name that is not granted does not exist for it; a connection that is not granted is refused at once.")
	line("Closed in every mode: cloud metadata services, multicast, and IPv4 addresses in an IPv6 disguise.")
	line("Closed unless a CIDR above names them: loopback and every other address of the host (one by one), private and link-local networks, also when a granted name resolves there.")
	line("Names are looked up on the host when the sandbox connects, never before. TLS and HTTP must name the host that was dialled.")
	l := p.Limits.withDefaults()
	line("Limits: %d connections at once, %d new ones a second, each cut after %v of silence%s%s%s.", l.Connections, l.PerSecond, l.Idle,
		explainLimit(l.Total > 0, ", or %v in all", l.Total),
		explainLimit(l.SendBytes > 0, "; %d bytes out", l.SendBytes),
		explainLimit(l.ReceiveBytes > 0, "; %d bytes in", l.ReceiveBytes))
	return b.String()
}

func explainLimit(set bool, format string, value any) string {
	if !set {
		return ""
	}
	return fmt.Sprintf(format, value)
}

func explainName(pattern string) string {
	if base, ok := strings.CutPrefix(pattern, "*."); ok {
		return fmt.Sprintf("every name below %s (not %s itself)", base, base)
	}
	return "the name " + pattern
}

func explainCIDR(c CIDRRule) string {
	what := "addresses in " + c.Prefix.String()
	if c.Prefix.IsSingleIP() {
		what = "the address " + c.Prefix.Addr().String()
	}
	port := "every port"
	if c.Port != 0 {
		port = fmt.Sprintf("port %d", c.Port)
	}
	what = fmt.Sprintf("%s, %s %s", what, c.Proto, port)
	if closed, ok := closedAs(c.Prefix.Addr()); ok && closed.opens(c.Prefix) {
		return what + " (" + closed.what + ", opened by this rule)"
	}
	if c.Prefix.Addr().Is6() {
		return what + ", through the proxy"
	}
	return what
}

func joinPorts(ports []uint16) string {
	var words []string
	for _, p := range ports {
		words = append(words, fmt.Sprint(p))
	}
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}
