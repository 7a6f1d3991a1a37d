package netns

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// frame describes an Ethernet frame with an IPv4 packet. Its zero value, but for the
// destination, is what the sandbox's own kernel would send.
type frame struct {
	dst      netip.Addr
	protocol byte
	port     uint16
	flags    byte // of TCP; 0 is SYN
	id       uint16

	dstMAC, srcMAC *[6]byte
	tags           []uint16 // VLAN ids
	etherType      uint16
	src            netip.Addr
	fragment       uint16
	version        byte
	options        []byte
	badSum         bool // of the transport header
	badHeaderSum   bool
	short          int // bytes missing at the end
	ttl            byte
}

func (f frame) bytes() []byte {
	dst, src := gatewayMAC, sandboxMAC
	if f.dstMAC != nil {
		dst = *f.dstMAC
	}
	if f.srcMAC != nil {
		src = *f.srcMAC
	}
	b := append(dst[:], src[:]...)
	for _, tag := range f.tags {
		b = binary.BigEndian.AppendUint16(b, unix.ETH_P_8021Q)
		b = binary.BigEndian.AppendUint16(b, tag)
	}
	etherType := f.etherType
	if etherType == 0 {
		etherType = unix.ETH_P_IP
	}
	b = binary.BigEndian.AppendUint16(b, etherType)
	packet := f.packet()
	return append(b, packet[:len(packet)-f.short]...)
}

func (f frame) packet() []byte {
	src := SandboxAddr
	if f.src.IsValid() {
		src = f.src
	}
	version, ttl := byte(4), byte(64)
	if f.version != 0 {
		version = f.version
	}
	if f.ttl != 0 {
		ttl = f.ttl
	}
	body := f.transport(src)
	size := 20 + len(f.options)
	b := []byte{version<<4 | byte(size/4), 0}
	b = binary.BigEndian.AppendUint16(b, uint16(size+len(body)))
	b = binary.BigEndian.AppendUint16(b, f.id)
	b = binary.BigEndian.AppendUint16(b, f.fragment)
	b = append(b, ttl, f.protocol, 0, 0)
	b = append(b, src.AsSlice()...)
	b = append(b, f.dst.AsSlice()...)
	b = append(b, f.options...)
	sum := checksum(b)
	if f.badHeaderSum {
		sum ^= 0x5555
	}
	binary.BigEndian.PutUint16(b[10:], sum)
	return append(b, body...)
}

// transport makes what follows the IP header; of a protocol without ports, something
// that is well formed.
func (f frame) transport(src netip.Addr) []byte {
	sport := 20000 + f.id%20000
	ports := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, sport), f.port)
	var b []byte
	at := -1 // where the checksum is
	switch f.protocol {
	case unix.IPPROTO_TCP:
		flags := f.flags
		if flags == 0 {
			flags = 2
		}
		b = append(ports, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, flags, 0x10, 0, 0, 0, 0, 0)
		at = 16
	case unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE:
		b = append(ports, 0, 13, 0, 0, 'h', 'e', 'l', 'l', 'o')
		at = 6
	case unix.IPPROTO_ICMP:
		b = []byte{8, 0, 0, 0, 0, 1, byte(f.id >> 8), byte(f.id)}
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	case unix.IPPROTO_IPIP:
		inner := f
		inner.protocol = unix.IPPROTO_TCP
		b = inner.packet()
	case unix.IPPROTO_GRE:
		inner := f
		inner.protocol = unix.IPPROTO_TCP
		b = append([]byte{0, 0, 8, 0}, inner.packet()...)
	default:
		b = append(ports, make([]byte, 20)...)
	}
	if at >= 0 {
		pseudo := append(src.AsSlice(), f.dst.AsSlice()...)
		pseudo = append(pseudo, 0, f.protocol, byte(len(b)>>8), byte(len(b)))
		sum := checksum(append(pseudo, b...))
		if f.badSum {
			sum ^= 0x5555
		}
		binary.BigEndian.PutUint16(b[at:], sum)
	}
	return b
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// sandboxSocket sends frames on the sandbox's link.
func sandboxSocket(t testing.TB, g *Gateway) int {
	t.Helper()
	return packetSocket(t, g.sandbox, 0, sandboxIndex)
}

// packetSocket opens a packet socket in ns, closed with the test.
func packetSocket(t testing.TB, ns *os.File, protocol, index int) int {
	t.Helper()
	fd := -1
	err := within(int(ns.Fd()), func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 8<<20); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: swap16(protocol), Ifindex: index})
	})
	if err != nil {
		t.Fatalf("cannot open a packet socket: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func swap16(v int) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, uint16(v)))
}

func send(t testing.TB, fd int, b []byte) {
	t.Helper()
	if _, err := unix.Write(fd, b); err != nil {
		t.Fatalf("cannot send a frame of %d bytes: %v", len(b), err)
	}
}
