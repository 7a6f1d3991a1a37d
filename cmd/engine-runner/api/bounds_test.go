package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
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
	shop := peer{uid: 1003, groups: []uint32{60}}
	for i, tier := range tiers {
		large := `{"command":["x"],"image":"x","env":{"A=":"` + strings.Repeat("x", int(tier.above)) + `"}}`
		var leave []func()
		for range tier.own {
			l, err := b.server.bulk.enter(t.Context(), "uid 1003", tier.above+1, time.Second)
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
		for range 2 * tier.own { // each gives its place back
			if _, f := b.as(shop, "POST", "/v1/runs", large); f.Error.Kind != "bad_env" {
				t.Errorf("afterwards: %+v", f.Error)
			}
		}
		if n := len(b.server.bulk[i].all); n != 0 {
			t.Errorf("%d places are taken", n)
		}
	}
	if leave, err := b.server.bulk.enter(t.Context(), "x", smallBody, time.Second); leave != nil || err != nil {
		t.Errorf("a small body has a place: %v", err)
	}
}

// onRecord puts a run on record that has ended, and what it wrote.
func (b *bed) onRecord(q engine.Request, write func(w *journal.OutputWriter)) string {
	b.t.Helper()
	id := journal.NewID()
	run, err := journal.Create(b.server.host.StateDir, id)
	if err != nil {
		b.t.Fatal(err)
	}
	defer run.Close()
	w, err := journal.CreateOutput(b.server.host.OutputPath(id), 64<<20)
	if err != nil {
		b.t.Fatal(err)
	}
	write(w)
	reason := engine.ReasonExited
	result := engine.Result{ID: id, Reason: &reason, StdoutBytes: w.Written(journal.Stdout), StderrBytes: w.Written(journal.Stderr)}
	if err := errors.Join(w.Close(false), run.Write(journal.Intent, q, false), run.Write(journal.Exit, result, false)); err != nil {
		b.t.Fatal(err)
	}
	return id
}

// ask reads an answer of root's, and returns its size.
func (b *bed) ask(path string, into any) int {
	b.t.Helper()
	status, text := b.get(b.t, path, into)
	if status != 200 {
		b.t.Fatalf("%s: status %d: %.300s", path, status, text)
	}
	return len(text)
}

// TestLargeAnswersAreFew asks for what programs and callers have put on record as if to fill
// the service's memory: it comes in pieces, and each caller has few places for them.
func TestLargeAnswersAreFew(t *testing.T) {
	b := newBed(t, access)
	const many = 2 * maxOutput
	id := b.onRecord(engine.Request{}, func(w *journal.OutputWriter) {
		for range many / (1 << 20) {
			w.Append(journal.Stdout, make([]byte, 1<<20))
		}
	})
	var run wire.Run
	b.ask("/v1/runs/"+id, &run)
	if r := run.Result; len(r.Stdout) != maxOutput || !r.StdoutTruncated || r.StdoutBytes != many || r.StderrTruncated {
		t.Errorf("%d of %d bytes, truncated %v and %v; want %d of %d", len(r.Stdout), r.StdoutBytes, r.StdoutTruncated, r.StderrTruncated, maxOutput, many)
	}
	read, next := 0, int64(0)
	for done := false; !done; {
		var page wire.Output
		b.ask(fmt.Sprintf("/v1/runs/%s/logs?offset=%d", id, next), &page)
		for _, rec := range page.Records {
			read += len(rec.Data)
		}
		done, next = page.Done, page.Next
	}
	if read != many {
		t.Errorf("read %d bytes page by page, want %d", read, many)
	}
	crumbs := b.onRecord(engine.Request{}, func(w *journal.OutputWriter) {
		for range 40000 {
			w.Append(journal.Stdout, []byte("x"))
		}
	})
	var page wire.Output
	if size := b.ask("/v1/runs/"+crumbs+"/logs", &page); size > 2<<20 || page.Done {
		t.Errorf("a page of crumbs has %d bytes, want about 1 MiB", size)
	}
	wide := engine.Request{Env: []string{"A=" + strings.Repeat("x", 1<<19)}}
	for range 5 {
		b.onRecord(wide, func(*journal.OutputWriter) {})
	}
	found := 0
	for list := (wire.RunList{}); found == 0 || list.Next != ""; found += len(list.Runs) {
		next := list.Next
		list = wire.RunList{}
		if size := b.ask("/v1/runs?after="+next, &list); size > 2*maxPage {
			t.Errorf("a page of runs has %d bytes", size)
		}
	}
	if found != 7 {
		t.Errorf("listed %d runs, want 7", found)
	}
	for range tiers[0].own {
		if _, err := b.server.bulk.enter(t.Context(), "uid 1003", bulkBody+1, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if _, f := b.as(peer{uid: 1003, groups: []uint32{60}}, "GET", "/v1/runs/"+b.onRecord(engine.Request{Labels: map[string]string{tenantLabel: "shop"}}, func(w *journal.OutputWriter) {
		w.Append(journal.Stdout, make([]byte, 2<<20))
	}), ""); f.Error.Kind != "busy" {
		t.Errorf("one answer more: %+v", f.Error)
	}
}
