package egress

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
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
	sess  *session
	queue chan []byte  // from the sandbox
	last  atomic.Int64 // time of its last datagram
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
		if u = s.newFlow(f); u == nil {
			return
		}
	}
	u.last.Store(time.Now().UnixNano())
	select {
	case u.queue <- slices.Clone(b):
	default:
	}
}

// newFlow begins a flow. A program that uses a new port for each question makes
// many, so the one that has been silent for longest gives way to a new one.
func (s *Server) newFlow(f flow) *udpFlow {
	limit := s.rules.Load().policy.Limits.Connections
	s.mu.Lock()
	var oldest flow
	var old *udpFlow
	for g, u := range s.flows {
		if old == nil || u.last.Load() < old.last.Load() {
			oldest, old = g, u
		}
	}
	if len(s.flows) >= limit {
		delete(s.flows, oldest)
	} else {
		old = nil
	}
	s.mu.Unlock()
	if old != nil {
		old.sess.kill()
	}
	sess := s.begin("udp", 2*limit, nil) // those that gave way may not have ended yet
	if sess == nil {
		if s.ctx.Err() == nil {
			s.ledger.record(s.targetOf(f.to, "udp", "transparent").decision(ruleLimit, "too many new flows in a second"))
		}
		return nil
	}
	u := &udpFlow{sess: sess, queue: make(chan []byte, udpQueue)}
	s.mu.Lock()
	s.flows[f] = u
	s.mu.Unlock()
	s.wg.Go(func() {
		defer sess.end()
		s.serveFlow(sess, f, u)
		s.mu.Lock()
		if s.flows[f] == u {
			delete(s.flows, f)
		}
		s.mu.Unlock()
	})
	return u
}

// serveFlow connects a flow and carries it until it is silent for a while.
func (s *Server) serveFlow(sess *session, f flow, u *udpFlow) {
	counts, err := sess.dial(s.targetOf(f.to, "udp", "transparent"))
	if err != nil {
		s.refuse(f)
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

// refuse tells the sandbox that its datagram went nowhere. If that is lost, the program
// waits as on any network.
func (s *Server) refuse(f flow) {
	if s.ctx.Err() == nil {
		s.gw.RefuseDatagram(f.from, f.to)
	}
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
			s.refuse(f) // nobody listens there
			continue
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
