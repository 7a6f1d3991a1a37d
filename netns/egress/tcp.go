package egress

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/direct-oci/engine/netns"
	"golang.org/x/sys/unix"
)

// accept serves a listener until it is closed.
func (s *Server) accept(l net.Listener, serve func(*session, net.Conn)) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, or the client has gone already
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(5 * time.Millisecond):
			}
			continue
		}
		sess := s.begin("tcp", s.rules.Load().policy.Limits.Connections, c)
		if sess == nil {
			s.overLimit(c)
			continue
		}
		s.wg.Go(func() {
			defer sess.end()
			serve(sess, c)
		})
	}
}

// overLimit refuses a connection that is one too many.
func (s *Server) overLimit(c net.Conn) {
	t := s.targetOf(localAddr(c), "tcp", "transparent")
	reset(c)
	if s.ctx.Err() == nil {
		s.ledger.record(t.decision(ruleLimit, "too many connections, or too many in a second"))
	}
}

// serveTransparent carries a connection to where the sandbox dialled.
func (s *Server) serveTransparent(sess *session, c net.Conn) {
	counts, err := sess.dial(s.targetOf(localAddr(c), "tcp", "transparent"))
	if err != nil {
		reset(c)
		return
	}
	s.tunnel(sess, nil, counts)
}

// targetOf is what the sandbox means by an address: the name it stands for, or itself.
func (s *Server) targetOf(a netip.AddrPort, proto, route string) target {
	t := target{addr: a.Addr(), port: a.Port(), proto: proto, route: route}
	if netns.Synthetic.Contains(a.Addr()) {
		if name, ok := s.names.name(a.Addr()); ok {
			t.host, t.addr = name, netip.Addr{}
		}
	}
	return t
}

// tunnel moves bytes between the two ends of a session until both have finished.
// first is what the client has said already.
func (s *Server) tunnel(sess *session, first []byte, counts *traffic) {
	last := &atomic.Int64{}
	last.Store(time.Now().UnixNano())
	out := &pump{s: s, dst: sess.up, src: sess.client, way: send, count: &counts.tx, last: last}
	in := &pump{s: s, dst: sess.client, src: sess.up, way: receive, count: &counts.rx, last: last}
	done := make(chan struct{})
	s.wg.Go(func() {
		defer close(done)
		if !in.run() {
			sess.kill()
		}
	})
	if !s.firstFlight(sess, out, first) || !out.run() {
		sess.kill()
	}
	<-done
}

// pump moves the bytes of one direction.
type pump struct {
	s        *Server
	dst, src net.Conn
	way      direction
	count    *atomic.Int64
	last     *atomic.Int64 // time of the last byte in either direction, shared by both
}

const (
	minChunk = 64 << 10
	maxChunk = 4 << 20
	maxTick  = 2 * time.Second
	maxGap   = 100 * time.Millisecond // of a stream; a longer one ends the chunk
)

// run moves bytes until src ends, and tells dst. It returns false when the session
// must be cut: an error, a limit, or silence for too long.
//
// Bytes go in chunks, which the kernel moves by itself from socket to socket. A
// session that is silent holds no buffer, and its bytes have all been counted.
func (p *pump) run() bool {
	for chunk := int64(minChunk); ; {
		idle := p.s.rules.Load().policy.Limits.Idle
		if err := waitReadable(p.src, min(max(idle/4, time.Millisecond), maxTick)); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) && time.Since(time.Unix(0, p.last.Load())) < idle {
				continue
			}
			return false
		}
		size := p.s.gate.reserve(p.way, chunk)
		if size == 0 {
			return false
		}
		began := time.Now()
		p.src.SetReadDeadline(began.Add(min(idle, maxGap)))
		p.dst.SetWriteDeadline(began.Add(idle))
		n, err := io.Copy(p.dst, &io.LimitedReader{R: p.src, N: size})
		p.account(n, size)
		took := time.Since(began)
		switch {
		case err == nil && n < size:
			return closeWrite(p.dst) == nil
		case err == nil && took < maxGap:
			chunk = min(2*chunk, maxChunk)
		case err == nil:
			chunk = max(chunk/2, minChunk)
		case !errors.Is(err, os.ErrDeadlineExceeded) || took >= idle: // dst takes no bytes
			return false
		}
	}
}

// waitReadable waits until a read from c would not block.
func waitReadable(c net.Conn, atMost time.Duration) error {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	c.SetReadDeadline(time.Now().Add(atMost))
	var one [1]byte
	return raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err != unix.EAGAIN && err != unix.EINTR
	})
}

func closeWrite(c net.Conn) error {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// account notes that n bytes of the size reserved were moved.
func (p *pump) account(n, size int64) {
	p.s.gate.release(p.way, size-n)
	if n > 0 {
		p.count.Add(n)
		p.last.Store(time.Now().UnixNano())
	}
}

// write sends b within the limits of the run.
func (p *pump) write(b []byte) error {
	for len(b) > 0 {
		size := p.s.gate.reserve(p.way, int64(len(b)))
		if size == 0 {
			return errors.New("no bytes left")
		}
		p.dst.SetWriteDeadline(time.Now().Add(p.s.rules.Load().policy.Limits.Idle))
		n, err := p.dst.Write(b[:size])
		p.account(int64(n), size)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
