package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	dnsPort = 53
	dnsTTL  = 60 // seconds; an address stands for its name as long as the run lives

	maxQuery      = 4096 // bytes; a real one is below 512
	maxUDPPayload = 1232 // what EDNS offers
	dnsIdle       = 10 * time.Second
	maxLookups    = 64 // on the host, at once, in internet mode
)

// verdict is what DNS says about a name.
type verdict int

const (
	nameDenied  verdict = iota // NXDOMAIN: at once final for every resolver
	nameAllowed                // it has a synthetic address
	nameLocal                  // the sandbox itself
	nameUnknown                // the host must be asked whether it exists
	nameFailed                 // SERVFAIL
)

// judgeName decides about a look-up without asking anyone.
func (s *Server) judgeName(unsafeName string) (name string, v verdict, d Decision) {
	t := target{proto: "dns", port: dnsPort, route: "dns"}
	name, err := Canonical(unsafeName)
	if err != nil || !isASCII(unsafeName) {
		t.host = printable(unsafeName)
		return "", nameDenied, t.decision(ruleBroken, "it is not a host name")
	}
	t.host = name
	if isLocalhost(name) {
		return name, nameLocal, Decision{}
	}
	r := s.rules.Load()
	if _, ok := r.nameRule(name, 0); ok {
		return name, nameAllowed, Decision{}
	}
	if r.policy.Internet {
		return name, nameUnknown, Decision{}
	}
	return name, nameDenied, t.decision(ruleNone, "no rule allows "+name)
}

// printable is a bounded text of a name that is none.
func printable(s string) string {
	if len(s) > maxName {
		s = s[:maxName]
	}
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f {
			return '?'
		}
		return r
	}, s)
}

// query is a parsed question with what its answer has to repeat.
type query struct {
	header   dnsmessage.Header
	question dnsmessage.Question
	edns     bool
	version  uint8
}

// parseQuery reads a message. With ok false, rcode is the answer, and without a
// header there is none.
func parseQuery(msg []byte) (q query, rcode dnsmessage.RCode, ok bool) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.Response {
		return query{}, 0, false
	}
	q.header = h
	if h.OpCode != 0 {
		return q, dnsmessage.RCodeNotImplemented, false
	}
	if len(msg) > maxQuery || binary.BigEndian.Uint16(msg[4:]) != 1 {
		return q, dnsmessage.RCodeFormatError, false
	}
	if q.question, err = p.Question(); err != nil || p.SkipAllQuestions() != nil || p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, dnsmessage.RCodeFormatError, false
	}
	for {
		rh, err := p.AdditionalHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return q, 0, true
		}
		if err != nil || rh.Type == dnsmessage.TypeOPT && q.edns || p.SkipAdditional() != nil {
			return q, dnsmessage.RCodeFormatError, false
		}
		if rh.Type == dnsmessage.TypeOPT {
			q.edns, q.version = true, uint8(rh.TTL>>16)
		}
	}
}

// respond returns the answer to a message, nil for none. It asks the host for names
// only where the policy is everything public.
func (s *Server) respond(ctx context.Context, msg []byte) []byte {
	q, rcode, ok := parseQuery(msg)
	if !ok {
		if q.header == (dnsmessage.Header{}) {
			return nil
		}
		return q.answer(rcode, netip.Addr{})
	}
	name, v, d := s.judgeName(q.question.Name.String())
	if q.question.Class != dnsmessage.ClassINET {
		v, d = nameDenied, Decision{Route: "dns", Host: printable(q.question.Name.String()), Port: dnsPort, Proto: "dns", Rule: ruleBroken, Why: "it is not of class IN", Count: 1}
	}
	if v == nameUnknown {
		v, d = s.askHost(ctx, name, q.question.Type)
	}
	switch v {
	case nameLocal:
		return q.answer(dnsmessage.RCodeSuccess, loopbackFor(q.question.Type))
	case nameAllowed:
		if q.question.Type != dnsmessage.TypeA {
			return q.answer(dnsmessage.RCodeSuccess, netip.Addr{})
		}
		addr, ok := s.names.addr(name)
		if !ok {
			s.ledger.record(Decision{Route: "dns", Host: name, Port: dnsPort, Proto: "dns", Rule: ruleLimit, Why: "too many different names", Count: 1})
			return q.answer(dnsmessage.RCodeNameError, netip.Addr{})
		}
		return q.answer(dnsmessage.RCodeSuccess, addr)
	case nameFailed:
		return q.answer(dnsmessage.RCodeServerFailure, netip.Addr{})
	default:
		if d.Rule != "" {
			s.ledger.record(d)
		}
		return q.answer(dnsmessage.RCodeNameError, netip.Addr{})
	}
}

func loopbackFor(t dnsmessage.Type) netip.Addr {
	switch t {
	case dnsmessage.TypeA:
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case dnsmessage.TypeAAAA:
		return netip.IPv6Loopback()
	default:
		return netip.Addr{}
	}
}

