package api

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestConnectionsAreBounded opens more from one address than it may, and has each kind of
// caller counted as what they are.
func TestConnectionsAreBounded(t *testing.T) {
	b := newBed(t, access)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := b.server.HTTP()
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	answers := func(conn net.Conn) bool {
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Write([]byte("GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
			return false
		}
		n, err := conn.Read(make([]byte, 1))
		return n == 1 && err == nil
	}
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	var first net.Conn
	for i := range maxOfAddress {
		conn := dial()
		if i == 0 {
			first = conn
		}
		if !answers(conn) {
			t.Fatalf("connection %d of %d is not answered", i+1, maxOfAddress)
		}
	}
	if answers(dial()) {
		t.Error("one more than there may be is answered")
	}
	first.Close()
	for deadline := time.Now().Add(10 * time.Second); !answers(dial()); {
		if time.Now().After(deadline) {
			t.Fatal("a place that got free is not given to anybody")
		}
	}
	if text := b.log.String(); strings.Count(text, "too many") != 1 {
		t.Errorf("the log tells it %d times", strings.Count(text, "too many"))
	}
	for _, tt := range []struct {
		from peer
		want string
	}{
		{peer{}, ""},
		{peer{uid: 1001, groups: []uint32{1001, 50}}, ""},
		{peer{uid: 1001, groups: []uint32{1001}}, "uid 1001"},
		{peer{uid: 77}, "strangers"},
		{peer{uid: 78}, "strangers"},
		{peer{err: net.ErrClosed}, "strangers"},
	} {
		got := ""
		if shares := b.server.sharesOf(nil, tt.from, true); len(shares) > 0 {
			got = shares[0].key
		}
		if got != tt.want {
			t.Errorf("%+v counts as %q, want %q", tt.from, got, tt.want)
		}
	}
}

// TestPagesOfOthers sends what a browser sends for a page from elsewhere.
func TestPagesOfOthers(t *testing.T) {
	b := newBed(t, access)
	for _, tt := range []struct {
		name         string
		origin, site string
		method, path string
		body         string
		want         int
	}{
		{"a form of another's", "https://evil.example", "cross-site", "POST", "/v1/estimate", `{"inputs":[]}`, 403},
		{"an old browser", "https://evil.example", "", "POST", "/v1/estimate", `{"inputs":[]}`, 403},
		{"a page without an origin of its own", "null", "", "POST", "/v1/estimate", `{"inputs":[]}`, 403},
		{"another port", "https://engine:8443", "same-site", "POST", "/v1/estimate", `{"inputs":[]}`, 403},
		{"a picture", "", "cross-site", "GET", "/v1/version", "", 403},
		{"no browser", "", "", "POST", "/v1/estimate", `{"inputs":[]}`, 200},
		{"its own page", "https://engine", "same-origin", "POST", "/v1/estimate", `{"inputs":[]}`, 200},
	} {
		r, _ := http.NewRequestWithContext(context.WithValue(context.Background(), peerKey{}, peer{}), tt.method, "https://engine"+tt.path, strings.NewReader(tt.body))
		if tt.origin != "" {
			r.Header.Set("Origin", tt.origin)
		}
		if tt.site != "" {
			r.Header.Set("Sec-Fetch-Site", tt.site)
		}
		if status, f := b.answer(r); status != tt.want || status == 403 && f.Error.Kind != "forbidden" {
			t.Errorf("%s: status %d %+v, want %d", tt.name, status, f.Error, tt.want)
		}
	}
}

// TestLargeBodiesAreFew lets one caller have so many large bodies read at once, and leaves
// others theirs.
func TestLargeBodiesAreFew(t *testing.T) {
	b := newBed(t, access)
	large := `{"command":["x"],"image":"x","env":{"A=":"` + strings.Repeat("x", bulkBody) + `"}}`
	shop := peer{uid: 1003, groups: []uint32{60}}
	var leave []func()
	for range maxOwn {
		l, err := b.server.bulk.enter(t.Context(), "uid 1003", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, l)
	}
	if _, f := b.as(shop, "POST", "/v1/runs", large); f.Error.Kind != "busy" {
		t.Errorf("one more: %+v", f.Error)
	}
	if _, f := b.as(peer{}, "POST", "/v1/runs", large); f.Error.Kind != "bad_env" {
		t.Errorf("another's: %+v", f.Error)
	}
	for _, l := range leave {
		l()
	}
	for range 2 * maxOwn { // each gives its place back
		if _, f := b.as(shop, "POST", "/v1/runs", large); f.Error.Kind != "bad_env" {
			t.Errorf("afterwards: %+v", f.Error)
		}
	}
	if _, err := b.server.bulk.enter(t.Context(), "x", time.Second); err != nil {
		t.Error(err)
	}
	if n := len(b.server.bulk.all); n != 1 {
		t.Errorf("%d places are taken, want 1", n)
	}
}
