package egress

import (
	"encoding/binary"
	"errors"
)

// A ClientHello's limits. Larger ones are refused: nobody sends them.
const (
	maxHello      = 32 << 10
	recordHeader  = 5
	handshakeType = 22
)

var (
	errMore     = errors.New("more bytes are needed")
	errNotHello = errors.New("it is not a TLS ClientHello")
)

// looksTLS tells whether bytes begin a TLS handshake.
func looksTLS(b []byte) bool {
	return len(b) > 0 && b[0] == handshakeType && (len(b) == 1 || b[1] == 3)
}

// helloName returns the server name of the ClientHello at the start of b, as sent:
// the outer one if the hello is encrypted; empty if it has none. It returns errMore
// while b is only the beginning.
func helloName(b []byte) (string, error) {
	var hello []byte
	for {
		if len(b) < recordHeader {
			return "", errMore
		}
		size := int(binary.BigEndian.Uint16(b[3:]))
		if b[0] != handshakeType || b[1] != 3 || size == 0 || size > 16<<10 {
			return "", errNotHello
		}
		have := min(size, len(b)-recordHeader)
		hello = append(hello, b[recordHeader:recordHeader+have]...)
		if len(hello) >= 4 {
			if hello[0] != 1 {
				return "", errNotHello
			}
			want := 4 + int(hello[1])<<16 + int(hello[2])<<8 + int(hello[3])
			if want > maxHello {
				return "", errNotHello
			}
			if len(hello) >= want {
				return parseHello(hello[4:want])
			}
		}
		if have < size {
			return "", errMore
		}
		b = b[recordHeader+size:]
	}
}

// parseHello reads the body of a ClientHello.
func parseHello(b []byte) (string, error) {
	r := reader{b: b}
	r.skip(2 + 32) // version, random
	r.skip(r.uint(1))
	r.skip(r.uint(2)) // cipher suites
	r.skip(r.uint(1)) // compression methods
	if r.bad {
		return "", errNotHello
	}
	if len(r.b) == 0 {
		return "", nil // no extensions: an old client
	}
	ext := reader{b: r.take(r.uint(2))}
	if r.bad || len(r.b) != 0 {
		return "", errNotHello
	}
	name, seen := "", false
	for len(ext.b) > 0 {
		kind := ext.uint(2)
		body := ext.take(ext.uint(2))
		if ext.bad {
			return "", errNotHello
		}
		if kind != 0 { // server_name
			continue
		}
		n, err := serverName(body)
		if err != nil || seen {
			return "", errNotHello
		}
		name, seen = n, true
	}
	return name, nil
}

// serverName reads a server_name extension. There must be one name in it, a host
// name: with more, two readers could take different ones.
func serverName(body []byte) (string, error) {
	r := reader{b: body}
	list := reader{b: r.take(r.uint(2))}
	kind := list.uint(1)
	name := list.take(list.uint(2))
	if r.bad || list.bad || len(r.b) != 0 || len(list.b) != 0 || kind != 0 || len(name) == 0 {
		return "", errNotHello
	}
	return string(name), nil
}

// reader takes big-endian numbers and bytes off a slice; what is missing sets bad.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad = true
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) skip(n int) { r.take(n) }

func (r *reader) uint(size int) int {
	n := 0
	for _, c := range r.take(size) {
		n = n<<8 | int(c)
	}
	return n
}
