package egress

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// connect asks the proxy for a tunnel. The status of a refusal holds its text.
func (w *world) connect(t *testing.T, to string) (net.Conn, *http.Response) {
	t.Helper()
	c, err := w.dial("100.64.0.1:3128")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
	var b []byte // byte for byte, so that what the tunnel says stays in the socket
	for one := make([]byte, 1); !bytes.HasSuffix(b, []byte("\r\n\r\n")); b = append(b, one...) {
		if _, err := io.ReadFull(c, one); err != nil {
			t.Fatalf("CONNECT %s: %v after %q", to, err, b)
		}
	}
	res, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(b), c)), &http.Request{Method: "CONNECT"})
	if err != nil {
		t.Fatalf("CONNECT %s: %v", to, err)
	}
	if res.StatusCode != 200 {
		b, _ := io.ReadAll(res.Body)
		res.Status += ": " + string(b)
	}
	return c, res
}

// socks asks the proxy for a connection and returns the code of its answer.
func (w *world) socks(t *testing.T, to string) byte {
	t.Helper()
	c, err := w.dial("100.64.0.1:3128")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	host, port, _ := net.SplitHostPort(to)
	var n uint16
	fmt.Sscan(port, &n)
	b := append([]byte{5, 1, 0, 5, 1, 0, 3, byte(len(host))}, host...)
	if a, err := netip.ParseAddr(host); err == nil {
		b = []byte{5, 1, 0, 5, 1, 0, 1}
		if a.Is6() {
			b[6] = 4
		}
		b = append(b, a.AsSlice()...)
	}
	c.Write(append(b, byte(n>>8), byte(n)))
	reply := make([]byte, 12)
	if _, err := io.ReadFull(c, reply); err != nil {
		t.Fatalf("SOCKS %s: %v", to, err)
	}
	return reply[3]
}

func TestProxyRoutesDecideAlike(t *testing.T) {
	w := newWorld(t, policy(t, "web.example:80,ssh.example:22", "203.0.113.0/24:22,[2001:db8::/32]:22"))
	w.dns.set("web.example", "203.0.113.1")
	w.dns.set("ssh.example", "203.0.113.2")
	w.listen(t, 80, httpServer)
	w.listen(t, 22, banner)
	for _, tt := range []struct {
		to      string
		allowed bool
		advice  string
	}{
		{"ssh.example:22", true, ""},
		{"SSH.Example.:22", true, ""},
		{"203.0.113.9:22", true, ""},
		{"[2001:db8::9]:22", true, ""},
		{"ssh.example:23", false, "--allow ssh.example:23"},
		{"evil.example:22", false, "--allow evil.example:22"},
		{"198.51.100.9:22", false, "--allow-cidr 198.51.100.9/32:22"},
		{"10.0.0.1:22", false, "--allow-cidr 10.0.0.1/32:22"},
		{"169.254.169.254:22", false, "No setting opens it"},
		{"[::ffff:203.0.113.9]:22", false, "No setting opens it"},
		{"100.64.0.1:3128", false, "No setting opens it"},
	} {
		c, res := w.connect(t, tt.to)
		if tt.allowed {
			if res.StatusCode != 200 {
				t.Errorf("CONNECT %s: %s", tt.to, res.Status)
			} else if got := line(t, c); !strings.HasPrefix(got, "hello from ") {
				t.Errorf("CONNECT %s says %q", tt.to, got)
			}
		} else if res.StatusCode != 403 || !strings.Contains(res.Status, tt.advice) || !strings.Contains(res.Status, "policy") || !strings.Contains(res.Status, "Do not retry") {
			t.Errorf("CONNECT %s: %s; want 403 with %q", tt.to, res.Status, tt.advice)
		}
		c.Close()
		want := byte(socksDenied)
		if tt.allowed {
			want = socksOK
		}
		if code := w.socks(t, tt.to); code != want {
			t.Errorf("SOCKS %s: code %d, want %d", tt.to, code, want)
		}
	}
	for _, host := range []string{"2130706433", "0x7f000001", "0177.0.0.1", "127.1", "ssh.example\x00.evil", "ssh.example%00", "[::1]x"} {
		if code := w.socks(t, host+":22"); code != socksDenied {
			t.Errorf("SOCKS %q: code %d, want %d", host, code, socksDenied)
		}
	}
	addr, _ := w.lookup(t, "udp", "ssh.example")
	if code := w.socks(t, addr.String()+":22"); code != socksOK {
		t.Errorf("SOCKS to a synthetic address: %d", code)
	}
	w.dns.set("ssh.example") // no address at all
	w.cache.forget()
	if c, res := w.connect(t, "ssh.example:22"); res.StatusCode != 502 {
		t.Errorf("a name without an address: %s", res.Status)
	} else {
		c.Close()
	}
	for _, v := range w.visits() {
		if v.Addr().String() == "203.0.113.2" || v.Addr().String() == "203.0.113.9" || v.Addr().String() == "2001:db8::9" {
			continue
		}
		t.Errorf("arrived at %v", v)
	}
}

func TestPlainHTTPThroughTheProxy(t *testing.T) {
	w := newWorld(t, policy(t, "web.example:80", ""))
	w.dns.set("web.example", "203.0.113.1")
	var bodies sync.Map
	w.listen(t, 80, func(c net.Conn) {
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			fmt.Fprint(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
			return
		}
		b, err := io.ReadAll(req.Body)
		bodies.Store(req.URL.Path, fmt.Sprintf("%s %d %v", req.Host, len(b), err))
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
	})
	send := func(request string) string {
		c, err := w.dial("100.64.0.1:3128")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, request)
		b, _ := io.ReadAll(c)
		return string(b)
	}
	big := strings.Repeat("x", 100_000)
	for path, request := range map[string]string{
		"/get":     crlf("GET http://web.example/get HTTP/1.1", "Host: web.example"),
		"/post":    crlf("POST http://WEB.example:80/post HTTP/1.1", "Host: web.example", "Content-Length: 100000") + big,
		"/chunked": crlf("POST http://web.example/chunked HTTP/1.1", "Host: web.example", "Transfer-Encoding: chunked") + "186a0\r\n" + big + "\r\n0\r\nX: y\r\n\r\nGET http://evil.example/ HTTP/1.1\r\n\r\n",
	} {
		if got := send(request); !strings.HasPrefix(got, "HTTP/1.1 200 OK") || !strings.HasSuffix(got, "ok") {
			t.Errorf("%s: %.200q", path, got)
		}
		want := "web.example 100000 <nil>"
		if path == "/get" {
			want = "web.example 0 <nil>"
		}
		if got, _ := bodies.Load(path); got != want {
			t.Errorf("%s: the server got %v, want %v", path, got, want)
		}
	}
	if got := send(crlf("GET http://evil.example/ HTTP/1.1", "Host: evil.example")); !strings.HasPrefix(got, "HTTP/1.1 403 ") {
		t.Errorf("denied: %q", got)
	}
	if got := send(crlf("GET / HTTP/1.1", "Host: web.example")); !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, "this is a proxy") {
		t.Errorf("origin form: %q", got)
	}
	if n := len(w.visits()); n != 3 {
		t.Errorf("%d connections arrived, want 3", n)
	}
}
