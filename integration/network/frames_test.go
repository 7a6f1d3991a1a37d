package network

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// insideMAC and gatewayMAC are those of every sandbox's link.
var (
	insideMAC  = net.HardwareAddr{2, 0x64, 0x40, 0, 0, 2}
	gatewayMAC = net.HardwareAddr{2, 0x64, 0x40, 0, 0, 1}
	broadcast  = net.HardwareAddr{255, 255, 255, 255, 255, 255}
)

func frame(dst, src net.HardwareAddr, etherType uint16, payload []byte) []byte {
	return append(binary.BigEndian.AppendUint16(append(slices.Clone(dst), src...), etherType), payload...)
}

// ipPacket is an IPv4 packet that would have its effect outside: a whole datagram, or
// else a SYN.
func ipPacket(src, dst netip.Addr, protocol byte, fragment uint16, options []byte) []byte {
	size := 20 + len(options)
	b := []byte{0x40 | byte(size/4), 0}
	b = binary.BigEndian.AppendUint16(b, uint16(size+20))
	b = append(b, 0, 7)
	b = binary.BigEndian.AppendUint16(b, fragment)
	b = append(b, 64, protocol, 0, 0)
	b = append(append(append(b, src.AsSlice()...), dst.AsSlice()...), options...)
	var sum uint32
	for i := 0; i < size; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
	b = binary.BigEndian.AppendUint16(b, 4000)
	b = binary.BigEndian.AppendUint16(b, 443)
	if protocol == unix.IPPROTO_UDP {
		return append(b, 0, 20, 0, 0, 'f', 'o', 'r', 'g', 'e', 'd', 0, 0, 0, 0, 0, 0)
	}
	return append(b, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0)
}

// hostileFrames are what a helper of a runtime could send that was taken over.
func hostileFrames() [][]byte {
	own := netip.MustParseAddr("100.64.0.2")
	var list [][]byte
	for _, place := range places {
		dst := netip.MustParseAddr(place.addr)
		if !dst.Is4() {
			dst16 := dst.As16()
			for _, next := range []byte{6, 17, 58, 0, 44, 43} { // tcp, udp, icmp, and extension headers
				packet := append([]byte{0x60, 0, 0, 0, 0, 20, next, 64}, netip.MustParseAddr("fe80::2").AsSlice()...)
				packet = append(append(packet, dst16[:]...), make([]byte, 20)...)
				list = append(list, frame(gatewayMAC, insideMAC, unix.ETH_P_IPV6, packet), frame(broadcast, insideMAC, unix.ETH_P_IPV6, packet))
			}
			continue
		}
		for _, src := range []string{"100.64.0.1", "100.64.0.3", "203.0.113.1", "10.9.9.9", "127.0.0.1", "0.0.0.0", "198.18.0.1"} { // spoofed
			for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
				list = append(list, frame(gatewayMAC, insideMAC, unix.ETH_P_IP, ipPacket(netip.MustParseAddr(src), dst, protocol, 0, nil)))
			}
		}
		for _, protocol := range []byte{1, 2, 4, 33, 41, 47, 50, 51, 132, 136, 255} { // icmp, igmp, tunnels
			list = append(list, frame(gatewayMAC, insideMAC, unix.ETH_P_IP, ipPacket(own, dst, protocol, 0, nil)))
		}
		udp := func(fragment uint16, options ...byte) []byte {
			return ipPacket(own, dst, unix.IPPROTO_UDP, fragment, options)
		}
		list = append(list,
			frame(gatewayMAC, insideMAC, unix.ETH_P_IP, udp(0x2000)), frame(gatewayMAC, insideMAC, unix.ETH_P_IP, udp(3)),
			frame(gatewayMAC, insideMAC, unix.ETH_P_IP, udp(0, 131, 7, 4, 203, 0, 113, 10, 0)), // source route
			frame(gatewayMAC, net.HardwareAddr{2, 0, 0, 0, 0, 9}, unix.ETH_P_IP, udp(0)),
			frame(broadcast, insideMAC, unix.ETH_P_IP, udp(0)),
			frame(gatewayMAC, insideMAC, unix.ETH_P_8021Q, append([]byte{0, 5, 8, 0}, udp(0)...)),
			frame(gatewayMAC, insideMAC, unix.ETH_P_8021Q, append([]byte{0, 5, 0x81, 0, 0, 6, 8, 0}, udp(0)...)),
			frame(broadcast, insideMAC, unix.ETH_P_ARP, arp(dst)), frame(gatewayMAC, insideMAC, unix.ETH_P_ARP, arp(dst)),
			frame(gatewayMAC, insideMAC, unix.ETH_P_IPV6, udp(0)), frame(gatewayMAC, insideMAC, unix.ETH_P_PPP_SES, udp(0)),
		)
	}
	return list
}

func arp(target netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	b = append(append(b, insideMAC...), 100, 64, 0, 2, 0, 0, 0, 0, 0, 0)
	return append(b, target.AsSlice()...)
}

// TestFramesFromATakenOverHelper sends frames as root from the sandbox's own link, while
// the run may reach everything public: none leaves the host.
func TestFramesFromATakenOverHelper(t *testing.T) {
	someRuntimes(t, func(t *testing.T, runtime string) {
		b := newBed(t)
		s := b.start(runtime, "--network", "internet", "--allow-cidr", "10.0.0.0/8:*", "--allow-cidr", "10.0.0.0/8:*/udp")
		s.ready()
		link := s.placeWith(t, "eth0")
		frames := hostileFrames()
		link.do(t, func() error { return sendFrames("eth0", frames) })
		link.leave()
		s.want("tcp 8.8.8.8:80", "ok") // it goes on
		r := s.end()
		b.world.noLeaks(func(p packet) bool { return p.dst.String() == "8.8.8.8" && p.port == 80 })
		if len(frames) < 1000 || r.Actuals.TxBytes == nil || *r.Actuals.TxBytes < int64(len(frames)*30) {
			t.Errorf("sent %d frames, of which %v bytes were counted", len(frames), r.Actuals.TxBytes)
		}
		t.Logf("%d frames", len(frames))
	})
}

func sendFrames(name string, frames [][]byte) error {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, f := range frames {
		if e := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: dev.Index}); e != nil {
			err = errors.Join(err, e)
		}
	}
	return err
}
