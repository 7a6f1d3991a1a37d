package netns

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Names in the rules. The sets are changed and the counters read by them.
const (
	guardTable, polTable = "guard", "pol"

	setServices, setNames, setNamed, setAllowed = "services", "names", "named", "allowed"
	setForbidden, setPrivate, setRefused        = "forbidden", "private", "refused"

	countTx, countRx, countDenied, countNever       = "tx", "rx", "denied", "never"
	countSpoofed, countFrag, countLimited, allQuota = "spoofed", "fragments", "limited", "traffic"

	chainAdmit, chainRefuse = "admit", "refuse"
)

// TransparentPort is where a listener gets what a sandbox sends to any permitted
// destination on any port. The listener sees the destination as its own address.
// While nothing listens there, a listener on the destination's own port gets it.
const TransparentPort = 1

// maxRefused is how many refused destinations are told apart.
const maxRefused = 1024

// Rules returns the rules of a gateway as nft reads them. They depend on nothing but
// cfg.
func Rules(cfg GatewayConfig) (string, error) {
	s, err := cfg.check()
	if err != nil {
		return "", err
	}
	return rules(s, cfg.Limits).String(), nil
}

func rules(s sets, l Limits) ruleset {
	return ruleset{guard(l), pol(s, l)}
}

// guard is what each frame from a sandbox meets first.
func guard(l Limits) table {
	// SECURITY: a gateway takes nothing from a sandbox but whole TCP and UDP packets
	// in plain IPv4 frames that bear the sandbox's own two addresses.
	// A runtime's helper that was taken over sends any frame it likes, with any source.
	// Holds because: the guard sees every frame that the link brings, before any
	// protocol does, ends in a drop, and is there before the link is up.
	// Not covered: a kernel that fails to call the hook. Checked by: TestFramesStayOut.
	const sourceMAC, destinationMAC = 6, 0
	rules := []rule{
		{count(countTx)},
		{etherNot("saddr", sourceMAC, sandboxMAC), count(countSpoofed), drop()},
		{etherNot("daddr", destinationMAC, gatewayMAC), count(countDenied), drop()}, // broadcast and multicast too
		{etherTypeNotIP(), count(countDenied), drop()},
		{ipBits("ip saddr != "+SandboxAddr.String(), offsetSource, nil, unix.NFT_CMP_NEQ, SandboxAddr.AsSlice()), count(countSpoofed), drop()},
		{ipBits("ip version != 4", 0, []byte{0xf0}, unix.NFT_CMP_NEQ, []byte{0x40}), count(countDenied), drop()},
		{ipBits("ip hdrlength != 5", 0, []byte{0x0f}, unix.NFT_CMP_NEQ, []byte{5}), count(countDenied), drop()}, // options
		{ipBits("ip frag-off & 0x3fff != 0", 6, []byte{0x3f, 0xff}, unix.NFT_CMP_NEQ, []byte{0, 0}), count(countFrag), drop()},
	}
	if l.BytesPerSec > 0 {
		rules = append(rules, rule{bytesOver(l.BytesPerSec, burst), count(countLimited), drop()})
	}
	rules = append(rules,
		rule{ipBits("ip protocol tcp", 9, nil, unix.NFT_CMP_EQ, []byte{byte(TCP)}), accept()},
		rule{ipBits("ip protocol udp", 9, nil, unix.NFT_CMP_EQ, []byte{byte(UDP)}), accept()},
		rule{count(countDenied)},
	)
	return table{
		family:   unix.NFPROTO_NETDEV,
		name:     guardTable,
		counters: []string{countTx, countDenied, countSpoofed, countFrag, countLimited},
		chains: []chain{{
			name:  "ingress",
			hook:  &hook{name: "ingress", number: unix.NF_NETDEV_INGRESS, priority: -500, device: gatewayLink, drop: true},
			rules: rules,
		}},
	}
}

// burst is what may come at once beyond a second's worth at a rate: a few of the
// largest packets that a link carries.
const burst = 256 << 10

