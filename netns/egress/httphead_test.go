package egress

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

func crlf(lines ...string) string { return strings.Join(lines, "\r\n") + "\r\n\r\n" }

// TestSmuggling is the corpus of requests that two readers read in two ways.
func TestSmuggling(t *testing.T) {
	tests := map[string]string{
		"length and chunked":          crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Content-Length: 5", "Transfer-Encoding: chunked"),
		"chunked and length":          crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Transfer-Encoding: chunked", "Content-Length: 5"),
		"two lengths":                 crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Content-Length: 5", "Content-Length: 6"),
		"the same length twice":       crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Content-Length: 5", "Content-Length: 5"),
		"list of lengths":             crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Content-Length: 5, 5"),
		"signed length":               crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Content-Length: +5"),
		"negative length":             crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Content-Length: -5"),
		"hexadecimal length":          crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Content-Length: 0x5"),
		"empty length":                crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Content-Length: "),
		"huge length":                 crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Content-Length: 99999999999999999999"),
		"unknown encoding":            crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Transfer-Encoding: xchunked"),
		"two encodings":               crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Transfer-Encoding: gzip, chunked"),
		"identity encoding":           crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Transfer-Encoding: identity"),
		"encoding with a tab":         crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Transfer-Encoding:\x0bchunked"),
		"encoding in HTTP/1.0":        crlf("POST http://a.example/ HTTP/1.0", "Host: a.example", "Transfer-Encoding: chunked"),
		"space before the colon":      crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Transfer-Encoding : chunked"),
		"folded header":               crlf("GET http://a.example/ HTTP/1.1", "Host: a.example", "X: a", " b"),
		"header of no name":           crlf("GET http://a.example/ HTTP/1.1", "Host: a.example", ": a"),
		"line without a colon":        crlf("GET http://a.example/ HTTP/1.1", "Host: a.example", "abc"),
		"NUL in a header":             crlf("GET http://a.example/ HTTP/1.1", "Host: a.example", "X: a\x00b"),
		"bare carriage return":        crlf("GET http://a.example/ HTTP/1.1", "Host: a.example", "X: a\rTransfer-Encoding: chunked"),
		"bare line feed":              crlf("GET http://a.example/ HTTP/1.1", "Host: a.example", "X: a\nTransfer-Encoding: chunked"),
		"two hosts":                   crlf("GET http://a.example/ HTTP/1.1", "Host: a.example", "Host: b.example"),
		"the same host twice":         crlf("GET http://a.example/ HTTP/1.1", "Host: a.example", "host: a.example"),
		"another host":                crlf("GET http://a.example/ HTTP/1.1", "Host: b.example"),
		"another port":                crlf("GET http://a.example:81/ HTTP/1.1", "Host: a.example:82"),
		"no host":                     crlf("GET http://a.example/ HTTP/1.1"),
		"user name":                   crlf("GET http://a.example@b.example/ HTTP/1.1", "Host: b.example"),
		"user name in the host":       crlf("GET http://a.example/ HTTP/1.1", "Host: x@a.example"),
		"NUL in the host":             crlf("GET http://a.example\x00.b.example/ HTTP/1.1", "Host: a.example"),
		"percent NUL":                 crlf("GET http://a.example%00.b.example/ HTTP/1.1", "Host: a.example"),
		"backslash":                   crlf("GET http://a.example\\.b.example/ HTTP/1.1", "Host: a.example"),
		"backslash in the path":       crlf("GET http://a.example/\\b HTTP/1.1", "Host: a.example"),
		"fragment":                    crlf("GET http://a.example/#@b.example HTTP/1.1", "Host: a.example"),
		"fragment instead of a path":  crlf("GET http://a.example#@b.example/ HTTP/1.1", "Host: a.example"),
		"space in the target":         crlf("GET http://a.example/ b HTTP/1.1", "Host: a.example"),
		"two spaces":                  crlf("GET  http://a.example/ HTTP/1.1", "Host: a.example"),
		"tab in the request line":     crlf("GET\thttp://a.example/ HTTP/1.1", "Host: a.example"),
		"https URL":                   crlf("GET https://a.example/ HTTP/1.1", "Host: a.example"),
		"other scheme":                crlf("GET ftp://a.example/ HTTP/1.1", "Host: a.example"),
		"no scheme":                   crlf("GET //a.example/ HTTP/1.1", "Host: a.example"),
		"origin form":                 crlf("GET / HTTP/1.1", "Host: a.example"),
		"asterisk":                    crlf("OPTIONS * HTTP/1.1", "Host: a.example"),
		"no version":                  crlf("GET http://a.example/", "Host: a.example"),
		"HTTP/0.9":                    crlf("GET http://a.example/ HTTP/0.9", "Host: a.example"),
		"HTTP/2":                      crlf("GET http://a.example/ HTTP/2.0", "Host: a.example"),
		"version in lower case":       crlf("GET http://a.example/ http/1.1", "Host: a.example"),
		"decimal host":                crlf("GET http://2130706433/ HTTP/1.1", "Host: 2130706433"),
		"hexadecimal host":            crlf("GET http://0x7f000001/ HTTP/1.1", "Host: 0x7f000001"),
		"octal host":                  crlf("GET http://0177.0.0.1/ HTTP/1.1", "Host: 0177.0.0.1"),
		"short host":                  crlf("GET http://127.1/ HTTP/1.1", "Host: 127.1"),
		"empty host":                  crlf("GET http:/// HTTP/1.1", "Host: "),
		"port 0":                      crlf("GET http://a.example:0/ HTTP/1.1", "Host: a.example:0"),
		"empty port":                  crlf("GET http://a.example:/ HTTP/1.1", "Host: a.example:"),
		"signed port":                 crlf("GET http://a.example:+80/ HTTP/1.1", "Host: a.example"),
		"port too large":              crlf("GET http://a.example:65616/ HTTP/1.1", "Host: a.example"),
		"CONNECT without a port":      crlf("CONNECT a.example HTTP/1.1", "Host: a.example"),
		"CONNECT with a body":         crlf("CONNECT a.example:443 HTTP/1.1", "Host: a.example:443", "Content-Length: 5"),
		"CONNECT with a chunked body": crlf("CONNECT a.example:443 HTTP/1.1", "Host: a.example:443", "Transfer-Encoding: chunked"),
		"CONNECT with another host":   crlf("CONNECT a.example:443 HTTP/1.1", "Host: b.example:443"),
		"CONNECT with another port":   crlf("CONNECT a.example:443 HTTP/1.1", "Host: a.example:22"),
		"CONNECT with a URL":          crlf("CONNECT http://a.example:443/ HTTP/1.1", "Host: a.example"),
		"CONNECT with a user name":    crlf("CONNECT a@b.example:443 HTTP/1.1", "Host: b.example:443"),
		"CONNECT with a path":         crlf("CONNECT a.example:443/x HTTP/1.1", "Host: a.example:443"),
		"too many headers":            crlf("GET http://a.example/ HTTP/1.1", "Host: a.example", strings.Repeat("X: y\r\n", 300)+"Z: z"),
		"endless head":                "GET http://a.example/ HTTP/1.1\r\nX: " + strings.Repeat("a", 2*maxHead) + "\r\n\r\n",
	}
	for name, request := range tests {
		t.Run(name, func(t *testing.T) {
			h, err := readHead(bufio.NewReaderSize(strings.NewReader(request), 4<<10))
			if err != nil {
				return
			}
			if to, path, err := h.destination(); err == nil {
				t.Errorf("accepted as %v %q with a body of %d", to, path, h.length)
			}
		})
	}
}

