package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/integration/testenv"
)

// The addresses of the place that plays the host.
var (
	hostAddr   = netip.MustParseAddr("203.0.113.1")
	hostInside = netip.MustParseAddr("10.9.9.9")
	hostAddr6  = netip.MustParseAddr("2001:db8:1::1")
	dnsAddr    = netip.MustParseAddr("203.0.113.53")
	webAddr    = netip.MustParseAddr("203.0.113.80") // speaks HTTP and TLS
)

const markerPort = 4242

// world is the host's place and everything beyond.
type world struct {
	t        testing.TB
	host     *place
	internet *place
	dns      *dnsServer
	web      *webServer
	sniffer  *sniffer
	visits   *visits // to services of the host itself
}

func newWorld(t testing.TB, dir string) *world {
	t.Helper()
	w := &world{t: t, dns: newDNS(), visits: &visits{}}
	w.host = newPlace(t, ownResolvConf(dir, dnsAddr.String()))
	w.internet = newPlace(t, func() error { return nil })
	w.host.do(t, w.makeLink)
	w.internet.do(t, w.wireInternet)
	w.host.do(t, w.wireHost)
	testenv.WaitFor(t, testenv.Patience, "the link to be up", func() bool {
		var state netlink.LinkOperState
		w.host.do(t, func() error {
			link, err := netlink.LinkByName("near")
			if err == nil {
				state = link.Attrs().OperState
			}
			return err
		})
		return state == netlink.OperUp
	})
	w.sniffer = newSniffer(t, w.internet, "far")
	w.web = newWeb(t, dir)
	w.serveInternet(t)
	w.serveHost(t)
	return w
}

var (
	nearMAC = net.HardwareAddr{2, 0, 0, 0, 1, 1}
	farMAC  = net.HardwareAddr{2, 0, 0, 0, 1, 2}
)

func (w *world) makeLink() error {
	return netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "near", HardwareAddr: nearMAC},
		PeerName:  "far", PeerHardwareAddr: farMAC, PeerNamespace: netlink.NsFd(int(w.internet.ns.Fd())),
	})
}

func ipNet(p string) *net.IPNet {
	ip, n, err := net.ParseCIDR(p)
	if err != nil {
		panic(err)
	}
	n.IP = ip
	return n
}

// up brings a link up; neighbours are told, so that nothing need be asked on the wire.
func up(name string, addrs []string, neighbours map[string]net.HardwareAddr) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(a), Flags: unix.IFA_F_NODAD}); err != nil {
			return nil, fmt.Errorf("address %s: %w", a, err)
		}
	}
	if err := errors.Join(netlink.LinkSetIP6AddrGenMode(link, 1), netlink.LinkSetUp(link)); err != nil { // 1: none
		return nil, err
	}
	for ip, mac := range neighbours {
		n := &netlink.Neigh{LinkIndex: link.Attrs().Index, IP: net.ParseIP(ip), HardwareAddr: mac, State: netlink.NUD_PERMANENT}
		if err := netlink.NeighSet(n); err != nil {
			return nil, fmt.Errorf("neighbour %s: %w", ip, err)
		}
	}
	return link, nil
}

func (w *world) wireHost() error {
	link, err := up("near", []string{hostAddr.String() + "/32", hostAddr6.String() + "/128"},
		map[string]net.HardwareAddr{"203.0.113.9": farMAC, "2001:db8:1::9": farMAC})
	if err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: ipNet(hostInside.String() + "/32")}); err != nil {
		return err
	}
	for _, r := range []netlink.Route{
		{Dst: ipNet("203.0.113.9/32"), Scope: unix.RT_SCOPE_LINK},
		{Dst: ipNet("0.0.0.0/0"), Gw: net.ParseIP("203.0.113.9")},
		{Dst: ipNet("2001:db8:1::9/128"), Scope: unix.RT_SCOPE_LINK},
		{Dst: ipNet("::/0"), Gw: net.ParseIP("2001:db8:1::9")},
	} {
		r.LinkIndex = link.Attrs().Index
		if err := netlink.RouteAdd(&r); err != nil {
			return fmt.Errorf("route %s: %w", r.Dst, err)
		}
	}
	return nil
}

// wireInternet makes every address local, but the host's.
func (w *world) wireInternet() error {
	link, err := up("far", nil, map[string]net.HardwareAddr{hostAddr.String(): nearMAC, hostAddr6.String(): nearMAC})
	if err != nil {
		return err
	}
	for _, r := range []netlink.Route{
		{Dst: ipNet("0.0.0.0/0"), LinkIndex: 1, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST},
		{Dst: ipNet("::/0"), LinkIndex: 1, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST},
		{Dst: ipNet(hostAddr.String() + "/32"), LinkIndex: link.Attrs().Index, Type: unix.RTN_UNICAST, Scope: unix.RT_SCOPE_LINK},
		{Dst: ipNet(hostAddr6.String() + "/128"), LinkIndex: link.Attrs().Index, Type: unix.RTN_UNICAST, Scope: unix.RT_SCOPE_LINK},
	} {
		r.Table = unix.RT_TABLE_LOCAL
		if err := netlink.RouteAdd(&r); err != nil {
			return fmt.Errorf("route %s: %w", r.Dst, err)
		}
	}
	return nil
}

// settle returns when the sniffer has seen all that was sent before.
func (w *world) settle() {
	w.t.Helper()
	before := w.sniffer.count(markerPort)
	w.host.do(w.t, func() error {
		c, err := net.Dial("udp", net.JoinHostPort("203.0.113.9", fmt.Sprint(markerPort)))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("marker"))
		return err
	})
	testenv.WaitFor(w.t, 10*time.Second, "the sniffer to see the marker", func() bool { return w.sniffer.count(markerPort) > before })
}

// noLeaks fails the test if the far side has seen a packet to anywhere but where
// allowed says, or if somebody came to the host's own services.
func (w *world) noLeaks(allowed func(packet) bool) {
	w.t.Helper()
	w.settle()
	var leaks []string
	for p, n := range w.sniffer.seen() {
		resolver := p.dst == dnsAddr && p.port == 53
		own := p.src == hostAddr || p.src == hostAddr6
		if own && (resolver || p.port == markerPort || allowed(p)) {
			continue
		}
		leaks = append(leaks, fmt.Sprintf("%v, %d times", p, n))
	}
	slices.Sort(leaks)
	if len(leaks) > 0 {
		w.t.Errorf("%d kinds of packets leaked:\n%s", len(leaks), strings.Join(leaks[:min(len(leaks), 20)], "\n"))
	}
	if came := w.visits.list(); len(came) > 0 {
		w.t.Errorf("the host's own services were reached: %q", came)
	}
}
