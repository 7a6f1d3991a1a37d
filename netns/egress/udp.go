package egress

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/direct-oci/engine/netns"
)

const (
	udpIdle   = time.Minute
	udpQueue  = 64 // datagrams that wait for a flow's connection
	maxPacket = 64 << 10
)

// flow is the sandbox's port and where it sends to.
type flow struct{ from, to netip.AddrPort }

// udpFlow carries the datagrams of one flow.
type udpFlow struct {
	queue chan []byte // from the sandbox
}

// receiveUDP serves the socket that gets every permitted datagram, until it is closed.
func (s *Server) receiveUDP(u *net.UDPConn) {
	buf := make([]byte, maxPacket)
	oob := make([]byte, 256)
	for {
		n, oobn, _, from, err := u.ReadMsgUDPAddrPort(buf, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		to, err := netns.OriginalDestination(oob[:oobn])
		if err != nil {
			continue
		}
		s.datagram(flow{from, to}, buf[:n])
	}
}

// datagram hands a datagram to its flow, and begins one if there is none. A flow
// that cannot keep up loses datagrams, as on any network.
func (s *Server) datagram(f flow, b []byte) {
	s.mu.Lock()
	u, ok := s.flows[f]
	s.mu.Unlock()
	if !ok {
		sess := s.begin(nil)
		if sess == nil {
			if s.ctx.Err() == nil {
				s.ledger.record(s.targetOf(f.to, "udp", "transparent").decision(ruleLimit, "too many flows, or too many in a second"))
			}
			return
		}
		u = &udpFlow{queue: make(chan []byte, udpQueue)}
		s.mu.Lock()
		s.flows[f] = u
		s.mu.Unlock()
		s.wg.Go(func() {
			defer sess.end()
			defer s.forget(f)
			s.serveFlow(sess, f, u)
		})
	}
	select {
	case u.queue <- slices.Clone(b):
	default:
	}
}

func (s *Server) forget(f flow) {
	s.mu.Lock()
	delete(s.flows, f)
	s.mu.Unlock()
}

// serveFlow connects a flow and carries it until it is silent for a while.
func (s *Server) serveFlow(sess *session, f flow, u *udpFlow) {
	counts, err := sess.dial(s.targetOf(f.to, "udp", "transparent"))
	if err != nil {
		return
	}
	back, err := s.listenUDP(f.to.String()) // answers come from where the sandbox sent to
	if err != nil || !sess.setClient(back) {
		return
	}
	done := make(chan struct{})
	s.wg.Go(func() {
		defer close(done)
		s.flowBack(sess, back, f, counts)
		sess.kill()
	})
	s.flowOut(sess, u, counts, done)
	sess.kill()
	<-done
}

func (s *Server) flowOut(sess *session, u *udpFlow, counts *traffic, done <-chan struct{}) {
	for {
		select {
		case b := <-u.queue:
			size := int64(len(b))
			if s.gate.reserve(send, size) < size {
				return
			}
			counts.tx.Add(size) // first, so that an answer never comes before its question is counted
			if _, err := sess.up.Write(b); err != nil {
				counts.tx.Add(-size)
				s.gate.release(send, size)
				if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EMSGSIZE) {
					continue // of an earlier datagram, or too long for the host's network
				}
				return
			}
			sess.up.SetReadDeadline(time.Now().Add(udpIdle))
		case <-done:
			return
		}
	}
}

func (s *Server) flowBack(sess *session, back *net.UDPConn, f flow, counts *traffic) {
	buf := make([]byte, maxPacket)
	sess.up.SetReadDeadline(time.Now().Add(udpIdle))
	for {
		n, err := sess.up.Read(buf)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			continue // nobody listens there; the sandbox may try again
		case err != nil:
			return
		}
		size := int64(n)
		if s.gate.reserve(receive, size) < size {
			return
		}
		counts.rx.Add(size)
		if _, err := back.WriteToUDPAddrPort(buf[:n], f.from); err != nil {
			return
		}
		sess.up.SetReadDeadline(time.Now().Add(udpIdle))
	}
}
