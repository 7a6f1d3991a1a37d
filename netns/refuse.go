package netns

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// RefuseDatagram tells the sandbox that nobody took the datagram that it sent from one
// address to the other, as the rules do when they refuse one: the program that waits
// for an answer learns at once that there will be none.
func (g *Gateway) RefuseDatagram(from, to netip.AddrPort) error {
	if from.Addr() != SandboxAddr || !to.Addr().Is4() {
		return fmt.Errorf("cannot refuse a datagram from %s to %s: it is not the sandbox's", from, to)
	}
	msg := portUnreachableTo(from, to)
	return g.inside(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW) // brings its own header
		if err != nil {
			return fmt.Errorf("cannot refuse a datagram: %w", err)
		}
		defer unix.Close(fd)
		if err := unix.Sendto(fd, msg, 0, &unix.SockaddrInet4{Addr: SandboxAddr.As4()}); err != nil {
			return fmt.Errorf("cannot refuse a datagram: %w", err)
		}
		return nil
	})
}

const ipHeader = 20 // bytes, without options

// portUnreachableTo is the IP packet by which to says that its port is not reachable.
func portUnreachableTo(from, to netip.AddrPort) []byte {
	const udpHeader, unreachable, port = 8, 3, 3
	b := ipv4(nil, unix.IPPROTO_ICMP, to.Addr(), from.Addr(), 8+ipHeader+udpHeader)
	b = append(b, unreachable, port, 0, 0, 0, 0, 0, 0)
	b = ipv4(b, unix.IPPROTO_UDP, from.Addr(), to.Addr(), udpHeader)
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = append(b, 0, udpHeader, 0, 0)
	binary.BigEndian.PutUint16(b[ipHeader+2:], internetSum(b[ipHeader:]))
	return b
}

// ipv4 appends a header for size bytes more.
func ipv4(b []byte, protocol byte, src, dst netip.Addr, size int) []byte {
	at := len(b)
	b = append(b, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(ipHeader+size))
	b = append(b, 0, 0, 0x40, 0, 64, protocol, 0, 0) // not to be cut up
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(b[at+10:], internetSum(b[at:]))
	return b
}

// internetSum is the checksum of an even number of bytes.
func internetSum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
