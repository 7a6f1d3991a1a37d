package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// packet is a kind of packets that came from the host.
type packet struct {
	proto    string // tcp, udp, icmp or what else it is
	src, dst netip.Addr
	port     uint16 // of the destination
}

func (p packet) String() string {
	return fmt.Sprintf("%s from %v to %v", p.proto, p.src, netip.AddrPortFrom(p.dst, p.port))
}

// sniffer sees what comes out of a link, and how many bytes go which way.
type sniffer struct {
	fd   int
	done chan struct{}

	mu      sync.Mutex
	packets map[packet]int
	in, out uint64 // bytes of IP packets
}

func newSniffer(t testing.TB, at *place, link string) *sniffer {
	t.Helper()
	s := &sniffer{packets: map[packet]int{}, done: make(chan struct{})}
	at.do(t, func() error { return s.open(link) })
	go s.listen()
	t.Cleanup(func() { s.close(t) })
	return s
}

// open makes the socket in the calling thread's namespace.
func (s *sniffer) open(link string) (err error) {
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	dev, err := net.InterfaceByName(link)
	if err != nil {
		return err
	}
	if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	return errors.Join(
		unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20),
		unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}),
		unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}),
	)
}

// close fails the test if the sniffer has missed something.
func (s *sniffer) close(t testing.TB) {
	s.mu.Lock()
	fd := s.fd
	s.fd = -1
	s.mu.Unlock()
	if fd < 0 {
		return
	}
	<-s.done
	stats, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil || stats.Drops > 0 {
		t.Errorf("the sniffer missed %d packets (%v)", stats.Drops, err)
	}
	unix.Close(fd)
}

func (s *sniffer) listen() {
	defer close(s.done)
	buf := make([]byte, 256)
	for {
		s.mu.Lock()
		fd := s.fd
		s.mu.Unlock()
		if fd < 0 {
			return
		}
		n, from, err := unix.Recvfrom(fd, buf, unix.MSG_TRUNC)
		if err != nil {
			continue // nothing came, or it is over
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if !ok {
			continue
		}
		s.note(buf[:min(n, len(buf))], n, ll.Pkttype == unix.PACKET_OUTGOING)
	}
}

func (s *sniffer) note(b []byte, size int, outgoing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if outgoing {
		s.out += uint64(size) - 14
		return
	}
	s.in += uint64(size) - 14
	if p, ok := parsePacket(b); ok {
		s.packets[p]++
	}
}

// parsePacket leaves out what hosts send of themselves: how an IPv6 neighbour is
// found, and that a datagram found nobody.
func parsePacket(b []byte) (packet, bool) {
	etherType, ip := binary.BigEndian.Uint16(b[12:]), b[14:]
	var protocol byte
	var p packet
	var rest []byte
	switch {
	case etherType == unix.ETH_P_IP && len(ip) >= 28:
		protocol, rest = ip[9], ip[int(ip[0]&15)*4:]
		p.src, p.dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	case etherType == unix.ETH_P_IPV6 && len(ip) >= 44:
		protocol, rest = ip[6], ip[40:]
		p.src, p.dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
	default:
		return packet{proto: "frame of type " + hex(etherType)}, true
	}
	switch {
	case protocol == unix.IPPROTO_ICMPV6 || protocol == 0 && p.dst.IsMulticast(), protocol == unix.IPPROTO_ICMP && rest[0] == 3:
		return p, false
	case protocol == unix.IPPROTO_TCP, protocol == unix.IPPROTO_UDP:
		p.proto = map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[protocol]
		p.port = binary.BigEndian.Uint16(rest[2:])
	default:
		p.proto = "protocol " + hex(uint16(protocol))
	}
	return p, true
}

func hex(n uint16) string {
	const digits = "0123456789abcdef"
	return strings.TrimLeft(string([]byte{digits[n>>12], digits[n>>8&15], digits[n>>4&15], digits[n&15]}), "0")
}

func (s *sniffer) seen() map[packet]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.packets)
}

// count is how many packets went to a port.
func (s *sniffer) count(port uint16) (n int) {
	for p, k := range s.seen() {
		if p.port == port {
			n += k
		}
	}
	return n
}

// bytes are what came from the link's other end and what went there, when both have
// been the same for a moment.
func (s *sniffer) bytes() (in, out uint64) {
	for {
		in, out = s.now()
		time.Sleep(100 * time.Millisecond)
		if a, b := s.now(); a == in && b == out {
			return in, out
		}
	}
}

func (s *sniffer) now() (in, out uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in, s.out
}
