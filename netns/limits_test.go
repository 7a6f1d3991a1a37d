package netns

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestConnectionsAreLimited(t *testing.T) {
	const limit = 16
	g := newGateway(t, GatewayConfig{Policy: mixed, Limits: Limits{Connections: limit}})
	echo(t, g, "0.0.0.0:1")
	inside(t, g.sandbox, func() error {
		var open []net.Conn
		for range 2 * limit {
			c, err := net.DialTimeout("tcp", "198.18.0.7:443", patience)
			if err == nil {
				open = append(open, c)
			} else if !errors.Is(err, unix.ECONNREFUSED) {
				return err
			}
		}
		if len(open) != limit {
			return fmt.Errorf("%d connections are open, want %d", len(open), limit)
		}
		c, err := g.Counters()
		if err != nil || c.Limited.Packets != limit {
			return fmt.Errorf("%d were limited, want %d: %v", c.Limited.Packets, limit, err)
		}
		for _, c := range open {
			c.Close()
		}
		return until(func() error {
			_, err := talkHere("tcp", "198.18.0.7:443")
			return err
		})
	})
}

// until calls f until it succeeds, for a bounded time.
func until(f func() error) error {
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}

func TestNewConnectionsAreLimited(t *testing.T) {
	g := newGateway(t, GatewayConfig{Policy: mixed, Limits: Limits{ConnectionsPerSec: 5}})
	echo(t, g, "0.0.0.0:1")
	inside(t, g.sandbox, func() error {
		start, opened := time.Now(), 0
		for range 200 {
			if _, err := talkHere("tcp", "198.18.0.7:443"); err == nil {
				opened++
			}
		}
		if most := 5 + 5*int(time.Since(start).Seconds()+1); opened < 5 || opened > most {
			return fmt.Errorf("%d of 200 connections, want 5 to %d", opened, most)
		}
		return nil
	})
}

// TestBytesAreLimited proves that neither side hangs once the quota is used up.
func TestBytesAreLimited(t *testing.T) {
	const limit = 4 << 20
	for _, upload := range []bool{true, false} {
		t.Run(map[bool]string{true: "sent", false: "received"}[upload], func(t *testing.T) {
			g := newGateway(t, GatewayConfig{Policy: mixed, Limits: Limits{Bytes: limit}})
			l, err := g.Listen("tcp", "0.0.0.0:1")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			far := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err != nil {
					far <- err
					return
				}
				defer c.Close()
				far <- pour(c, !upload)
			}()
			inside(t, g.sandbox, func() error {
				c, err := net.DialTimeout("tcp", "198.18.0.7:443", patience)
				if err != nil {
					return err
				}
				defer c.Close()
				if err := pour(c, upload); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
					return fmt.Errorf("the sandbox's side ended with %v, want a reset", err)
				}
				if _, err := talkHere("tcp", "198.18.0.7:443"); !errors.Is(err, unix.ECONNREFUSED) {
					return fmt.Errorf("a new connection: %v, want refused", err)
				}
				return nil
			})
			if !upload {
				if err := <-far; !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
					t.Errorf("the listener's side ended with %v, want a reset", err)
				}
			}
			c, err := g.Counters()
			if err != nil || c.QuotaUsed < limit || c.Tx.Bytes+c.Rx.Bytes > 2*limit || c.Limited.Packets == 0 {
				t.Errorf("counters = %+v, want a quota of %d used up: %v", c, limit, err)
			}
		})
	}
}

// pour writes, or reads, until there is an error.
func pour(c net.Conn, write bool) error {
	c.SetDeadline(time.Now().Add(4 * patience))
	buf := make([]byte, 64<<10)
	for {
		var err error
		if write {
			_, err = c.Write(buf)
		} else {
			_, err = c.Read(buf)
		}
		if err != nil {
			return err
		}
	}
}

func TestRateIsLimited(t *testing.T) {
	const rate, size = 16 << 20, 56 << 20
	for _, upload := range []bool{true, false} {
		t.Run(map[bool]string{true: "sent", false: "received"}[upload], func(t *testing.T) {
			g := newGateway(t, GatewayConfig{Policy: mixed, Limits: Limits{BytesPerSec: rate}})
			took := transfer(t, g, size, upload)
			const atOnce = rate + burst
			if got := (size - atOnce) / took.Seconds(); got > 1.1*rate || got < rate/4 {
				t.Errorf("%.1f MB/s, want about %.1f", got/1e6, rate/1e6)
			}
		})
	}
}

// transfer moves size bytes between the sandbox and a listener.
func transfer(t testing.TB, g *Gateway, size int64, upload bool) time.Duration {
	t.Helper()
	l, err := g.Listen("tcp", "0.0.0.0:1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	move := func(c net.Conn, write bool) error {
		defer c.Close()
		if write {
			_, err := io.CopyN(c, zeros{}, size)
			return err
		}
		n, err := io.Copy(io.Discard, c)
		if err == nil && n != size {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	far := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = move(c, !upload)
		}
		far <- err
	}()
	start := time.Now()
	err = within(int(g.sandbox.Fd()), func() error {
		c, err := net.DialTimeout("tcp", "198.18.0.7:443", patience)
		if err != nil {
			return err
		}
		return move(c, upload)
	})
	if err := errors.Join(err, <-far); err != nil {
		t.Fatalf("cannot transfer: %v", err)
	}
	return time.Since(start)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
