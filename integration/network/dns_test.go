package network

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

// records are the names of the far side. What a name resolves to is up to whoever owns
// it, so some of them point to where nobody may go.
var records = map[string][]string{
	"ok.test":       {"203.0.113.10"},
	"ssh.test":      {"203.0.113.11"},
	"denied.test":   {"203.0.113.66"},
	"web.test":      {"203.0.113.80"},
	"other.test":    {"203.0.113.80"},
	"wild.test":     {"198.51.100.6"},
	"a.wild.test":   {"198.51.100.7"},
	"b.a.wild.test": {"198.51.100.7"},
	"mixed.test":    {"10.1.2.3", "203.0.113.12"},
	"private.test":  {"10.1.2.3"},
	"shared.test":   {"100.100.1.1"},
	"meta.test":     {"169.254.169.254"},
	"link.test":     {"169.254.7.7"},
	"loop.test":     {"127.0.0.1"},
	"host.test":     {"203.0.113.1"},
	"inside.test":   {"10.9.9.9"},
	"gateway.test":  {"100.64.0.1"},
	"six.test":      {"2001:db8::9"},
	"ula.test":      {"fd00::1"},
	"meta6.test":    {"fd00:ec2::254"},
	"mapped.test":   {"::ffff:10.1.2.3"},
	"nat64.test":    {"64:ff9b::a01:203"},
	"own6.test":     {"2001:db8:1::1"},
}

// rebind.test is public at first, and then not.
const rebinding = "rebind.test"

// dnsServer plays all of DNS.
type dnsServer struct {
	mu     sync.Mutex
	asked  []string
	rebind int
}

func newDNS() *dnsServer { return &dnsServer{} }

// queries are the names that were asked for, each once, in order.
func (d *dnsServer) queries() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(d.asked)))
}

func (d *dnsServer) addresses(name string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, name)
	if name != rebinding {
		return records[name]
	}
	d.rebind++ // for A, and for AAAA
	if d.rebind <= 2 {
		return []string{"203.0.113.13"}
	}
	return []string{"10.1.2.3"}
}

func (d *dnsServer) respond(msg []byte) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	addrs := d.addresses(name)
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: h.ID, Response: true, RecursionDesired: true, RecursionAvailable: true},
		Questions: []dnsmessage.Question{q},
	}
	if addrs == nil {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range addrs {
		rh := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 0}
		switch addr := netip.MustParseAddr(a); {
		case addr.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: rh, Body: &dnsmessage.AResource{A: addr.As4()}})
		case addr.Is6() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: rh, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
	answer, err := m.Pack()
	if err != nil {
		return nil
	}
	return answer
}

func (d *dnsServer) serveConn(c net.Conn) {
	var size [2]byte
	for {
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		msg := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, msg); err != nil {
			return
		}
		answer := d.respond(msg)
		c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
	}
}
