package egress

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// SOCKS5, RFC 1928.
const (
	socksVersion = 5

	socksNoAuth     = 0
	socksNoMethod   = 0xff
	socksConnect    = 1
	socksV4         = 1
	socksName       = 3
	socksV6         = 4
	socksOK         = 0
	socksFailure    = 1
	socksDenied     = 2 // "connection not allowed by ruleset"
	socksHostDown   = 4
	socksRefused    = 5
	socksBadCommand = 7
	socksBadAddress = 8
)

// socksError is a request that gets no connection, with the code that says why.
type socksError struct {
	code byte
	why  string
}

func (e *socksError) Error() string { return e.why }

func (s *Server) serveSOCKS(sess *session, c net.Conn, r *bufio.Reader) {
	t, err := readSOCKS(r, c)
	if err != nil {
		var bad *socksError
		if errors.As(err, &bad) {
			t.proto, t.route = "tcp", "socks"
			s.ledger.record(t.decision(ruleBroken, bad.why))
			replySOCKS(c, bad.code)
		}
		return
	}
	t.proto, t.route = "tcp", "socks"
	counts, err := sess.dial(s.meant(t))
	if err != nil {
		replySOCKS(c, socksCode(err))
		return
	}
	c.SetDeadline(time.Time{})
	if replySOCKS(c, socksOK) == nil {
		s.tunnel(sess, buffered(r), counts)
	}
}

// readSOCKS reads the greeting, answers it, and reads the request.
func readSOCKS(r io.Reader, w io.Writer) (target, error) {
	var b [255]byte
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return target{}, err
	}
	methods := b[:b[1]]
	if _, err := io.ReadFull(r, methods); err != nil {
		return target{}, err
	}
	method := byte(socksNoMethod)
	for _, m := range methods {
		if m == socksNoAuth {
			method = socksNoAuth
		}
	}
	if _, err := w.Write([]byte{socksVersion, method}); err != nil {
		return target{}, err
	}
	if method == socksNoMethod {
		return target{}, errors.New("the client insists on authentication")
	}
	if _, err := io.ReadFull(r, b[:4]); err != nil {
		return target{}, err
	}
	switch {
	case b[0] != socksVersion || b[2] != 0:
		return target{}, &socksError{socksFailure, "malformed SOCKS request"}
	case b[1] != socksConnect:
		return target{}, &socksError{socksBadCommand, "SOCKS commands other than CONNECT are not offered"}
	}
	t, err := readSOCKSHost(r, b[3])
	if err != nil {
		return target{}, err
	}
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return target{}, err
	}
	if t.port = binary.BigEndian.Uint16(b[:2]); t.port == 0 {
		return target{}, &socksError{socksFailure, "0 is not a port"}
	}
	return t, nil
}

func readSOCKSHost(r io.Reader, kind byte) (target, error) {
	var b [255]byte
	size := 0
	switch kind {
	case socksV4:
		size = 4
	case socksV6:
		size = 16
	case socksName:
		if _, err := io.ReadFull(r, b[:1]); err != nil {
			return target{}, err
		}
		size = int(b[0])
	default:
		return target{}, &socksError{socksBadAddress, "unknown kind of SOCKS address"}
	}
	if _, err := io.ReadFull(r, b[:size]); err != nil {
		return target{}, err
	}
	if kind != socksName {
		addr, _ := netip.AddrFromSlice(b[:size])
		return target{addr: addr}, nil
	}
	name, addr, err := parseHost(string(b[:size]))
	if err != nil {
		return target{}, &socksError{socksDenied, "cannot accept host=" + printable(string(b[:size])) + ": " + err.Error()}
	}
	return target{host: name, addr: addr}, nil
}

func socksCode(err error) byte {
	var denied *deniedError
	var dns *net.DNSError
	switch {
	case errors.As(err, &denied):
		return socksDenied
	case errors.Is(err, syscall.ECONNREFUSED):
		return socksRefused
	case errors.As(err, &dns), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return socksHostDown
	default:
		return socksFailure
	}
}

// replySOCKS sends a reply. The address in it means nothing here.
func replySOCKS(c net.Conn, code byte) error {
	_, err := c.Write([]byte{socksVersion, code, 0, socksV4, 0, 0, 0, 0, 0, 0})
	if code != socksOK && err == nil && closeWrite(c) == nil {
		io.CopyN(io.Discard, c, 4<<10) // as in respond
	}
	return err
}
