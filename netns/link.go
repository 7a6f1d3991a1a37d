package netns

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Every gateway looks the same: its two namespaces hold nothing else, so nothing has
// to be allocated, and no run learns from its addresses which run it is.
var (
	// GatewayAddr is the gateway's own address, where its services listen.
	GatewayAddr = netip.MustParseAddr("100.64.0.1")
	// SandboxAddr is the one address that a sandbox may send from.
	SandboxAddr = netip.MustParseAddr("100.64.0.2")
	// Synthetic holds the addresses that stand for names. They mean nothing outside
	// of one gateway.
	Synthetic = netip.MustParsePrefix("198.18.0.0/16")
)

const (
	linkBits = 30

	gatewayLink, gatewayIndex = "gw0", 7
	sandboxLink, sandboxIndex = "eth0", 9
	loopbackIndex             = 1
)

var (
	gatewayMAC = [6]byte{0x02, 0x64, 0x40, 0, 0, 1}
	sandboxMAC = [6]byte{0x02, 0x64, 0x40, 0, 0, 2}
)

// Numbers of the kernel's interface that x/sys/unix does not have.
const (
	vethInfoPeer       = 1 // VETH_INFO_PEER
	addrGenModeNone    = 1 // IN6_ADDR_GEN_MODE_NONE
	devconfForwarding  = 1 // IPV4_DEVCONF_FORWARDING
	devconfRouteLocal  = 26
	devconfSourceRoute = 9
)

// makePair makes the link, down: one end in the socket's namespace, the other in the
// one that sandbox holds.
func makePair(route *conn, sandbox, mtu int) error {
	var w writer
	end := func(index int, name string, mac [6]byte) {
		w.ifinfo(index, 0)
		w.text(unix.IFLA_IFNAME, name)
		w.attr(unix.IFLA_ADDRESS, mac[:])
		w.u32(unix.IFLA_MTU, uint32(mtu))
		w.u32(unix.IFLA_NUM_TX_QUEUES, 1) // one for each CPU otherwise
		w.u32(unix.IFLA_NUM_RX_QUEUES, 1)
	}
	w.message("make the link of a gateway", unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, func() {
		end(gatewayIndex, gatewayLink, gatewayMAC)
		w.nest(unix.IFLA_LINKINFO, func() {
			w.text(unix.IFLA_INFO_KIND, "veth")
			w.nest(unix.IFLA_INFO_DATA, func() {
				w.nest(vethInfoPeer, func() {
					end(sandboxIndex, sandboxLink, sandboxMAC)
					w.u32(unix.IFLA_NET_NS_FD, uint32(sandbox))
				})
			})
		})
	})
	return route.do(&w)
}

// configureGateway opens the gateway's end. Its rules must be in force.
func configureGateway(route *conn) error {
	var w writer
	w.up(loopbackIndex)
	w.quiet(gatewayIndex)
	w.message("forbid a gateway to forward", unix.RTM_SETLINK, 0, func() {
		w.ifinfo(gatewayIndex, 0)
		w.nest(unix.IFLA_AF_SPEC, func() {
			w.nest(unix.AF_INET, func() {
				w.nest(unix.IFLA_INET_CONF, func() {
					// a new namespace has the host's settings
					w.u32(devconfForwarding, 0)
					w.u32(devconfSourceRoute, 0)
					w.u32(devconfRouteLocal, 0)
				})
			})
		})
	})
	w.address(gatewayIndex, GatewayAddr)
	w.up(gatewayIndex)
	w.neighbour(gatewayIndex, SandboxAddr, sandboxMAC)
	// The link's own prefix is longer, so it is not local.
	w.route(unix.RTN_LOCAL, unix.RT_SCOPE_HOST, func() { w.u32(unix.RTA_OIF, loopbackIndex) })
	w.acknowledged()
	return route.do(&w)
}

// configureSandbox opens the sandbox's end.
func configureSandbox(route *conn) error {
	var w writer
	w.up(loopbackIndex)
	w.quiet(sandboxIndex)
	w.address(sandboxIndex, SandboxAddr)
	w.up(sandboxIndex)
	w.neighbour(sandboxIndex, GatewayAddr, gatewayMAC)
	w.route(unix.RTN_UNICAST, unix.RT_SCOPE_UNIVERSE, func() {
		w.attr(unix.RTA_GATEWAY, GatewayAddr.AsSlice())
		w.u32(unix.RTA_OIF, sandboxIndex)
	})
	w.acknowledged()
	return route.do(&w)
}

// ifinfo writes the header of a message about a link that gets the flags.
func (w *writer) ifinfo(index int, flags uint32) {
	w.raw(unix.AF_UNSPEC, 0, 0, 0)
	w.b = binary.NativeEndian.AppendUint32(w.b, uint32(index))
	w.b = binary.NativeEndian.AppendUint32(w.b, flags)
	w.b = binary.NativeEndian.AppendUint32(w.b, flags) // the mask of what changes
}

func (w *writer) up(index int) {
	w.message("set a gateway's link up", unix.RTM_SETLINK, 0, func() { w.ifinfo(index, unix.IFF_UP) })
}

// quiet keeps IPv6 from giving the link an address and announcing it. In one message
// with the flag that sets the link up, it would come too late.
func (w *writer) quiet(index int) {
	w.message("switch IPv6 off on a gateway's link", unix.RTM_SETLINK, 0, func() {
		w.ifinfo(index, 0)
		w.nest(unix.IFLA_AF_SPEC, func() {
			w.nest(unix.AF_INET6, func() { w.u8(unix.IFLA_INET6_ADDR_GEN_MODE, addrGenModeNone) })
		})
	})
	w.tolerates(unix.EAFNOSUPPORT) // a kernel that has no IPv6
}

func (w *writer) address(index int, a netip.Addr) {
	w.message("give a gateway's link its address", unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, func() {
		w.raw(unix.AF_INET, linkBits, 0, unix.RT_SCOPE_UNIVERSE)
		w.b = binary.NativeEndian.AppendUint32(w.b, uint32(index))
		w.attr(unix.IFA_LOCAL, a.AsSlice())
		w.attr(unix.IFA_ADDRESS, a.AsSlice())
	})
}

// neighbour makes the other end known for good: ARP is dropped.
func (w *writer) neighbour(index int, a netip.Addr, mac [6]byte) {
	w.message("set the neighbour on a gateway's link", unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, func() {
		w.raw(unix.AF_INET, 0, 0, 0)
		w.b = binary.NativeEndian.AppendUint32(w.b, uint32(index))
		w.b = binary.NativeEndian.AppendUint16(w.b, unix.NUD_PERMANENT)
		w.raw(0, 0)
		w.attr(unix.NDA_DST, a.AsSlice())
		w.attr(unix.NDA_LLADDR, mac[:])
	})
}

// route writes the default route.
func (w *writer) route(kind, scope byte, body func()) {
	w.message("set a gateway's route", unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, func() {
		w.raw(unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, scope, kind)
		w.b = binary.NativeEndian.AppendUint32(w.b, 0) // flags
		body()
	})
}

// settle has the kernel do at once what it does in the background after a link has got
// its carrier. Until then it drops what is sent there, and a sandbox would wait a
// second for its first connection.
func settle(c *conn, name string) error {
	// asking for the state is what makes the kernel catch up with it
	value := struct{ command, up uint32 }{command: unix.ETHTOOL_GLINK}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // the rest of struct ifreq
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return fmt.Errorf("cannot ask for the state of a gateway's link %s: %w", name, errno)
	}
	if value.up == 0 {
		return fmt.Errorf("internal error: a gateway's link %s has no carrier", name)
	}
	return nil
}