func TestDestination(t *testing.T) {
	tests := []struct {
		request, dest, path string
	}{
		{crlf("GET http://A.example/x?y=http://b/ HTTP/1.1", "Host: a.EXAMPLE."), "a.example:80", "/x?y=http://b/"},
		{crlf("GET HTTP://a.example HTTP/1.1", "Host: a.example"), "a.example:80", "/"},
		{crlf("GET http://a.example?q HTTP/1.1", "Host: a.example"), "a.example:80", "/?q"},
		{crlf("GET http://a.example:8080/ HTTP/1.1", "Host: a.example:8080"), "a.example:8080", "/"},
		{crlf("GET http://a.example:80/ HTTP/1.1", "Host: a.example"), "a.example:80", "/"},
		{crlf("GET http://203.0.113.1/ HTTP/1.0"), "203.0.113.1:80", "/"},
		{crlf("CONNECT a.example:443 HTTP/1.1", "Host: a.example:443"), "a.example:443", ""},
		{crlf("CONNECT a.example:443 HTTP/1.1", "Host: a.example"), "a.example:443", ""},
		{crlf("CONNECT [2001:db8::1]:443 HTTP/1.1", "Host: [2001:db8::1]:443"), "[2001:db8::1]:443", ""},
	}
	for _, tt := range tests {
		h, _, err := parseHead([]byte(tt.request))
		if err != nil {
			t.Errorf("%q: %v", tt.request, err)
			continue
		}
		to, path, err := h.destination()
		if h.method == "CONNECT" {
			path = ""
		}
		if err != nil || to.String() != tt.dest || path != tt.path {
			t.Errorf("%q goes to %v %q, %v; want %s %q", tt.request, to, path, err, tt.dest, tt.path)
		}
	}
}

func TestForServerDropsWhatIsBetweenUs(t *testing.T) {
	h, _, err := parseHead([]byte(crlf("POST http://a.example:81/x HTTP/1.1", "Host: a.example:81", "Connection: X-Secret, close",
		"X-Secret: 1", "Proxy-Authorization: Basic eA==", "Proxy-Connection: keep-alive", "Upgrade: h2c", "TE: trailers",
		"Keep-Alive: 3", "Accept: */*", "Content-Length: 3")))
	if err != nil {
		t.Fatal(err)
	}
	got := string(h.forServer("a.example:81", "/x"))
	want := crlf("POST /x HTTP/1.1", "Host: a.example:81", "Accept: */*", "Content-Length: 3", "Connection: close")
	if got != want {
		t.Errorf("forServer =\n%q, want\n%q", got, want)
	}
}