// pol is the policy.
func pol(s sets, l Limits) table {
	// SECURITY: each packet of a sandbox is checked by where it goes, not only the
	// first one of a connection, so that a policy that gets narrower holds at once.
	// Holds because: no rule asks whether a connection is established.
	// Not covered: what a listener's connection has already received. Checked by: TestNarrowingStopsFlows.
	fail := jumpAway(chainRefuse)
	input := []rule{
		{notFromLink(), drop()},
		{to(GatewayAddr), port(UDP, "dport", 2, dnsPort), accept()},
		{to(GatewayAddr), portIn(TCP, setServices), jumpAway(chainAdmit)},
		{to(GatewayAddr), fail},
		{toPrefix(Synthetic), portsIn(setNames), jumpAway(chainAdmit)},
		{toPrefix(Synthetic), fail},
		{toIn(setForbidden), count(countNever), fail},
		{tupleIn(setNamed), jumpAway(chainAdmit)},
		{toIn(setPrivate), count(countNever), fail},
		{tupleIn(setAllowed), jumpAway(chainAdmit)},
		{fail},
	}
	output := []rule{}
	if l.BytesPerSec > 0 {
		output = append(output, rule{toLink(), bytesOver(l.BytesPerSec, burst), count(countLimited), drop()})
	}
	var traffic *quota
	if l.Bytes > 0 {
		traffic = &quota{allQuota, l.Bytes}
		output = append(output, rule{toLink(), quotaOver(allQuota)})
	}
	output = append(output, rule{toLink(), count(countRx), accept()})

	before := func(hookName string, number uint32, priority int32) *hook {
		return &hook{name: hookName, number: number, priority: priority}
	}
	return table{
		family:   unix.NFPROTO_INET,
		name:     polTable,
		counters: []string{countRx, countDenied, countNever, countLimited},
		quota:    traffic,
		sets:     append(policySets(s), fixedSets()...),
		chains: []chain{
			// A name looked up is not a connection.
			{"untracked_queries", before("prerouting", unix.NF_INET_PRE_ROUTING, -300), []rule{
				{fromLink(), to(GatewayAddr), port(UDP, "dport", 2, dnsPort), untracked()},
			}},
			{"untracked_answers", before("output", unix.NF_INET_LOCAL_OUT, -300), []rule{
				{toLink(), from(GatewayAddr), port(UDP, "sport", 0, dnsPort), untracked()},
			}},
			{"steer", before("prerouting", unix.NF_INET_PRE_ROUTING, -150), []rule{
				{fromLink(), notTo(GatewayAddr), isProtocol(TCP), proxied(TransparentPort)},
				{fromLink(), notTo(GatewayAddr), isProtocol(UDP), proxied(TransparentPort)},
			}},
			{"input", &hook{name: "input", number: unix.NF_INET_LOCAL_IN, drop: true}, input},
			{"forward", &hook{name: "forward", number: unix.NF_INET_FORWARD, drop: true}, nil},
			{"output", &hook{name: "output", number: unix.NF_INET_LOCAL_OUT, drop: true}, output},
			{chainAdmit, nil, admit(l)},
			{chainRefuse, nil, []rule{
				{count(countDenied)},
				{note(setRefused)},
				{isProtocol(TCP), reset()},
				{portUnreachable()},
			}},
		},
	}
}

// admit is what a packet to a permitted destination meets: the limits.
func admit(l Limits) []rule {
	var r []rule
	if l.Bytes > 0 {
		r = append(
			r,
			rule{tcpReset(), accept()}, // the sandbox's answer, by which the listener's side ends too
			rule{quotaOver(allQuota), count(countLimited), jumpAway(chainRefuse)},
		)
	}
	if l.ConnectionsPerSec > 0 {
		r = append(r, rule{newConnection(), packetsOver(l.ConnectionsPerSec), count(countLimited), jumpAway(chainRefuse)})
	}
	if l.Connections > 0 {
		r = append(r, rule{newConnection(), connectionsOver(l.Connections), count(countLimited), jumpAway(chainRefuse)})
	}
	return append(r, rule{accept()})
}

// policySets are the sets that a change of the policy fills anew.
func policySets(s sets) []set {
	return []set{
		{name: setServices, fields: []field{fieldPort}, elems: portElems(s.services)},
		{name: setNames, fields: tupleFields[1:], flags: unix.NFT_SET_INTERVAL, elems: boxElems(s.names, false)},
		{name: setNamed, fields: tupleFields, flags: unix.NFT_SET_INTERVAL, elems: boxElems(s.named, true)},
		{name: setAllowed, fields: tupleFields, flags: unix.NFT_SET_INTERVAL, elems: boxElems(s.allowed, true)},
	}
}

var tupleFields = []field{fieldAddr, fieldProtocol, fieldPort}

func fixedSets() []set {
	interval := func(name string, list []netip.Prefix) set {
		s, err := spans(list)
		if err != nil {
			panic("internal error: " + err.Error())
		}
		return set{name: name, fields: tupleFields[:1], flags: unix.NFT_SET_INTERVAL, elems: spanElems(s)}
	}
	return []set{
		interval(setForbidden, forbidden4),
		interval(setPrivate, private4),
		{name: setRefused, fields: tupleFields, flags: unix.NFT_SET_EVAL, size: maxRefused},
	}
}

func portElems(list []uint16) []elem {
	var out []elem
	for _, p := range list {
		out = append(out, elem{key: binary.BigEndian.AppendUint16(nil, p)})
	}
	return out
}

func spanElems(list []span) []elem {
	var out []elem
	for _, s := range list {
		out = append(out, elem{
			key: binary.BigEndian.AppendUint32(nil, s.first),
			end: binary.BigEndian.AppendUint32(nil, s.last),
		})
	}
	return out
}

// boxElems makes elements of three fields, or of the last two.
func boxElems(list []box, addresses bool) []elem {
	key := func(addr uint32, p Protocol, port uint16) []byte { // each field padded to a register
		var b []byte
		if addresses {
			b = binary.BigEndian.AppendUint32(b, addr)
		}
		b = append(b, byte(p), 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, port)
		return append(b, 0, 0)
	}
	var out []elem
	for _, x := range list {
		out = append(out, elem{
			key: key(x.first, x.protocol, x.firstPort),
			end: key(x.last, x.protocol, x.lastPort),
		})
	}
	return out
}
