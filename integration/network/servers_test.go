package network

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// ports on which every address of the far side answers, over tcp and udp.
var ports = []uint16{1, 22, 25, 53, 80, 443, 3128, 3306, 5432, 6379, 8080, 9100}

// Ports for many bytes: the first line says how many.
const (
	sinkPort   = 7000
	sourcePort = 7001
)

func (w *world) serveInternet(t testing.TB) {
	t.Helper()
	for _, port := range append([]uint16{sinkPort, sourcePort}, ports...) {
		var l net.Listener
		var u *net.UDPConn
		w.internet.do(t, func() (err error) {
			if l, err = net.Listen("tcp", fmt.Sprintf("[::]:%d", port)); err != nil {
				return err
			}
			u, err = listenPacket(port)
			return err
		})
		t.Cleanup(func() { l.Close(); u.Close() })
		go accept(l, func(c net.Conn) { w.serveConn(c, port) })
		go w.serveDatagrams(u, port)
	}
}

func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go serve(c)
	}
}

func (w *world) serveConn(c net.Conn, port uint16) {
	local := c.LocalAddr().(*net.TCPAddr).AddrPort()
	addr := local.Addr().Unmap()
	switch {
	case addr == webAddr && (port == 80 || port == 443):
		w.web.serve(c, port == 443)
		return
	case addr == dnsAddr && port == 53:
		w.dns.serveConn(c)
	case port == sinkPort || port == sourcePort:
		moveBytes(c, port == sinkPort)
	case port == 22:
		fmt.Fprintf(c, "SSH-2.0-far %s\r\n", addr)
		io.Copy(io.Discard, c)
	default:
		echo(c, fmt.Sprintf("far %s", netip.AddrPortFrom(addr, port)))
	}
	c.Close()
}

// echo answers each line with the same words.
func echo(c net.Conn, words string) {
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		if _, err := fmt.Fprintln(c, words); err != nil {
			return
		}
	}
}

func moveBytes(c net.Conn, sink bool) {
	r := bufio.NewReaderSize(c, 256<<10)
	line, err := r.ReadString('\n')
	if err != nil {
		return
	}
	size, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return
	}
	if sink {
		if _, err := io.CopyN(io.Discard, r, size); err == nil {
			c.Write([]byte{0})
		}
		return
	}
	io.CopyN(c, zeros{}, size)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// listenPacket makes a socket that learns where each datagram was sent to.
func listenPacket(port uint16) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		var err error
		return errors.Join(rc.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1) }), err)
	}}
	p, err := lc.ListenPacket(context.Background(), "udp4", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
		return nil, err
	}
	return p.(*net.UDPConn), nil
}

// serveDatagrams answers from where each datagram went.
func (w *world) serveDatagrams(u *net.UDPConn, port uint16) {
	buf, oob := make([]byte, 64<<10), make([]byte, 64)
	for {
		n, oobn, _, from, err := u.ReadMsgUDPAddrPort(buf, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		const header = unix.SizeofCmsghdr
		if err != nil || oobn < header+12 {
			continue
		}
		to := netip.AddrFrom4([4]byte(oob[header+8:]))
		clear(oob[header : header+4])                         // by whichever link
		copy(oob[header+4:header+8], oob[header+8:header+12]) // from that address
		answer := fmt.Appendf(nil, "far %s", netip.AddrPortFrom(to, port))
		if to == dnsAddr && port == 53 {
			answer = w.dns.respond(buf[:n])
		}
		u.WriteMsgUDPAddrPort(answer, oob[:oobn], from)
	}
}

// visits are connections and datagrams that came where none must.
type visits struct {
	mu   sync.Mutex
	came []string
}

func (v *visits) add(words string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.came = append(v.came, words)
}

func (v *visits) list() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.came
}

// servicePort is of a service of the host that may be granted.
const servicePort = 9200

// serveHost runs services on every address of the host, which nobody may reach.
func (w *world) serveHost(t testing.TB) {
	t.Helper()
	for _, port := range append([]uint16{servicePort}, ports...) {
		var l net.Listener
		var u *net.UDPConn
		w.host.do(t, func() (err error) {
			if l, err = net.Listen("tcp", fmt.Sprintf("[::]:%d", port)); err != nil {
				return err
			}
			u, err = listenPacket(port)
			return err
		})
		t.Cleanup(func() { l.Close(); u.Close() })
		go accept(l, func(c net.Conn) {
			if port != servicePort {
				w.visits.add(fmt.Sprintf("tcp %v", c.LocalAddr()))
			}
			echo(c, "a service of the host")
			c.Close()
		})
		go func() {
			for {
				buf := make([]byte, 1500)
				if _, from, err := u.ReadFromUDPAddrPort(buf); err == nil {
					w.visits.add(fmt.Sprintf("udp port %d from %v", port, from))
				} else if errors.Is(err, net.ErrClosed) {
					return
				}
			}
		}()
	}
}