// FuzzParseHead holds the head parser against net/http's: whatever it accepts, the
// other reads in the same way, and so does the other what it writes.
func FuzzParseHead(f *testing.F) {
	f.Add([]byte(crlf("GET http://a.example/x HTTP/1.1", "Host: a.example", "A: b")))
	f.Add([]byte(crlf("POST http://a.example/ HTTP/1.1", "Host: a.example", "Transfer-Encoding: chunked")))
	f.Add([]byte(crlf("POST http://a.example/ HTTP/1.0", "Content-Length: 3")))
	f.Add([]byte(crlf("CONNECT a.example:443 HTTP/1.1", "Host: a.example:443")))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, size, err := parseHead(b)
		if err != nil {
			return
		}
		to, path, err := h.destination()
		if err != nil {
			return
		}
		theirs, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b[:size])))
		if err != nil {
			return // stricter is safe
		}
		same(t, h, theirs, to)
		if h.method == "CONNECT" {
			return
		}
		written := h.forServer(hostPort(to, 80), path)
		again, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(written)))
		if err != nil {
			t.Fatalf("what is sent on cannot be read: %v\n%q", err, written)
		}
		same(t, h, again, to)
	})
}

func same(t *testing.T, h head, theirs *http.Request, to target) {
	t.Helper()
	length := theirs.ContentLength
	if theirs.Method != h.method || length != h.length && !(h.method == "CONNECT" && h.length == 0) {
		t.Fatalf("we read %s with a body of %d, they %s with one of %d", h.method, h.length, theirs.Method, length)
	}
	got, err := parseAuthority(theirs.Host, 443, 80, to.port)
	if theirs.Host != "" && (err != nil || got.host != to.host || got.addr != to.addr) {
		t.Fatalf("we read %v, they %q", to, theirs.Host)
	}
}

func TestChunkedBody(t *testing.T) {
	ok := map[string]string{
		"0\r\n\r\n":             "",
		"3\r\nabc\r\n0\r\n\r\n": "abc",
		"a;x=y\r\n0123456789\r\n0\r\nT: v\r\n\r\n": "0123456789",
		"1\r\na\r\n2\r\nbc\r\n00\r\n\r\n":          "abc",
	}
	for in, want := range ok {
		got, err := io.ReadAll(&chunkedReader{r: bufio.NewReader(strings.NewReader(in + "NEXT"))})
		if err != nil || string(got) != want {
			t.Errorf("%q reads as %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "3", "3\r\nab", "3\r\nabcd\r\n0\r\n\r\n", "3\nabc\r\n0\r\n\r\n", "3\r\nabc\n0\r\n\r\n", "-1\r\na", "+3\r\nabc\r\n0\r\n\r\n",
		"0x3\r\nabc\r\n0\r\n\r\n", " 3\r\nabc\r\n0\r\n\r\n", "3 \r\nabc\r\n0\r\n\r\n", "g\r\n", "\r\n", "fffffffffffffffff\r\n", "0\r\n", "0\r\nA: b\r\n",
		"3;" + strings.Repeat("x", maxSkipped+1) + "\r\nabc\r\n0\r\n\r\n", "3\r\nabc\r\n0\r\n" + strings.Repeat("A: b\r\n", 3000) + "\r\n",
	} {
		if got, err := io.ReadAll(&chunkedReader{r: bufio.NewReaderSize(strings.NewReader(in), 16<<10)}); err == nil {
			t.Errorf("%.40q reads as %q", in, got)
		}
	}
}

func FuzzChunkedBody(f *testing.F) {
	f.Add([]byte("3\r\nabc\r\n0\r\n\r\n"))
	f.Add([]byte("a;x\r\n0123456789\r\n0\r\nT: v\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, err := io.ReadAll(&chunkedReader{r: bufio.NewReader(bytes.NewReader(b))})
		if err != nil {
			return
		}
		request := append([]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"), b...)
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(request)))
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := io.ReadAll(r.Body)
		if err == nil && !bytes.Equal(ours, theirs) {
			t.Fatalf("we read %q, they %q", ours, theirs)
		}
	})
}

func FuzzReadSOCKS(f *testing.F) {
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x03\x0bexample.com\x01\xbb"))
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := readSOCKS(bytes.NewReader(b), io.Discard)
		var bad *socksError
		if err != nil {
			if errors.As(err, &bad) && bad.code == socksOK {
				t.Fatal("an error with the code of success")
			}
			return
		}
		if got.port == 0 || (got.host == "") == !got.addr.IsValid() {
			t.Fatalf("%q reads as %+v", b, got)
		}
		if c, err := Canonical(got.host); got.host != "" && (err != nil || c != got.host) {
			t.Fatalf("%q reads as %+v, which is not canonical", b, got)
		}
	})
}
