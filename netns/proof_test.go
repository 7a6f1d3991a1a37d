package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// variants are ways in which a frame may differ from an honest one. ok tells whether
// the gateway may still take it.
var variants = []struct {
	name  string
	ok    bool
	apply func(f *frame)
}{
	{"plain", true, func(f *frame) {}},
	{"ttl 1", true, func(f *frame) { f.ttl = 1 }},
	{"an acknowledgement without a connection", true, func(f *frame) { f.flags = 0x10 }},
	{"a reset", true, func(f *frame) { f.flags = 4 }},
	{"all flags", true, func(f *frame) { f.flags = 0x3f }},
	{"don't fragment", true, func(f *frame) { f.fragment = 0x4000 }},
	{"source of the gateway", false, func(f *frame) { f.src = GatewayAddr }},
	{"source of the same subnet", false, func(f *frame) { f.src = netip.MustParseAddr("100.64.0.3") }},
	{"foreign source", false, func(f *frame) { f.src = netip.MustParseAddr("198.51.100.9") }},
	{"loopback source", false, func(f *frame) { f.src = netip.MustParseAddr("127.0.0.1") }},
	{"no source", false, func(f *frame) { f.src = netip.IPv4Unspecified() }},
	{"synthetic source", false, func(f *frame) { f.src = netip.MustParseAddr("198.18.0.7") }},
	{"source of the destination", false, func(f *frame) { f.src = f.dst }},
	{"another source MAC", false, func(f *frame) { f.srcMAC = &[6]byte{2, 0, 0, 0, 0, 9} }},
	{"the gateway's source MAC", false, func(f *frame) { f.srcMAC = &gatewayMAC }},
	{"broadcast MAC", false, func(f *frame) { f.dstMAC = &[6]byte{255, 255, 255, 255, 255, 255} }},
	{"multicast MAC", false, func(f *frame) { f.dstMAC = &[6]byte{1, 0, 0x5e, 0, 0, 1} }},
	{"another MAC", false, func(f *frame) { f.dstMAC = &[6]byte{2, 0, 0, 0, 0, 9} }},
	{"first fragment", false, func(f *frame) { f.fragment = 0x2000 }},
	{"later fragment", false, func(f *frame) { f.fragment = 0x0010 }},
	{"middle fragment", false, func(f *frame) { f.fragment = 0x2010 }},
	{"no-operation options", false, func(f *frame) { f.options = []byte{1, 1, 1, 1} }},
	{"loose source route", false, func(f *frame) { f.options = []byte{131, 7, 4, 8, 8, 8, 8, 0} }},
	{"strict source route", false, func(f *frame) { f.options = []byte{137, 7, 4, 8, 8, 8, 8, 0} }},
	{"record route", false, func(f *frame) { f.options = []byte{7, 7, 4, 0, 0, 0, 0, 0} }},
	{"IP version 6", false, func(f *frame) { f.version = 6 }},
	{"IP version 0", false, func(f *frame) { f.version = 15 }},
	{"bad header checksum", false, func(f *frame) { f.badHeaderSum = true }},
	{"cut short", false, func(f *frame) { f.short = 4 }},
	{"VLAN 0", false, func(f *frame) { f.tags = []uint16{0} }},
	{"VLAN 5", false, func(f *frame) { f.tags = []uint16{5} }},
	{"two tags", false, func(f *frame) { f.tags = []uint16{0, 0} }},
	{"as IPv6", false, func(f *frame) { f.etherType = unix.ETH_P_IPV6 }},
	{"as ARP", false, func(f *frame) { f.etherType = unix.ETH_P_ARP }},
	{"as MPLS", false, func(f *frame) { f.etherType = unix.ETH_P_MPLS_UC }},
	{"as PPPoE", false, func(f *frame) { f.etherType = unix.ETH_P_PPP_SES }},
	{"as LLC", false, func(f *frame) { f.etherType = 40 }},
	{"as LLDP", false, func(f *frame) { f.etherType = 0x88cc }},
}

