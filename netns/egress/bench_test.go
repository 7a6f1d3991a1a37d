package egress

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// benchmarkStream measures one stream's bytes in one direction: client, server and
// far side share this process and its processors.
func benchmarkStream(b *testing.B, dial func(*world, int) (net.Conn, error)) {
	for _, upload := range []bool{true, false} {
		b.Run(map[bool]string{true: "upload", false: "download"}[upload], func(b *testing.B) {
			w := newWorld(b, policy(b, "web.example:7000,web.example:7001", "203.0.113.0/24:7000,203.0.113.0/24:7001"))
			w.dns.set("web.example", "203.0.113.1")
			w.listen(b, 7000, func(c net.Conn) { io.Copy(io.Discard, c) })
			w.listen(b, 7001, func(c net.Conn) { io.Copy(c, zeros{}) })
			port := 7001
			if upload {
				port = 7000
			}
			c, err := dial(w, port)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Time{})
			buf := make([]byte, 256<<10)
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				if upload {
					_, err = c.Write(buf)
				} else {
					_, err = io.ReadFull(c, buf)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkStreamByAddress(b *testing.B) {
	benchmarkStream(b, func(w *world, port int) (net.Conn, error) { return w.dial(fmt.Sprintf("203.0.113.1:%d", port)) })
}

func BenchmarkStreamByName(b *testing.B) {
	benchmarkStream(b, func(w *world, port int) (net.Conn, error) { return w.dialName(b, "web.example", port) })
}

func BenchmarkStreamByProxy(b *testing.B) {
	benchmarkStream(b, func(w *world, port int) (net.Conn, error) {
		c, err := w.dial("100.64.0.1:3128")
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(c, "CONNECT web.example:%d HTTP/1.1\r\nHost: web.example:%d\r\n\r\n", port, port)
		_, err = io.ReadFull(c, make([]byte, len("HTTP/1.1 200 Connection established\r\n\r\n")))
		return c, err
	})
}

// BenchmarkConnect is a look-up, a connection and its first byte.
func BenchmarkConnect(b *testing.B) {
	p := policy(b, "ssh.example:22", "")
	p.Limits.PerSecond = 1 << 20
	w := newWorld(b, p)
	w.dns.set("ssh.example", "203.0.113.1")
	w.listen(b, 22, func(c net.Conn) { fmt.Fprintln(c, "hi") })
	for b.Loop() {
		c, err := w.dialName(b, "ssh.example", 22)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 3)); err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}

func BenchmarkDNSAnswer(b *testing.B) {
	s := serve(b, Config{Policy: policy(b, "example.com", "")})
	msg := ask(b, "example.com.", dnsmessage.TypeA, true)
	b.ReportAllocs()
	for b.Loop() {
		if s.respond(b.Context(), msg) == nil {
			b.Fatal("no answer")
		}
	}
}

func BenchmarkServe(b *testing.B) {
	for b.Loop() {
		s, err := Serve(Config{Gateway: quietGateway{}, Policy: policy(b, "example.com", "")})
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

// BenchmarkStreamToGateway has the gateway's end consume and produce the bytes
// itself: what the link alone can do.
func BenchmarkStreamToGateway(b *testing.B) {
	for _, upload := range []bool{true, false} {
		b.Run(map[bool]string{true: "upload", false: "download"}[upload], func(b *testing.B) {
			w := newWorld(b, policy(b, "", "203.0.113.0/24:7000"))
			w.Close()
			l, err := w.gateway.Listen("tcp4", "0.0.0.0:1")
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			go func() {
				c, err := l.Accept()
				if err == nil && upload {
					io.Copy(io.Discard, c)
				} else if err == nil {
					io.Copy(c, zeros{})
				}
			}()
			c, err := w.dial("203.0.113.1:7000")
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Time{})
			buf := make([]byte, 256<<10)
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				if upload {
					_, err = c.Write(buf)
				} else {
					_, err = io.ReadFull(c, buf)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
