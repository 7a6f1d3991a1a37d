package egress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const maxHead = 64 << 10

// head is the head of an HTTP/1 request. There is one reading of it, and a head
// that some server could read in another way is refused: that is how requests are
// smuggled.
type head struct {
	method  string
	target  string
	version string // HTTP/1.0 or HTTP/1.1
	fields  []field

	host    string // the Host field, empty if there is none
	hasHost bool
	length  int64 // of the body; -1 for a chunked one
}

type field struct{ name, value string }

// parseHead reads the head at the start of b and returns how long it is. It returns
// errMore while b is only the beginning.
func parseHead(b []byte) (h head, size int, err error) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		if len(b) >= maxHead {
			return head{}, 0, fmt.Errorf("its head is longer than %d bytes", maxHead)
		}
		return head{}, 0, errMore
	}
	if end > maxHead {
		return head{}, 0, fmt.Errorf("its head is longer than %d bytes", maxHead)
	}
	lines := strings.Split(string(b[:end]), "\r\n")
	if err := h.parseRequestLine(lines[0]); err != nil {
		return head{}, 0, err
	}
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		switch {
		case !ok || !isToken(name):
			return head{}, 0, errors.New("it has a malformed header line")
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			return head{}, 0, errors.New("a header has a control character")
		case len(h.fields) >= 256:
			return head{}, 0, errors.New("it has more than 256 headers")
		}
		h.fields = append(h.fields, field{name, value})
	}
	return h, end + 4, h.frame()
}

func (h *head) parseRequestLine(line string) error {
	parts := strings.Split(line, " ")
	if len(parts) != 3 || !isToken(parts[0]) || parts[1] == "" {
		return errors.New("its request line is malformed")
	}
	h.method, h.target, h.version = parts[0], parts[1], parts[2]
	if h.version != "HTTP/1.1" && h.version != "HTTP/1.0" {
		return errors.New("it is not HTTP/1.0 or HTTP/1.1")
	}
	for i := range len(h.target) {
		if c := h.target[i]; c <= ' ' || c >= 0x7f {
			return errors.New("its target has a character that needs escaping")
		}
	}
	return nil
}

// frame finds the host and the length of the body.
func (h *head) frame() error {
	var lengths, encodings int
	for _, f := range h.fields {
		switch strings.ToLower(f.name) {
		case "host":
			if h.hasHost {
				return errors.New("it has more than one Host header")
			}
			h.host, h.hasHost = f.value, true
		case "content-length":
			n, err := strconv.ParseUint(f.value, 10, 62)
			if err != nil || strings.Trim(f.value, "0123456789") != "" {
				return errors.New("its Content-Length is not a number")
			}
			lengths++
			h.length = int64(n)
		case "transfer-encoding":
			if !strings.EqualFold(f.value, "chunked") {
				return errors.New("its Transfer-Encoding is not chunked")
			}
			encodings++
			h.length = -1
		}
	}
	switch {
	case lengths+encodings > 1:
		return errors.New("it says more than once how long its body is")
	case encodings > 0 && h.version == "HTTP/1.0":
		return errors.New("HTTP/1.0 has no chunked bodies")
	case !h.hasHost && h.version == "HTTP/1.1":
		return errors.New("it has no Host header")
	}
	return nil
}

// isToken tells whether s is a token of RFC 9110.
func isToken(s string) bool {
	for i := range len(s) {
		if !isTokenByte(s[i]) {
			return false
		}
	}
	return s != ""
}

func isTokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// hopByHop are the headers that are between one client and one proxy.
var hopByHop = map[string]bool{
	"connection": true, "proxy-connection": true, "keep-alive": true, "te": true, "trailer": true,
	"transfer-encoding": true, "upgrade": true, "proxy-authorization": true, "proxy-authenticate": true,
	"host": true, "content-length": true,
}

// forServer writes the head anew, for the origin server: one request on a
// connection of its own.
func (h head) forServer(hostport, path string) []byte {
	drop := map[string]bool{}
	for _, f := range h.fields {
		if strings.EqualFold(f.name, "connection") {
			for name := range strings.SplitSeq(f.value, ",") {
				drop[strings.ToLower(strings.Trim(name, " \t"))] = true
			}
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s %s\r\nHost: %s\r\n", h.method, path, h.version, hostport)
	for _, f := range h.fields {
		if name := strings.ToLower(f.name); !hopByHop[name] && !drop[name] {
			fmt.Fprintf(&b, "%s: %s\r\n", f.name, f.value)
		}
	}
	if h.length < 0 {
		b.WriteString("Transfer-Encoding: chunked\r\n")
	} else if h.length > 0 || h.hasBody() {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", h.length)
	}
	b.WriteString("Connection: close\r\n\r\n")
	return b.Bytes()
}

// hasBody tells whether the method is one whose missing body is worth saying.
func (h head) hasBody() bool { return h.method == "POST" || h.method == "PUT" || h.method == "PATCH" }

// chunkedReader reads the body of a chunked request, strictly. Extensions and
// trailers are read over and dropped.
type chunkedReader struct {
	r    lineReader
	left int64 // of the current chunk
	last bool
	skip int // bytes of extensions and trailers so far
}

// lineReader is the part of bufio.Reader that is needed.
type lineReader interface {
	io.Reader
	ReadSlice(delim byte) ([]byte, error)
}

const maxSkipped = 8 << 10

var errChunk = errors.New("malformed chunked body")

func (c *chunkedReader) Read(b []byte) (int, error) {
	if c.left == 0 && !c.last {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	if c.last {
		return 0, io.EOF
	}
	n, err := c.r.Read(b[:min(int64(len(b)), c.left)])
	c.left -= int64(n)
	if c.left == 0 && err == nil {
		var line []byte
		if line, err = c.line(); err == nil && len(line) != 0 {
			err = errChunk
		}
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// next reads a chunk's head, and the trailers after the last.
func (c *chunkedReader) next() error {
	line, err := c.line()
	if err != nil {
		return err
	}
	digits, extension, _ := bytes.Cut(line, []byte(";"))
	c.skip += len(extension)
	n, err := strconv.ParseUint(string(digits), 16, 40)
	if err != nil || len(digits) > 10 || digits[0] == '+' || c.skip > maxSkipped {
		return errChunk
	}
	if c.left = int64(n); n > 0 {
		return nil
	}
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			c.last = true
			return nil
		}
		if c.skip += len(line); c.skip > maxSkipped {
			return errChunk
		}
	}
}

// line returns a line without its end, which must be CR LF.
func (c *chunkedReader) line() ([]byte, error) {
	line, err := c.r.ReadSlice('\n')
	if errors.Is(err, io.EOF) {
		return nil, io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	line, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok || bytes.IndexByte(line, '\r') >= 0 {
		return nil, errChunk
	}
	return line, nil
}
