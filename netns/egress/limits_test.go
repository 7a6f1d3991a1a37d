package egress

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

func TestBytesArriveWhole(t *testing.T) {
	p := policy(t, "", "203.0.113.0/24:7000,203.0.113.0/24:7001")
	w := newWorld(t, p)
	const size = 64 << 20
	sums := make(chan [32]byte, 1)
	seed := [32]byte{1}
	w.listen(t, 7000, func(c net.Conn) {
		h := sha256.New()
		io.Copy(h, c)
		sums <- [32]byte(h.Sum(nil))
		fmt.Fprintln(c, "done")
	})
	w.listen(t, 7001, func(c net.Conn) { io.CopyN(c, rand.NewChaCha8(seed), size) })
	c, err := w.dial("203.0.113.1:7000")
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(c, h), rand.NewChaCha8(seed), size); err != nil {
		t.Fatal(err)
	}
	c.(*net.TCPConn).CloseWrite()
	want := [32]byte(h.Sum(nil))
	if got := <-sums; got != want {
		t.Error("the upload arrived changed")
	}
	if got := line(t, c); got != "done\n" { // after our half was closed
		t.Errorf("got %q", got)
	}
	c.Close()
	if c, err = w.dial("203.0.113.1:7001"); err != nil {
		t.Fatal(err)
	}
	h.Reset()
	if n, err := io.Copy(h, c); n != size || err != nil || [32]byte(h.Sum(nil)) != want {
		t.Errorf("the download arrived changed: %d bytes, %v", n, err)
	}
	c.Close()
	expect(t, "all sessions end", func() bool { st, _ := w.Stats(); return st.Open == 0 })
	if d := allowed(t, w, "203.0.113.1", 7000); d.TxBytes != size || d.RxBytes != 5 {
		t.Errorf("counted %+v", d)
	}
	if d := allowed(t, w, "203.0.113.1", 7001); d.TxBytes != 0 || d.RxBytes != size {
		t.Errorf("counted %+v", d)
	}
}

func TestConnectionsAtOnceAreLimited(t *testing.T) {
	p := policy(t, "", "203.0.113.0/24:22")
	p.Limits = Limits{Connections: 5}
	w := newWorld(t, p)
	w.listen(t, 22, banner)
	var held []net.Conn
	for range 5 {
		c, err := w.dial("203.0.113.1:22")
		if err != nil {
			t.Fatal(err)
		}
		line(t, c)
		held = append(held, c)
	}
	c, err := w.dial("203.0.113.1:22")
	wantRefused(t, c, err, "one too many")
	held[0].Close()
	expect(t, "a slot is free", func() bool { st, _ := w.Stats(); return st.Open == 4 })
	if c, err = w.dial("203.0.113.1:22"); err != nil {
		t.Fatal(err)
	}
	line(t, c)
	if d := denied(t, w, "203.0.113.1", 22, "tcp"); d.Rule != ruleLimit || d.Count != 1 {
		t.Errorf("counted %+v", d)
	}
}

func TestNewConnectionsAreLimited(t *testing.T) {
	p := policy(t, "", "203.0.113.0/24:22")
	p.Limits = Limits{PerSecond: 20}
	w := newWorld(t, p)
	w.listen(t, 22, func(c net.Conn) { fmt.Fprintln(c, "hi") })
	began, served := time.Now(), 0
	for range 200 {
		if c, err := w.dial("203.0.113.1:22"); err == nil {
			if b, _ := io.ReadAll(c); len(b) > 0 {
				served++
			}
			c.Close()
		}
	}
	if most := 20 + int(20*time.Since(began).Seconds()) + 1; served > most || served < 20 {
		t.Errorf("%d of 200 were served in %v, want 20 to %d", served, time.Since(began), most)
	}
}

func TestBytesAreLimited(t *testing.T) {
	p := policy(t, "", "203.0.113.0/24:7000")
	p.Limits = Limits{SendBytes: 100_000, ReceiveBytes: 50_000}
	w := newWorld(t, p)
	got := make(chan int64, 1)
	w.listen(t, 7000, func(c net.Conn) { n, _ := io.Copy(io.Discard, c); got <- n })
	c, err := w.dial("203.0.113.1:7000")
	if err != nil {
		t.Fatal(err)
	}
	io.CopyN(c, zeros{}, 10<<20)
	if n := <-got; n != 100_000 {
		t.Errorf("%d bytes arrived, want 100000", n)
	}
	c.Close()
	if d := allowed(t, w, "203.0.113.1", 7000); d.TxBytes != 100_000 {
		t.Errorf("counted %+v", d)
	}
}

func TestSilenceIsLimited(t *testing.T) {
	p := policy(t, "web.example:80", "203.0.113.0/24:22")
	p.Limits = Limits{Idle: 200 * time.Millisecond}
	w := newWorld(t, p)
	w.dns.set("web.example", "203.0.113.1")
	w.listen(t, 22, banner)
	w.listen(t, 80, httpServer)
	c, err := w.dial("203.0.113.1:22")
	if err != nil {
		t.Fatal(err)
	}
	wantReset(t, c, "silent")
	if c, err = w.dialName(t, "web.example", 80); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "GET / HT") // and nothing more
	wantReset(t, c, "half a request")
}

func TestTimeIsLimited(t *testing.T) {
	p := policy(t, "", "203.0.113.0/24:22")
	p.Limits = Limits{Total: 200 * time.Millisecond}
	w := newWorld(t, p)
	w.listen(t, 22, func(c net.Conn) { io.Copy(c, zeros{}) })
	c, err := w.dial("203.0.113.1:22")
	if err != nil {
		t.Fatal(err)
	}
	wantReset(t, c, "too long")
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
