package egress

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// clientHello returns the first flight of Go's own TLS client.
func clientHello(t testing.TB, c *tls.Config) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	go func() {
		tls.Client(theirs, c).Handshake()
		theirs.Close()
	}()
	ours.SetDeadline(time.Now().Add(5 * time.Second))
	head := make([]byte, recordHeader)
	if _, err := io.ReadFull(ours, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(ours, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

func helloFor(t testing.TB, name string) []byte {
	return clientHello(t, &tls.Config{ServerName: name, InsecureSkipVerify: true})
}

func TestHelloName(t *testing.T) {
	hello := helloFor(t, "example.com")
	if name, err := helloName(hello); err != nil || name != "example.com" {
		t.Fatalf("helloName = %q, %v", name, err)
	}
	for n := range len(hello) {
		if _, err := helloName(hello[:n]); !errors.Is(err, errMore) {
			t.Fatalf("helloName of the first %d bytes: %v, want %v", n, err, errMore)
		}
	}
	if name, err := helloName(clientHello(t, &tls.Config{ServerName: "203.0.113.1", InsecureSkipVerify: true})); err != nil || name != "" {
		t.Errorf("without a name: %q, %v", name, err)
	}
	for _, size := range []int{1, 2, 3, 7, 100} { // one message in many records
		var split []byte
		for part := hello[recordHeader:]; len(part) > 0; part = part[min(size, len(part)):] {
			n := min(size, len(part))
			split = append(split, handshakeType, 3, 1, 0, byte(n))
			split = append(split, part[:n]...)
		}
		if name, err := helloName(split); err != nil || name != "example.com" {
			t.Errorf("in records of %d bytes: %q, %v", size, name, err)
		}
	}
	twice := bytes.Replace(hello, []byte("example.com"), []byte("example.com"), 1)
	twice[5] = 2 // a ServerHello
	if _, err := helloName(twice); !errors.Is(err, errNotHello) {
		t.Errorf("another message: %v", err)
	}
}

// extensions puts extensions into a minimal hello.
func extensions(ext ...byte) []byte {
	body := make([]byte, 2+32)
	body = append(body, 0, 0, 2, 0x13, 1, 1, 0, byte(len(ext)>>8), byte(len(ext)))
	body = append(body, ext...)
	msg := append([]byte{1, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	return append([]byte{handshakeType, 3, 1, byte(len(msg) >> 8), byte(len(msg))}, msg...)
}

func sni(name string) []byte {
	n := len(name)
	return append([]byte{0, 0, 0, byte(n + 5), 0, byte(n + 3), 0, 0, byte(n)}, name...)
}

func TestHelloWithMoreThanOneReading(t *testing.T) {
	if name, err := helloName(extensions(sni("a.b")...)); err != nil || name != "a.b" {
		t.Fatalf("plain: %q, %v", name, err)
	}
	tests := map[string][]byte{
		"two name extensions": append(sni("a.b"), sni("c.d")...),
		"two names in one":    {0, 0, 0, 14, 0, 12, 0, 0, 3, 'a', '.', 'b', 0, 0, 3, 'c', '.', 'd'},
		"a name of no bytes":  {0, 0, 0, 5, 0, 3, 0, 0, 0},
		"another kind":        {0, 0, 0, 8, 0, 6, 1, 0, 3, 'a', '.', 'b'},
		"bytes after":         {0, 0, 0, 9, 0, 6, 0, 0, 3, 'a', '.', 'b', 0},
		"cut short":           {0, 0, 0, 8, 0, 6, 0, 0, 9, 'a', '.', 'b'},
	}
	for what, ext := range tests {
		if name, err := helloName(extensions(ext...)); !errors.Is(err, errNotHello) {
			t.Errorf("%s: %q, %v", what, name, err)
		}
	}
}

func FuzzHelloName(f *testing.F) {
	f.Add(helloFor(f, "example.com"))
	f.Add(extensions(sni("a.b")...))
	f.Add([]byte{22, 3, 1, 0, 1, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		name, err := helloName(b)
		if errors.Is(err, errMore) {
			return
		}
		// more bytes must not change what has been read
		again, err2 := helloName(append(bytes.Clone(b), "more"...))
		if again != name || !errors.Is(err2, err) {
			t.Fatalf("%q, %v; with more bytes %q, %v", name, err, again, err2)
		}
	})
}

func TestWitness(t *testing.T) {
	http := func(lines ...string) []byte { return []byte(strings.Join(lines, "\r\n") + "\r\n\r\n") }
	more, pass, refuse := "more", "pass", "refuse"
	tests := []struct {
		name string
		b    []byte
		port uint16
		want string
	}{
		{"TLS, the name", helloFor(t, "example.com"), 443, pass},
		{"TLS, upper case", helloFor(t, "EXAMPLE.com"), 443, pass},
		{"TLS, another name", helloFor(t, "evil.example"), 443, refuse},
		{"TLS, another name, odd port", helloFor(t, "evil.example"), 5432, refuse},
		{"TLS, a name below", helloFor(t, "a.example.com"), 443, refuse},
		{"TLS, no name", helloFor(t, "203.0.113.1"), 443, refuse},
		{"TLS, no name, odd port", helloFor(t, "203.0.113.1"), 6380, pass},
		{"TLS, half", helloFor(t, "example.com")[:50], 443, more},
		{"TLS, NUL in the name", extensions(sni("example.com\x00")...), 443, refuse},
		{"TLS, malformed", []byte{22, 3, 1, 0, 4, 9, 9, 9, 9}, 443, refuse},
		{"HTTP, the name", http("GET / HTTP/1.1", "Host: example.com"), 80, pass},
		{"HTTP, the name and port", http("GET / HTTP/1.1", "Host: Example.com.:80"), 80, pass},
		{"HTTP, another port", http("GET / HTTP/1.1", "Host: example.com:81"), 80, refuse},
		{"HTTP, another name", http("GET / HTTP/1.1", "Host: evil.example"), 80, refuse},
		{"HTTP, another name, odd port", http("GET / HTTP/1.1", "Host: evil.example"), 9000, refuse},
		{"HTTP, leading line", append([]byte("\r\n"), http("GET / HTTP/1.1", "Host: evil.example")...), 80, refuse},
		{"HTTP, two hosts", http("GET / HTTP/1.1", "Host: example.com", "Host: evil.example"), 80, refuse},
		{"HTTP, folded", http("GET / HTTP/1.1", "Host: example.com", " evil.example"), 80, refuse},
		{"HTTP, no host", http("GET / HTTP/1.1"), 80, refuse},
		{"HTTP/1.0, no host", http("GET / HTTP/1.0"), 80, pass},
		{"HTTP, bare line feeds", []byte("GET / HTTP/1.1\nHost: evil.example\n\n"), 80, more},
		{"HTTP, whole URL of another", http("GET http://evil.example/ HTTP/1.1", "Host: example.com"), 80, refuse},
		{"HTTP, CONNECT to another", http("CONNECT evil.example:443 HTTP/1.1", "Host: example.com"), 80, refuse},
		{"a granted proxy", http("CONNECT other.example:443 HTTP/1.1", "Host: other.example:443"), 3128, pass},
		{"HTTP, lower-case method", http("get / HTTP/1.1", "Host: evil.example"), 80, refuse},
		{"HTTP, lower-case version", http("GET / http/1.1", "Host: evil.example"), 80, refuse},
		{"HTTP, version 2 as text", http("GET / HTTP/2.0", "Host: evil.example"), 80, refuse},
		{"HTTP, version 1 alone", http("GET / HTTP/1", "Host: evil.example"), 80, refuse},
		{"HTTP, leading space", http(" GET / HTTP/1.1", "Host: evil.example"), 80, refuse},
		{"HTTP, leading tab", http("\tGET / HTTP/1.1", "Host: evil.example"), 80, refuse},
		{"HTTP, half a line", []byte("GET /"), 80, more},
		{"HTTP, half a head", []byte("GET / HTTP/1.1\r\nHost: exa"), 80, more},
		{"HTTP, endless line", []byte("GET /" + strings.Repeat("a", maxHead)), 80, refuse},
		{"HTTP, endless head", []byte("GET / HTTP/1.1\r\nA: " + strings.Repeat("a", maxHead)), 80, refuse},
		{"HTTP/2", []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 80, pass},
		{"SSH", []byte("SSH-2.0-OpenSSH_9.6\r\n"), 22, pass},
		{"SMTP", []byte("EHLO example.org\r\n"), 25, pass},
		{"Redis", []byte("PING\r\n"), 6379, pass},
		{"Redis, array", []byte("*1\r\n$4\r\nPING\r\n"), 6379, pass},
		{"PostgreSQL", []byte{0, 0, 0, 8, 4, 210, 22, 47}, 5432, pass},
		{"AMQP", []byte("AMQP\x00\x00\x09\x01"), 5672, pass},
		{"JSON", []byte(`{"jsonrpc": "2.0"`), 9000, pass},
		{"nothing yet", nil, 443, more},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := refuse
			switch err := witness(tt.b, "example.com", tt.port); err {
			case nil:
				got = pass
			case errMore:
				got = more
			}
			if got != tt.want {
				t.Errorf("witness = %v, want %v (%v)", got, tt.want, witness(tt.b, "example.com", tt.port))
			}
		})
	}
}

func FuzzWitness(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"))
	f.Add(helloFor(f, "evil.example"))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := witness(b, "example.com", 80)
		if looksTLS(b) && err == nil {
			if name, e := helloName(b); e != nil || name != "" && !strings.EqualFold(strings.TrimSuffix(name, "."), "example.com") {
				t.Fatalf("passes a hello for %q, %v", name, e)
			}
		}
	})
}