var (
	proofAddrs = []string{
		"100.64.0.1", "198.18.0.7", "198.18.255.255", "203.0.113.9", "203.0.113.200", "10.1.2.3", "9.9.9.9",
		"100.64.0.2", "100.64.0.3", "100.64.0.9", "10.2.0.1", "172.16.0.1", "192.168.1.1", "198.19.0.1",
		"169.254.169.254", "169.254.1.1", "168.63.129.16", "100.100.100.200", "192.0.0.192", "127.0.0.1",
		"0.0.0.0", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
	}
	proofPorts     = []uint16{53, 80, 443, 1053, 5432, 8443, 9000, TransparentPort}
	proofProtocols = []byte{
		unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_IGMP, unix.IPPROTO_IPIP, unix.IPPROTO_DCCP,
		unix.IPPROTO_IPV6, unix.IPPROTO_GRE, unix.IPPROTO_ESP, unix.IPPROTO_AH, unix.IPPROTO_SCTP, unix.IPPROTO_UDPLITE, 255, 0,
	}
)

// permits tells, in its own way, whether mixed lets the tuple through.
func permits(dst string, protocol byte, port uint16) bool {
	tcp, udp := protocol == unix.IPPROTO_TCP, protocol == unix.IPPROTO_UDP
	switch dst {
	case "100.64.0.1":
		return port == 53 && (tcp || udp)
	case "198.18.0.7", "198.18.255.255":
		return tcp && (port == 80 || port == 443)
	case "203.0.113.9":
		return tcp && (port == 443 || port == 8443) || udp && port == 1053
	case "203.0.113.200":
		return tcp && (port == 443 || port == 8443)
	case "10.1.2.3":
		return tcp && port == 5432
	case "9.9.9.9":
		return tcp && port == 8443
	case "100.64.0.3", "100.64.0.9", "198.19.0.1":
		return tcp && port == 9000
	}
	return false
}

// TestFramesStayOut sends frames of every kind from the sandbox's link, as a runtime's
// helper that was taken over could. What the rules let through is what raw sockets of
// the gateway get, of every protocol: it must be what the policy permits and no more.
func TestFramesStayOut(t *testing.T) {
	g := newGateway(t, GatewayConfig{Policy: mixed})
	echo(t, g, "0.0.0.0:1")
	echoPackets(t, g, "0.0.0.0:1")
	got := rawSockets(t, g.own)
	outside := packetSocket(t, ownNamespace(t), unix.ETH_P_ALL, 0)
	answers := packetSocket(t, g.sandbox, unix.ETH_P_ALL, sandboxIndex)
	out := sandboxSocket(t, g)

	want := map[uint16]string{}
	n := 0
	for _, dst := range proofAddrs {
		for _, protocol := range proofProtocols {
			for _, port := range proofPorts {
				for _, v := range variants {
					n++
					f := frame{dst: netip.MustParseAddr(dst), protocol: protocol, port: port, id: uint16(n%65535) + 1}
					v.apply(&f)
					name := fmt.Sprintf("%s to %s:%d, protocol %d", v.name, dst, port, protocol)
					if v.ok && permits(dst, protocol, port) {
						want[f.id] = name
					}
					write(t, out, f.bytes())
				}
				if n%20000 < len(variants) { // an id tells frames apart
					checkReached(t, got(), want)
					want = map[uint16]string{}
				}
			}
		}
	}
	for _, b := range append(oddFrames(), fragmented()...) {
		n++
		write(t, out, b)
	}
	checkReached(t, got(), want)
	checkAnswers(t, answers)
	checkOutside(t, outside)
	c, err := g.Counters()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d frames: %+v", n, c)
	if c.Tx.Packets < uint64(n)-100 || c.Spoofed.Packets == 0 || c.Fragments.Packets == 0 || c.Never.Packets == 0 {
		t.Errorf("of %d frames, the counters have %+v", n, c)
	}
}

// write sends a frame that the kernel may refuse to send.
func write(t *testing.T, fd int, b []byte) {
	t.Helper()
	for {
		_, err := unix.Write(fd, b)
		if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EMSGSIZE) {
			return
		}
		if !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
			t.Fatalf("cannot send a frame of %d bytes: %v", len(b), err)
		}
	}
}

