package netns

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Protocol is a transport protocol that a gateway passes.
type Protocol uint8

const (
	TCP Protocol = unix.IPPROTO_TCP
	UDP Protocol = unix.IPPROTO_UDP
)

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// Policy is what a gateway lets through to its listeners; all else is refused. The
// zero value lets DNS through to the gateway's own address, alone.
type Policy struct {
	// Services are TCP ports of the gateway's own address. DNS has its port always,
	// over TCP and UDP.
	Services []uint16
	// Names are the ports of the synthetic addresses.
	Names []Ports
	// Allowed are further destinations. They may overlap. One whose prefix lies
	// within a private range opens that part of it; a wider one opens nothing private.
	Allowed []Allow
}

// Ports is a range of a protocol's ports.
type Ports struct {
	Protocol    Protocol
	First, Last uint16 // both belong to the range
}

// Allow is a range of ports of the addresses of an IPv4 prefix.
type Allow struct {
	Prefix netip.Prefix
	Ports
}

// Limits bound what one gateway carries. Zero means no limit.
type Limits struct {
	Connections       int   // at a time; DNS over UDP does not count
	ConnectionsPerSec int   // new ones
	Bytes             int64 // both directions together; more is refused
	BytesPerSec       int64 // in each direction; more is dropped, as by a slow link
}

const dnsPort = 53

// forbidden4 is what no policy opens: no host, groups of hosts, and the metadata
// services of the clouds, which give credentials to whoever asks.
var forbidden4 = prefixes(
	"0.0.0.0/8", "224.0.0.0/3",
	"169.254.169.254/32", "169.254.169.253/32", "169.254.169.123/32", // most clouds; AWS's resolver and clock
	"169.254.170.2/32", "169.254.170.23/32", // AWS, of tasks and of pods
	"169.254.0.23/32", "169.254.42.42/32", // Tencent Cloud, Scaleway
	"100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", // Alibaba Cloud, Azure, Oracle Cloud
)

// private4 is what a policy opens only by what lies within it.
var private4 = prefixes(
	"10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
)

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

// span is a range of IPv4 addresses.
type span struct{ first, last uint32 }

// box is a range of ports of a range of addresses.
type box struct {
	span
	protocol            Protocol
	firstPort, lastPort uint16
}

// sets are a policy in the form that the kernel looks things up in: sorted, and
// nothing in it twice.
type sets struct {
	services       []uint16
	names          []box // of no address
	named, allowed []box // within private ranges, and elsewhere
}

// maxAllowed bounds what the kernel holds for one run.
const maxAllowed = 4096

func (p Policy) sets() (sets, error) {
	if n := max(len(p.Names), len(p.Allowed)); n > maxAllowed {
		return sets{}, fmt.Errorf("cannot allow %d destinations: the limit is %d", n, maxAllowed)
	}
	var names, named, allowed []Allow
	for _, n := range p.Names {
		names = append(names, Allow{netip.PrefixFrom(netip.IPv4Unspecified(), 0), n})
	}
	for _, a := range p.Allowed {
		if slices.ContainsFunc(private4, func(r netip.Prefix) bool { return r.Bits() <= a.Prefix.Bits() && r.Overlaps(a.Prefix) }) {
			named = append(named, a)
		} else {
			allowed = append(allowed, a)
		}
	}
	s := sets{services: ports(append([]uint16{dnsPort}, p.Services...))}
	for _, x := range []struct {
		list []Allow
		to   *[]box
	}{{names, &s.names}, {named, &s.named}, {allowed, &s.allowed}} {
		var err error
		if *x.to, err = boxes(x.list); err != nil {
			return sets{}, err
		}
		if len(*x.to) > maxAllowed {
			return sets{}, fmt.Errorf("cannot allow destinations that make %d ranges without overlaps: the limit is %d", len(*x.to), maxAllowed)
		}
	}
	return s, nil
}

func ports(list []uint16) []uint16 {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

// spans returns the ranges that the prefixes cover together, in order, apart.
func spans(list []netip.Prefix) ([]span, error) {
	all := make([]span, 0, len(list))
	for _, p := range list {
		s, err := spanOf(p)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	var out []span
	for _, s := range all {
		if n := len(out); n > 0 && (out[n-1].last == math.MaxUint32 || s.first <= out[n-1].last+1) {
			out[n-1].last = max(out[n-1].last, s.last)
		} else {
			out = append(out, s)
		}
	}
	return out, nil
}

func spanOf(p netip.Prefix) (span, error) {
	if !p.IsValid() || !p.Addr().Is4() {
		return span{}, fmt.Errorf("cannot pass %s: only IPv4 passes a gateway", p)
	}
	first := number(p.Masked().Addr())
	return span{first, first | uint32(uint64(math.MaxUint32)>>p.Bits())}, nil
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

// boxes returns the same destinations without overlaps, which the kernel refuses: at
// each port where some range begins or ends, a new row of addresses begins.
func boxes(list []Allow) ([]box, error) {
	for _, a := range list {
		if a.Protocol != TCP && a.Protocol != UDP {
			return nil, fmt.Errorf("cannot allow %s: %s does not pass a gateway", a.Prefix, a.Protocol)
		}
		if a.First > a.Last {
			return nil, fmt.Errorf("cannot allow %s: ports %d-%d are no range", a.Prefix, a.First, a.Last)
		}
	}
	var out []box
	for _, protocol := range []Protocol{TCP, UDP} {
		var edges []int
		for _, a := range list {
			if a.Protocol == protocol {
				edges = append(edges, int(a.First), int(a.Last)+1)
			}
		}
		slices.Sort(edges)
		edges = slices.Compact(edges)
		var last []span // the addresses of the row before, if it ends where this one begins
		for i := range max(len(edges)-1, 0) {
			first, end := edges[i], edges[i+1]
			var row []netip.Prefix
			for _, a := range list {
				if a.Protocol == protocol && int(a.First) <= first && first <= int(a.Last) {
					row = append(row, a.Prefix)
				}
			}
			addresses, err := spans(row)
			if err != nil {
				return nil, err
			}
			if len(addresses) > 0 && slices.Equal(addresses, last) {
				for j := len(out) - len(addresses); j < len(out); j++ {
					out[j].lastPort = uint16(end - 1)
				}
				continue
			}
			for _, s := range addresses {
				out = append(out, box{s, protocol, uint16(first), uint16(end - 1)})
			}
			last = addresses
		}
	}
	return out, nil
}
