package egress

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/direct-oci/engine/netns"
)

// A tier says what it takes to open an address that is closed by default.
type tier int

const (
	tierPublic  tier = iota // open wherever a rule reaches it
	tierPrivate             // a CIDR rule that lies within the private range
	tierLocal               // a CIDR rule for this one address
	tierClosed              // nothing opens it
)

type closedRange struct {
	prefix netip.Prefix
	tier   tier
	rule   string // word for records: metadata, private, local, special
	what   string // for people: "… is <what>"
}

// closedRanges is searched in this order: the first that holds the address counts.
var closedRanges = func() []closedRange {
	var list []closedRange
	add := func(t tier, rule, what string, prefixes ...string) {
		for _, p := range prefixes {
			list = append(list, closedRange{netip.MustParsePrefix(p), t, rule, what})
		}
	}
	add(tierClosed, "metadata", "a cloud's metadata service",
		"169.254.169.254/32", // AWS, Google, Azure, Oracle, DigitalOcean, Hetzner, OpenStack
		"169.254.170.2/32",   // AWS, credentials of tasks
		"169.254.170.23/32",  // AWS, credentials of pods
		"169.254.169.253/32", // AWS, resolver
		"169.254.169.123/32", // AWS, time
		"169.254.0.23/32",    // Tencent
		"169.254.42.42/32",   // Scaleway
		"168.63.129.16/32",   // Azure
		"100.100.100.200/32", // Alibaba
		"192.0.0.192/32",     // Oracle
		"fd00:ec2::/32",      // AWS
		"fd20:ce::254/128",   // Google
		"fd00:42::42/128",    // Scaleway
		"fd00:c1::a9fe:a9fe/128",
		"fe80::a9fe:a9fe/128", // OpenStack
	)
	add(tierClosed, "special", "this run's own gateway", netip.PrefixFrom(netns.GatewayAddr, 30).Masked().String(), netns.Synthetic.String())
	add(tierClosed, "special", "not an address to connect to", "0.0.0.0/8", "240.0.0.0/4", "::/128")
	add(tierClosed, "special", "a multicast address", "224.0.0.0/4", "ff00::/8")
	add(tierLocal, "local", "a loopback address of the host", "127.0.0.0/8", "::1/128")
	add(tierClosed, "special", "an IPv4 address in an IPv6 disguise",
		"::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
	add(tierClosed, "special", "reserved", "100::/64", "2001:10::/28", "2001:20::/28", "5f00::/16", "fec0::/10")
	add(tierLocal, "local", "a link-local address", "169.254.0.0/16", "fe80::/10")
	add(tierPrivate, "private", "a private address",
		"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
	add(tierPrivate, "private", "an address for special purposes",
		"192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15")
	return list
}()

// closedAs returns the range that closes addr, whoever's host this is.
func closedAs(addr netip.Addr) (closedRange, bool) {
	addr = addr.WithZone("")
	for _, r := range closedRanges {
		if r.prefix.Contains(addr) {
			return r, true
		}
	}
	if !addr.Is4() && !globalUnicast6.Contains(addr) {
		return closedRange{globalUnicast6, tierClosed, "special", "not a public IPv6 address"}, true
	}
	return closedRange{}, false
}

// globalUnicast6 is all of IPv6 that has been given out.
var globalUnicast6 = netip.MustParsePrefix("2000::/3")

// opens tells whether a granted prefix is exact enough to open an address of the
// range. 0.0.0.0/0 grants what is public; it does not name anyone's private network.
func (r closedRange) opens(granted netip.Prefix) bool {
	switch r.tier {
	case tierPrivate:
		return granted.Bits() >= r.prefix.Bits()
	case tierLocal:
		return granted.IsSingleIP()
	case tierClosed:
		return false
	default:
		return true
	}
}

// hostAddrs knows the addresses of this host. They change, so it asks the kernel
// again when what it knows is older than hostAddrsAge.
type hostAddrs struct {
	list func() ([]netip.Addr, error)

	mu    sync.Mutex
	known map[netip.Addr]bool
	at    time.Time
}

const hostAddrsAge = time.Second

func (h *hostAddrs) contains(addr netip.Addr) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil || time.Since(h.at) > hostAddrsAge {
		addrs, err := h.list()
		if err != nil {
			return false, fmt.Errorf("cannot list this host's addresses: %w", err)
		}
		h.known = make(map[netip.Addr]bool, len(addrs))
		for _, a := range addrs {
			h.known[a.Unmap().WithZone("")] = true
		}
		h.at = time.Now()
	}
	return h.known[addr.Unmap().WithZone("")], nil
}

// interfaceAddrs lists the addresses of every interface of the caller's namespace.
func interfaceAddrs() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				addrs = append(addrs, addr.Unmap())
			}
		}
	}
	return addrs, nil
}

// closedNow is closedAs with this host's own addresses, which may be public ones.
func (h *hostAddrs) closedNow(addr netip.Addr) (closedRange, bool, error) {
	if r, ok := closedAs(addr); ok && r.tier >= tierLocal {
		return r, true, nil
	}
	own, err := h.contains(addr)
	if err != nil {
		return closedRange{}, true, err
	}
	if own {
		return closedRange{netip.PrefixFrom(addr, addr.BitLen()), tierLocal, "local", "an address of this host"}, true, nil
	}
	r, ok := closedAs(addr)
	return r, ok, nil
}