func checkReached(t *testing.T, got map[uint16]string, want map[uint16]string) {
	t.Helper()
	for id, what := range got {
		if _, ok := want[id]; !ok {
			t.Errorf("leaked: %s", what)
		}
	}
	for id, name := range want {
		if _, ok := got[id]; !ok {
			t.Errorf("did not arrive: %s", name)
		}
	}
}

// rawSockets opens a socket of each protocol of IPv4 and IPv6 in ns. The function it
// returns gives the packets they have got since it was last called, by their id.
func rawSockets(t *testing.T, ns *os.File) func() map[uint16]string {
	t.Helper()
	var fds []int
	t.Cleanup(func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	})
	families := []int{unix.AF_INET}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err == nil {
		families = append(families, unix.AF_INET6)
	}
	err := within(int(ns.Fd()), func() error {
		for _, family := range families {
			for protocol := 1; protocol < 255; protocol++ {
				fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
				if err != nil {
					return err
				}
				fds = append(fds, fd)
				if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("cannot open raw sockets: %v", err)
	}
	return func() map[uint16]string {
		got := map[uint16]string{}
		buf := make([]byte, 2048)
		for i, fd := range fds {
			for {
				n, _, err := unix.Recvfrom(fd, buf, 0)
				if err != nil {
					break
				}
				if b := buf[:n]; i < 254 && n >= 20 {
					dst := netip.AddrFrom4([4]byte(b[16:20]))
					if b[4] == 0 && b[5] == 0 && permits(dst.String(), b[9], binary.BigEndian.Uint16(b[22:])) {
						continue // the sandbox's kernel resets what it did not begin
					}
					got[binary.BigEndian.Uint16(b[4:])] = fmt.Sprintf("protocol %d from %d.%d.%d.%d to %s: % x", b[9], b[12], b[13], b[14], b[15], dst, b)
				} else {
					got[0] = fmt.Sprintf("IPv6 protocol %d: % x", i-253, b)
				}
			}
		}
		return got
	}
}

// checkAnswers reads what came back on the sandbox's link: nothing but TCP, UDP and
// port unreachable, to the sandbox's own addresses.
func checkAnswers(t *testing.T, fd int) {
	t.Helper()
	n := 0
	packets(fd, func(b []byte, outgoing bool) {
		if outgoing {
			return
		}
		n++
		honest := len(b) >= 34 && [6]byte(b) == sandboxMAC && [6]byte(b[6:]) == gatewayMAC &&
			binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IP && [4]byte(b[30:34]) == SandboxAddr.As4()
		if honest {
			switch b[23] {
			case unix.IPPROTO_TCP, unix.IPPROTO_UDP:
				return
			case unix.IPPROTO_ICMP:
				if len(b) > 35 && b[34] == 3 && b[35] == 3 {
					return
				}
			}
		}
		t.Errorf("the sandbox was sent % x", b)
	})
	if n == 0 {
		t.Error("the sandbox was sent nothing")
	}
}

// checkOutside finds no frame of a sandbox on the links of the caller's namespace.
func checkOutside(t *testing.T, fd int) {
	t.Helper()
	packets(fd, func(b []byte, _ bool) {
		if len(b) >= 30 && ([6]byte(b[6:]) == sandboxMAC || [4]byte(b[26:30]) == SandboxAddr.As4()) {
			t.Errorf("left the gateway: % x", b)
		}
	})
}

// packets calls visit for what a packet socket holds.
func packets(fd int, visit func(b []byte, outgoing bool)) {
	buf := make([]byte, 70000)
	for {
		n, from, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if err != nil {
			return
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		visit(buf[:n], ok && ll.Pkttype == unix.PACKET_OUTGOING)
	}
}

func ownNamespace(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// fragmented is a permitted datagram in two parts, in both orders.
func fragmented() [][]byte {
	var out [][]byte
	for i, order := range [][]int{{0, 1}, {1, 0}} {
		f := frame{dst: netip.MustParseAddr("203.0.113.9"), protocol: unix.IPPROTO_UDP, port: 1053, id: 60001 + uint16(i)}
		whole := f.bytes()
		head, body := whole[:34], whole[34:]
		part := func(offset uint16, body []byte) []byte {
			b := slices.Concat(head, body)
			binary.BigEndian.PutUint16(b[16:], uint16(20+len(body)))
			binary.BigEndian.PutUint16(b[20:], offset)
			binary.BigEndian.PutUint16(b[24:], 0)
			binary.BigEndian.PutUint16(b[24:], checksum(b[14:34]))
			return b
		}
		parts := [][]byte{part(0x2000, body[:8]), part(1, body[8:])}
		for _, n := range order {
			out = append(out, parts[n])
		}
	}
	return out
}

// oddFrames are frames of other protocols, whole, to each kind of MAC address.
func oddFrames() [][]byte {
	var out [][]byte
	macs := [][6]byte{
		gatewayMAC,
		{255, 255, 255, 255, 255, 255},
		{0x33, 0x33, 0, 0, 0, 1},
		{0x33, 0x33, 0xff, 0, 0, 1},
		{1, 0x80, 0xc2, 0, 0, 0},
		{1, 0x80, 0xc2, 0, 0, 0x0e},
	}
	add := func(etherType uint16, body []byte) {
		for _, mac := range macs {
			b := append(mac[:], sandboxMAC[:]...)
			b = binary.BigEndian.AppendUint16(b, etherType)
			out = append(out, append(b, body...))
		}
	}
	for op := byte(1); op <= 4; op++ { // ARP and reverse ARP, for the gateway's and others' addresses
		for _, a := range []string{"100.64.0.1", "100.64.0.2", "198.18.0.7", "9.9.9.9"} {
			body := append([]byte{0, 1, 8, 0, 6, 4, 0, op}, sandboxMAC[:]...)
			body = append(body, SandboxAddr.AsSlice()...)
			body = append(body, gatewayMAC[:]...)
			body = append(body, netip.MustParseAddr(a).AsSlice()...)
			add(unix.ETH_P_ARP, body)
			add(unix.ETH_P_RARP, body)
		}
	}
	for _, dst := range []string{"ff02::1", "ff02::2", "ff02::1:ff00:1", "fe80::1", "::1", "::ffff:203.0.113.9", "64:ff9b::203.0.113.9", "fd00:ec2::254", "2001:db8::1", "::"} {
		for _, next := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6, unix.IPPROTO_HOPOPTS, unix.IPPROTO_FRAGMENT, unix.IPPROTO_ROUTING, unix.IPPROTO_IPIP, unix.IPPROTO_IPV6} {
			for _, kind := range []byte{128, 133, 134, 135, 136, 137, 143} { // echo, RS, RA, NS, NA, redirect, MLD
				if next != unix.IPPROTO_ICMPV6 && kind != 128 {
					continue
				}
				body := append([]byte{0x60, 0, 0, 0, 0, 24, next, 255}, netip.MustParseAddr("fe80::2").AsSlice()...)
				body = append(body, netip.MustParseAddr(dst).AsSlice()...)
				body = append(body, kind, 0, 1, 187, 0, 0, 0, 1)
				add(unix.ETH_P_IPV6, append(body, make([]byte, 16)...))
			}
		}
	}
	dhcp := frame{dst: netip.MustParseAddr("255.255.255.255"), src: netip.IPv4Unspecified(), protocol: unix.IPPROTO_UDP, port: 67}
	add(unix.ETH_P_IP, dhcp.packet())
	for _, etherType := range []uint16{0x88a8, unix.ETH_P_8021Q, 0x88cc, 0x888e, 0x8863, 0x8864, 0x8847, 0x88f7, 0x6558, 0x9000, 0xffff, 39} {
		inner := frame{dst: netip.MustParseAddr("203.0.113.9"), protocol: unix.IPPROTO_TCP, port: 443}
		add(etherType, inner.packet())
		add(etherType, append([]byte{0, 0, 8, 0}, inner.packet()...))
	}
	return out
}

// TestNothingPassesDuringSetUp floods the link from the moment that it exists.
func TestNothingPassesDuringSetUp(t *testing.T) {
	requireRoot(t)
	cfg := GatewayConfig{Policy: mixed, MTU: defaultMTU}
	s, err := cfg.check()
	if err != nil {
		t.Fatal(err)
	}
	var forbidden, allowed [][]byte
	for i, v := range variants {
		f := frame{dst: netip.MustParseAddr("203.0.113.9"), protocol: unix.IPPROTO_UDP, port: 1053, id: 1000 + uint16(i)}
		v.apply(&f)
		if v.ok {
			f.id = 1
			allowed = append(allowed, f.bytes())
			f.port = 2001
			f.id = 2000 + uint16(i)
		}
		forbidden = append(forbidden, f.bytes())
	}
	frames := slices.Concat(forbidden, allowed)
	for i := range 20 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			g := &Gateway{}
			defer g.Close()
			var reached func() map[uint16]string
			var count atomic.Int64
			err := within(int(ownNamespace(t).Fd()), func() error {
				r, err := g.enter()
				defer r.close()
				if err != nil {
					return err
				}
				reached = rawSockets(t, g.own)
				var stop atomic.Bool
				done := make(chan struct{})
				go func() {
					defer close(done)
					flood(t, g.sandbox, frames, &stop, &count)
				}()
				err = g.furnish(r, s, cfg)
				if err == nil {
					err = until(func() error {
						c, err := g.Counters()
						if err == nil && c.Tx.Packets < uint64(4*len(frames)) {
							err = fmt.Errorf("the guard saw too little: %+v", c)
						}
						return err
					})
				}
				stop.Store(true)
				<-done
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			got := reached()
			delete(got, 1)
			checkReached(t, got, nil)
			t.Logf("%d frames sent", count.Load())
		})
	}
}

// flood sets the sandbox's end up by itself, as root there could, and sends.
func flood(t *testing.T, sandbox *os.File, frames [][]byte, stop *atomic.Bool, count *atomic.Int64) {
	err := within(int(sandbox.Fd()), func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		bound := false
		for i := 0; !stop.Load(); i++ {
			if !bound {
				up(fd)
				bound = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0, Ifindex: sandboxIndex}) == nil
				continue
			}
			if _, err := unix.Write(fd, frames[i%len(frames)]); err == nil {
				count.Add(1)
			} else if errors.Is(err, unix.ENETDOWN) {
				up(fd)
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("cannot flood: %v", err)
	}
}

func up(fd int) {
	if req, err := unix.NewIfreq(sandboxLink); err == nil {
		req.SetUint16(unix.IFF_UP)
		unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
	}
}

// TestCountersAreTheCapture compares the counters with a capture on the gateway's link.
func TestCountersAreTheCapture(t *testing.T) {
	for _, upload := range []bool{true, false} {
		g := newGateway(t, GatewayConfig{Policy: mixed})
		fd := packetSocket(t, g.own, unix.ETH_P_ALL, gatewayIndex)
		var tx, rx, count uint64
		capture := func() {
			buf := make([]byte, 64)
			for {
				n, from, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
				if err != nil {
					return
				}
				count++
				if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
					rx += uint64(n) - 14
				} else {
					tx += uint64(n) - 14
				}
			}
		}
		for range 8 {
			transfer(t, g, 4<<20, upload)
			capture()
		}
		talk(g, "tcp", "9.9.9.9:80")
		last := quiet(t, g)
		capture()
		if stats, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err != nil || stats.Drops > 0 {
			t.Fatalf("the capture lost %d frames: %v", stats.Drops, err)
		}
		t.Logf("%d packets; sent: %d counted, %d captured; received: %d counted, %d captured", count, last.Tx.Bytes, tx, last.Rx.Bytes, rx)
		if !near(last.Tx.Bytes, tx) || !near(last.Rx.Bytes, rx) {
			t.Errorf("counted %d and %d, captured %d and %d", last.Tx.Bytes, last.Rx.Bytes, tx, rx)
		}
	}
}

func near(a, b uint64) bool { return a*100 >= b*99 && b*100 >= a*99 }
