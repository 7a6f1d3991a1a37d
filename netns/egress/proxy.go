package egress

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"
)

// askTimeout is how long a client of the proxy may take to say what it wants.
const askTimeout = 10 * time.Second

// serveProxy serves one request of a client that knows it talks to a proxy: SOCKS5
// or HTTP, by the first byte. The connection ends with it.
func (s *Server) serveProxy(sess *session, c net.Conn) {
	c.SetDeadline(time.Now().Add(min(askTimeout, s.rules.Load().policy.Limits.Idle)))
	r := bufio.NewReaderSize(c, 4<<10)
	first, err := r.Peek(1)
	switch {
	case err != nil:
	case first[0] == socksVersion:
		s.serveSOCKS(sess, c, r)
	default:
		s.serveHTTP(sess, c, r)
	}
}

func (s *Server) serveHTTP(sess *session, c net.Conn, r *bufio.Reader) {
	h, err := readHead(r)
	if err != nil {
		s.badRequest(c, target{proto: "tcp", route: "http"}, err)
		return
	}
	route := "http"
	if h.method == "CONNECT" {
		route = "connect"
	}
	t, path, err := h.destination()
	t.proto, t.route = "tcp", route
	if err != nil {
		s.badRequest(c, t, err)
		return
	}
	t = s.meant(t)
	counts, err := sess.dial(t)
	var denied *deniedError
	switch {
	case errors.As(err, &denied):
		respond(c, "403 Forbidden", denialText(denied.decision))
		return
	case err != nil:
		respond(c, "502 Bad Gateway", fmt.Sprintf("The sandbox's egress policy allows %s, but it cannot be reached: %v.\n", t, cause(err)))
		return
	}
	c.SetDeadline(time.Time{})
	if route == "connect" {
		if _, err := io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n"); err == nil {
			s.tunnel(sess, buffered(r), counts)
		}
		return
	}
	s.exchange(sess, h, h.forServer(hostPort(t, 80), path), r, counts)
}

// readHead reads one head, byte for byte, and leaves what follows in r.
func readHead(r *bufio.Reader) (head, error) {
	var b []byte
	for {
		line, err := r.ReadSlice('\n')
		b = append(b, line...)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return head{}, err
		}
		h, _, err := parseHead(b)
		if !errors.Is(err, errMore) {
			return h, err
		}
	}
}

func buffered(r *bufio.Reader) []byte {
	b, _ := r.Peek(r.Buffered())
	return b
}

// destination reads where a request goes: CONNECT's authority, or an absolute URL
// of http. A Host field must say the same.
func (h head) destination() (t target, path string, err error) {
	authority, rest := h.target, ""
	defaultPort := uint16(0)
	if h.method != "CONNECT" {
		scheme, after, ok := strings.Cut(h.target, "://")
		switch {
		case !ok:
			return target{}, "", errors.New("this is a proxy: it takes CONNECT, or a whole http:// URL")
		case !strings.EqualFold(scheme, "http"):
			return target{}, "", errors.New("it takes http:// URLs alone; for https use CONNECT")
		}
		end := strings.IndexAny(after, "/?#\\")
		if end < 0 {
			end = len(after)
		}
		authority, rest, defaultPort = after[:end], after[end:], 80
	} else if h.length != 0 {
		return target{}, "", errors.New("CONNECT has no body")
	}
	t, err = parseAuthority(authority, defaultPort)
	if err != nil {
		return target{}, "", err
	}
	if h.hasHost {
		if host, err := parseAuthority(h.host, defaultPort, t.port); err != nil || host != t {
			return target{}, "", errors.New("its Host header names another host than its target")
		}
	}
	switch {
	case strings.ContainsAny(rest, "#\\"):
		return target{}, "", errors.New("its URL has a character that needs escaping")
	case !strings.HasPrefix(rest, "/"):
		rest = "/" + rest
	}
	return t, rest, nil
}

// parseAuthority reads HOST:PORT. The defaults stand for a missing port, the last
// one first; 0 is none.
func parseAuthority(unsafeAuthority string, defaults ...uint16) (target, error) {
	if strings.ContainsAny(unsafeAuthority, "@") {
		return target{}, errors.New("it has a user name in its target")
	}
	host, portText, hasPort := splitHostPort(unsafeAuthority)
	var port uint16
	if hasPort {
		var err error
		if port, err = parsePort(portText); err != nil {
			return target{}, err
		}
	} else {
		for _, d := range defaults {
			if d != 0 {
				port = d
			}
		}
	}
	if port == 0 {
		return target{}, errors.New("its target has no port")
	}
	name, addr, err := parseHost(host)
	if err != nil {
		return target{}, fmt.Errorf("cannot accept host=%q: %w", printable(host), err)
	}
	return target{host: name, addr: addr, port: port}, nil
}

