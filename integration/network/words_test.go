package network

import (
	"encoding/base64"
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

const gatewayProxy = "100.64.0.1:3128"

// lines joins what an HTTP client says.
func lines(text ...string) string { return strings.Join(text, "\r\n") + "\r\n\r\n" }

// wordsToProxy are requests that two readers may read in two ways, or that name what is
// closed. Each may come to a refusal or to web.test, and to nothing else.
var wordsToProxy = map[string][]string{
	"a second request behind a tunnel's": {lines("CONNECT web.test:80 HTTP/1.1", "Host: web.test:80") + lines("GET / HTTP/1.1", "Host: evil.test")},
	"a tunnel to another host's port":    {lines("CONNECT web.test:80#@10.1.2.3:80 HTTP/1.1", "Host: web.test:80")},
	"a tunnel with a name behind NUL":    {lines("CONNECT 10.1.2.3:80\x00.web.test:80 HTTP/1.1", "Host: web.test:80")},
	"a tunnel to the gateway itself":     {lines("CONNECT 100.64.0.1:3128 HTTP/1.1", "Host: 100.64.0.1:3128")},
	"a tunnel to a mapped address":       {lines("CONNECT [::ffff:169.254.169.254]:80 HTTP/1.1", "Host: [::ffff:169.254.169.254]:80")},
	"a tunnel to a zone":                 {lines("CONNECT [fe80::1%25eth0]:80 HTTP/1.1", "Host: [fe80::1%25eth0]:80")},
	"a tunnel to a decimal address":      {lines("CONNECT 2852039166:80 HTTP/1.1", "Host: 2852039166:80")},
	"a tunnel to an octal address":       {lines("CONNECT 0251.0376.0251.0376:80 HTTP/1.1", "Host: 0251.0376.0251.0376:80")},
	"a user name in a URL":               {lines("GET http://web.test@10.1.2.3/ HTTP/1.1", "Host: web.test")},
	"two hosts":                          {lines("GET http://web.test/ HTTP/1.1", "Host: web.test", "Host: evil.test")},
	"a host split over lines":            {lines("GET http://web.test/ HTTP/1.1", "Host: web.test\n\tevil.test")},
	"a header in a path":                 {lines("GET http://web.test/ HTTP/1.1\r\nHost: evil.test\r\nX: HTTP/1.1", "Host: web.test")},
	"a request in a body of no length":   {lines("GET http://web.test/ HTTP/1.1", "Host: web.test", "Content-Length: 0") + lines("GET / HTTP/1.1", "Host: evil.test")},
	"a length and chunks":                {lines("POST http://web.test/ HTTP/1.1", "Host: web.test", "Content-Length: 5", "Transfer-Encoding: chunked") + "0\r\n\r\n" + lines("GET / HTTP/1.1", "Host: evil.test")},
	"chunks that end early":              {lines("POST http://web.test/ HTTP/1.1", "Host: web.test", "Transfer-Encoding: chunked") + "0;x\n\r\n\r\n" + lines("GET / HTTP/1.1", "Host: evil.test")},
	"the next request to another host":   {lines("GET http://web.test/ HTTP/1.1", "Host: web.test") + lines("GET http://evil.test/ HTTP/1.1", "Host: evil.test")},
	"an upgrade":                         {lines("GET http://web.test/ HTTP/1.1", "Host: web.test", "Connection: Upgrade", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")},
	"SOCKS5 to a metadata service":       {"\x05\x01\x00", "\x05\x01\x00\x01\xa9\xfe\xa9\xfe\x00\x50"},
	"SOCKS5 to loopback":                 {"\x05\x01\x00", "\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"},
	"SOCKS5 to a literal in a name":      {"\x05\x01\x00", "\x05\x01\x00\x03\x0f169.254.169.254\x00\x50"},
	"SOCKS5 to a mapped address":         {"\x05\x01\x00", "\x05\x01\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x0a\x01\x02\x03\x00\x50"},
	"SOCKS5 to a name behind NUL":        {"\x05\x01\x00", "\x05\x01\x00\x03\x11evil.test\x00web.tes\x00\x50"},
	"SOCKS5 that would listen":           {"\x05\x01\x00", "\x05\x02\x00\x01\x00\x00\x00\x00\x00\x50"},
	"SOCKS5 for datagrams":               {"\x05\x01\x00", "\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00"},
	"SOCKS4 to a private address":        {"\x04\x01\x00\x50\x0a\x01\x02\x03\x00"},
	"SOCKS4a to another name":            {"\x04\x01\x00\x50\x00\x00\x00\x01\x00evil.test\x00"},
	"TLS to the proxy":                   {"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"},
	"HTTP/2 to the proxy":                {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
}

// wordsToName are said to web.test:80, which is allowed, about evil.test, which is not.
var wordsToName = map[string][]string{
	"another host":               {lines("GET / HTTP/1.1", "Host: evil.test")},
	"another host, byte by byte": strings.Split(lines("GET / HTTP/1.1", "Host: evil.test"), ""),
	"an empty line before":       {"\r\n\r\n" + lines("GET / HTTP/1.1", "Host: evil.test")},
	"a space before":             {" " + lines("GET / HTTP/1.1", "Host: evil.test")},
	"bare line feeds":            {"GET / HTTP/1.1\nHost: evil.test\n\n"},
	"a whole URL":                {lines("GET http://evil.test/ HTTP/1.1", "Host: web.test")},
	"a tunnel":                   {lines("CONNECT evil.test:443 HTTP/1.1", "Host: evil.test:443")},
	"two hosts":                  {lines("GET / HTTP/1.1", "Host: web.test", "Host: evil.test")},
	"a host with a port":         {lines("GET / HTTP/1.1", "Host: evil.test:80")},
	"another version":            {lines("GET / HTTP/1.2", "Host: evil.test")},
	"a version in lower case":    {lines("GET / http/1.1", "Host: evil.test")},
}

// query asks over TCP, where a length comes first.
func query(t *testing.T, name string, kind dnsmessage.Type, ids ...uint16) string {
	t.Helper()
	var all []byte
	for _, id := range append(ids, 7) {
		m := dnsmessage.Message{
			Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
			Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
		}
		data, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		all = append(binary.BigEndian.AppendUint16(all, uint16(len(data))), data...)
	}
	return string(all)
}

// TestHostileWords has a program say to its gateway what no well-behaved one would: to
// the proxy, to the resolver over TCP, and to a name that is allowed. Whatever it says,
// the far side is reached where that is allowed alone, no server is asked for a name
// that is not, and nobody is served as another host.
func TestHostileWords(t *testing.T) {
	someRuntimes(t, func(t *testing.T, runtime string) {
		b := newBed(t)
		s := b.start(runtime, "--allow", webName+":80", "--allow", webName+":443")
		say := func(what, to string, parts []string) string {
			line := "send " + to
			for _, p := range parts {
				line += " " + base64.StdEncoding.EncodeToString([]byte(p))
			}
			f := s.ask(line)
			if strings.Contains(f.Text, "served evil") || strings.Contains(f.Text, "far ") || strings.Contains(f.Text, "SSH-") {
				t.Errorf("%s to %s was answered %q", what, to, f.Text)
			}
			return f.Text
		}
		for what, parts := range wordsToProxy {
			say(what, gatewayProxy, parts)
		}
		for what, parts := range wordsToName {
			say(what, webName+":80", parts)
		}
		// The same name is served, so the bed works.
		if got := say("the right host", webName+":80", []string{lines("GET / HTTP/1.1", "Host: "+webName, "Connection: close")}); !strings.Contains(got, "served "+webName) {
			t.Errorf("the right host was answered %q", got)
		}
		for what, q := range map[string]string{
			"another name":         query(t, "c2VjcmV0.evil.test.", dnsmessage.TypeA),
			"a name below":         query(t, "c2VjcmV0."+webName+".", dnsmessage.TypeA),
			"text of a name":       query(t, "c2VjcmV0.evil.test.", dnsmessage.TypeTXT),
			"a transfer of a zone": query(t, "test.", dnsmessage.TypeAXFR),
			"many at once":         query(t, "c2VjcmV0.evil.test.", dnsmessage.TypeA, make([]uint16, 200)...),
			"less than it says":    "\xff\xff\x00\x01",
			"nothing":              "\x00\x00\x00\x00",
		} {
			say(what, "100.64.0.1:53", []string{q})
		}
		r := s.end()
		if r.Reason == nil || *r.Reason != "exited" {
			t.Errorf("the run came to %s", why(r))
		}
		for _, name := range b.world.dns.queries() {
			if name != webName {
				t.Errorf("upstream was asked for %q", name)
			}
		}
		b.world.noLeaks(func(p packet) bool { return p.dst == webAddr && (p.port == 80 || p.port == 443) })
	})
}