// askHost tells whether a name exists that no rule names, when everything public
// is allowed. A name with nothing but closed addresses does not exist for the sandbox.
func (s *Server) askHost(ctx context.Context, name string, kind dnsmessage.Type) (verdict, Decision) {
	if kind != dnsmessage.TypeA {
		return nameAllowed, Decision{} // an empty answer, whether it exists or not
	}
	addrs, err := s.cache.lookup(ctx, name)
	var dnsErr *net.DNSError
	switch {
	case errors.As(err, &dnsErr) && dnsErr.IsNotFound:
		return nameDenied, Decision{}
	case err != nil:
		return nameFailed, Decision{}
	}
	r := s.rules.Load()
	t := target{host: name, port: dnsPort, proto: "dns", route: "dns"}
	d := t.decision(ruleNone, name+" has no address")
	for _, a := range addrs {
		closed, isClosed, err := s.own.closedNow(a)
		if err != nil {
			return nameFailed, Decision{}
		}
		if !isClosed || r.opensClosed(closed, a) {
			return nameAllowed, Decision{}
		}
		d = t.decision(closed.rule, name+" resolves to "+a.String()+", which is "+closed.what)
		d.Addr = a
	}
	return nameDenied, d
}

// opensClosed tells whether some rule opens a closed address, whatever the port.
func (r *rules) opensClosed(c closedRange, addr netip.Addr) bool {
	for _, rule := range r.policy.CIDRs {
		if rule.Prefix.Contains(addr) && c.opens(rule.Prefix) {
			return true
		}
	}
	return false
}

// answer builds a response with at most one address.
func (q query) answer(rcode dnsmessage.RCode, addr netip.Addr) []byte {
	badVersion := q.edns && q.version != 0
	if badVersion {
		rcode, addr = 0, netip.Addr{}
	}
	b := dnsmessage.NewBuilder(make([]byte, 0, 512), dnsmessage.Header{
		ID: q.header.ID, Response: true, OpCode: q.header.OpCode, RCode: rcode,
		RecursionDesired: q.header.RecursionDesired, RecursionAvailable: true,
	})
	b.EnableCompression()
	if q.question.Name.Length > 0 {
		if b.StartQuestions() != nil || b.Question(q.question) != nil {
			return nil
		}
	}
	if addr.IsValid() {
		rh := dnsmessage.ResourceHeader{Name: q.question.Name, Class: dnsmessage.ClassINET, TTL: dnsTTL}
		err := b.StartAnswers()
		if addr.Is4() {
			err = errors.Join(err, b.AResource(rh, dnsmessage.AResource{A: addr.As4()}))
		} else {
			err = errors.Join(err, b.AAAAResource(rh, dnsmessage.AAAAResource{AAAA: addr.As16()}))
		}
		if err != nil {
			return nil
		}
	}
	if q.edns {
		var rh dnsmessage.ResourceHeader
		full := rcode
		if badVersion {
			full = 16 // BADVERS
		}
		if rh.SetEDNS0(maxUDPPayload, full, false) != nil || b.StartAdditionals() != nil || b.OPTResource(rh, dnsmessage.OPTResource{}) != nil {
			return nil
		}
	}
	msg, err := b.Finish()
	if err != nil {
		return nil
	}
	return msg
}

// serveDNS answers the queries of one TCP connection.
func (s *Server) serveDNS(c net.Conn) {
	buf := make([]byte, 2+maxQuery)
	for {
		c.SetDeadline(time.Now().Add(dnsIdle))
		if _, err := io.ReadFull(c, buf[:2]); err != nil {
			return
		}
		size := int(binary.BigEndian.Uint16(buf))
		if size > maxQuery || !s.gate.newQuery() {
			return
		}
		if _, err := io.ReadFull(c, buf[2:2+size]); err != nil {
			return
		}
		answer := s.respond(s.ctx, buf[2:2+size])
		if answer == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// receiveDNS answers the queries that come to a socket until it is closed.
func (s *Server) receiveDNS(u *net.UDPConn) {
	buf := make([]byte, maxQuery+1)
	for {
		n, from, err := u.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && s.gate.newQuery() {
			s.answerPacket(u, buf[:n], from)
		}
	}
}

// answerPacket answers one query, beside the others if the host has to be asked.
func (s *Server) answerPacket(u *net.UDPConn, msg []byte, from netip.AddrPort) {
	reply := func(msg []byte) {
		if answer := s.respond(s.ctx, msg); answer != nil {
			u.WriteToUDPAddrPort(answer, from)
		}
	}
	if !s.rules.Load().policy.Internet {
		reply(msg)
		return
	}
	select {
	case s.lookups <- struct{}{}:
	default:
		return // the client asks again
	}
	msg = slices.Clone(msg)
	s.wg.Go(func() {
		defer func() { <-s.lookups }()
		reply(msg)
	})
}