// meant replaces a synthetic address by the name it stands for.
func (s *Server) meant(t target) target {
	if t.host == "" {
		return s.targetOf(netip.AddrPortFrom(t.addr, t.port), t.proto, t.route)
	}
	return t
}

// hostPort is what a Host field holds.
func hostPort(t target, defaultPort uint16) string {
	if t.port != defaultPort {
		return t.String()
	}
	if t.host == "" && t.addr.Is6() {
		return "[" + t.addr.String() + "]"
	}
	if t.host == "" {
		return t.addr.String()
	}
	return t.host
}

// exchange sends one request, whose body ends where its head said, and passes the
// response on as it is. Whatever the client sends after the body goes nowhere.
func (s *Server) exchange(sess *session, h head, request []byte, r *bufio.Reader, counts *traffic) {
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
	err := out.write(request)
	switch {
	case err != nil:
	case h.length > 0:
		err = out.copyBody(io.LimitReader(r, h.length), h.length, false)
	case h.length < 0:
		err = out.copyBody(&chunkedReader{r: r}, -1, true)
	}
	var op *net.OpError
	if err != nil && !(errors.As(err, &op) && op.Op == "write") { // a server may answer before it has read all
		sess.kill()
	}
	<-done
}

// copyBody sends a request's body, of size bytes unless that is negative.
func (p *pump) copyBody(body io.Reader, size int64, chunked bool) error {
	array := buffers.Get().(*[16 << 10]byte)
	defer buffers.Put(array)
	var sent int64
	for {
		p.src.SetReadDeadline(time.Now().Add(p.s.rules.Load().policy.Limits.Idle))
		n, err := body.Read(array[:])
		if n > 0 && chunked {
			if e := p.write(fmt.Appendf(nil, "%x\r\n", n)); e != nil {
				return e
			}
		}
		if e := p.write(array[:n]); e != nil {
			return e
		}
		if n > 0 && chunked {
			if e := p.write([]byte("\r\n")); e != nil {
				return e
			}
		}
		sent += int64(n)
		switch {
		case errors.Is(err, io.EOF) && size >= 0 && sent != size:
			return io.ErrUnexpectedEOF
		case errors.Is(err, io.EOF) && chunked:
			return p.write([]byte("0\r\n\r\n"))
		case errors.Is(err, io.EOF) || sent == size:
			return nil
		case err != nil:
			return err
		}
	}
}

// badRequest refuses what has no safe reading.
func (s *Server) badRequest(c net.Conn, t target, err error) {
	var net net.Error
	if errors.Is(err, io.EOF) || errors.As(err, &net) {
		return // the client has gone, or says nothing
	}
	s.ledger.record(t.decision(ruleBroken, err.Error()))
	respond(c, "400 Bad Request", "The sandbox's egress proxy does not pass this request on: "+err.Error()+".\n")
}

// respond sends a text and the end of the connection.
func respond(c net.Conn, status, text string) {
	c.SetDeadline(time.Now().Add(askTimeout))
	fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		status, len(text), text)
	if closeWrite(c) == nil {
		io.CopyN(io.Discard, c, 64<<10) // unread bytes would turn the close into a reset, which loses the text
	}
}

// denialText tells whoever reads it that this is policy, and what would change it.
func denialText(d Decision) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Denied by this sandbox's egress policy (%s): %s.\n", d.Rule, d.Why)
	if a := advice(d); a != "" {
		fmt.Fprintf(&b, "To reach it, ask whoever starts the run to add: %s\n", a)
	} else if d.Rule == "metadata" || d.Rule == "special" {
		b.WriteString("No setting opens it.\n")
	}
	b.WriteString("The proxy works. Do not retry or go round it: the answer is the same until the policy changes.\n")
	return b.String()
}

// cause is the last word of an error about a connection, without the host's addresses.
func cause(err error) string {
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host"
	case errors.As(err, &dns):
		return "its name cannot be resolved"
	case errors.As(err, &op) && op.Timeout():
		return "it does not answer"
	case errors.As(err, &op):
		return op.Err.Error()
	default:
		return err.Error()
	}
}
