package egress

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// patience is how long the first bytes of a connection are held back on a port
// that is not the web's, when they may yet become a request.
const patience = 500 * time.Millisecond

var buffers = sync.Pool{New: func() any { return new([16 << 10]byte) }}

// firstFlight sends on what the client says first, once it is known to name the
// host that was dialled. It returns false when the session must be cut.
//
// The other direction flows meanwhile, so a protocol in which the server speaks
// first is not held up. Addresses, and names that any rule but a name's allows, have
// no name to compare with.
func (s *Server) firstFlight(sess *session, out *pump, first []byte) bool {
	t := sess.target
	if _, named := s.rules.Load().nameRule(t.host, t.port); t.host == "" || !named {
		return len(first) == 0 || out.write(first) == nil
	}
	array := buffers.Get().(*[16 << 10]byte)
	defer buffers.Put(array)
	buf := append(array[:0], first...)
	for {
		err := witness(buf, t.host, t.port)
		switch {
		case err == nil:
			return len(buf) == 0 || out.write(buf) == nil
		case !errors.Is(err, errMore):
			s.ledger.record(t.decision(ruleWitness, err.Error()))
			return false
		}
		open := !looksTLS(buf) && looksHTTP(buf) == maybe // it may be no request at all
		wait := s.rules.Load().policy.Limits.Idle
		if open && len(buf) > 0 && !isWebPort(t.port) {
			wait = min(wait, patience)
		}
		sess.client.SetReadDeadline(time.Now().Add(wait))
		if len(buf) == cap(buf) {
			buf = append(make([]byte, 0, 2*cap(buf)), buf...)
		}
		n, err := sess.client.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		silent := errors.Is(err, os.ErrDeadlineExceeded)
		switch {
		case n > 0:
		case !silent || len(buf) > 0 && wait == patience: // the end, which out.run finds again, or another protocol
			return open && (len(buf) == 0 || out.write(buf) == nil)
		case time.Since(time.Unix(0, out.last.Load())) >= wait:
			return false
		}
	}
}

func isWebPort(port uint16) bool {
	return port == 80 || port == 443 || port == 8080 || port == 8443
}

// witness compares the host that the first bytes of a connection name with the one
// that was dialled: TLS by its server name, HTTP by its Host. Other protocols name
// none, and pass. It returns errMore while it cannot tell.
func witness(b []byte, host string, port uint16) error {
	// SECURITY: a client that dialled an allowed name cannot name another host in TLS
	// or HTTP, where shared servers would serve it that one.
	// Holds because: the bytes are held back until this returns nil, for every route.
	// Not covered: later requests on the same connection, HTTP/2 without TLS, an
	// encrypted ClientHello whose outer name is the allowed one, and whatever a server
	// behind the allowed name forwards. Checked by: TestWitness.
	if looksTLS(b) {
		name, err := helloName(b)
		switch {
		case errors.Is(err, errMore):
			return err
		case err != nil:
			return fmt.Errorf("the client's TLS greeting for %s is malformed", host)
		case name == "" && port != 443:
			return nil // plain services over TLS often have clients that send none
		case name == "":
			return fmt.Errorf("the client's TLS greeting names no server; it must name %s", host)
		}
		if got, err := Canonical(name); err != nil || got != host {
			return fmt.Errorf("the client dialled %s and named another host in TLS", host)
		}
		return nil
	}
	switch looksHTTP(b) {
	case no:
		return nil
	case maybe:
		return errMore
	case yes:
	}
	for len(b) > 0 && (b[0] == '\r' || b[0] == '\n') {
		b = b[1:]
	}
	h, _, err := parseHead(b)
	if errors.Is(err, errMore) {
		return err
	}
	if err != nil {
		return fmt.Errorf("the client's HTTP request to %s is malformed: %w", host, err)
	}
	return witnessHTTP(h, host, port)
}

func witnessHTTP(h head, host string, port uint16) error {
	if !strings.HasPrefix(h.target, "/") && h.target != "*" && !isWebPort(port) {
		return nil // the allowed service is a proxy, and what it serves is its owner's matter
	}
	if !h.hasHost && strings.HasPrefix(h.target, "/") {
		return nil
	}
	mismatch := fmt.Errorf("the client dialled %s and named another host in HTTP", host)
	if h.hasHost && !sameHost(h.host, host, port) {
		return mismatch
	}
	if rest, ok := cutScheme(h.target); ok {
		authority, _, _ := strings.Cut(rest, "/")
		if !sameHost(authority, host, port) {
			return mismatch
		}
	} else if h.method == "CONNECT" && !sameHost(h.target, host, port) {
		return mismatch
	}
	return nil
}

// sameHost tells whether HOST[:PORT], as a client wrote it, is the host and port
// that were dialled.
func sameHost(unsafeHost, host string, port uint16) bool {
	unsafeName, p, hasPort := splitHostPort(unsafeHost)
	if hasPort {
		n, err := parsePort(p)
		if err != nil || n != port {
			return false
		}
	}
	got, err := Canonical(unsafeName)
	return err == nil && got == host
}

func cutScheme(target string) (rest string, ok bool) {
	scheme, rest, ok := strings.Cut(target, "://")
	return rest, ok && isToken(scheme)
}

type answerOf int

const (
	no answerOf = iota
	maybe
	yes
)

// looksHTTP tells whether bytes begin an HTTP/1 request: a word, a space, and a
// first line that ends in a version. What a lenient server might take for one is one
// too, and its head is then refused as malformed.
func looksHTTP(b []byte) answerOf {
	b = bytes.TrimLeft(b, " \t\r\n")
	line, _, complete := bytes.Cut(b, []byte("\n"))
	word, rest, spaced := bytes.Cut(line, []byte(" "))
	if len(word) > 32 || !isToken(string(word)) && len(line) > 0 {
		return no
	}
	for _, c := range rest {
		if c < ' ' && c != '\r' && c != '\t' {
			return no
		}
	}
	switch {
	case !complete && len(b) > maxHead:
		return yes // and too long to be accepted
	case !complete:
		return maybe
	case spaced && string(word) != "PRI" && bytes.Contains(bytes.ToUpper(rest), []byte("HTTP/")):
		return yes
	default:
		return no
	}
}
