package client

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/direct-oci/engine/client/wire"
)

// serve answers on a Unix socket, and returns a client of it.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	go srv.Serve(l)
	c := Unix(socket)
	t.Cleanup(func() { c.Close(); srv.Close() })
	return c
}

// TestStreamsAreTakenUpAgain cuts a stream in every way a server can.
func TestStreamsAreTakenUpAgain(t *testing.T) {
	var asked atomic.Int64
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		at, err := strconv.Atoi(r.Header.Get("Last-Event-ID"))
		if err != nil || r.Header.Get("Accept") != "text/event-stream" {
			t.Errorf("asked with %v", r.Header)
		}
		if n%5 == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"error":{"class":"engine","kind":"draining","message":"m","fix":""}}`)
			return
		}
		send := func(i int, end string) {
			fmt.Fprintf(w, "id: %d\nevent: output\ndata: {\"kind\":\"data\",\"next\":%d}\n%s", i+1, i+1, end)
		}
		for i := at; i < at+3 && i < 30; i++ {
			send(i, "\n")
		}
		if at >= 27 {
			fmt.Fprint(w, "event: done\ndata: {}\n\n")
			return
		}
		fmt.Fprint(w, ": a comment\n\n")
		send(at+3, "") // half an event
		w.(http.Flusher).Flush()
		if n%2 == 0 {
			panic(http.ErrAbortHandler) // cut, not ended
		}
	})
	var got []int64
	for rec, err := range c.FollowRun(context.Background(), "x", 0) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, rec.Next)
	}
	for i, next := range got {
		if next != int64(i+1) {
			t.Fatalf("followed %v", got)
		}
	}
	if len(got) != 30 {
		t.Errorf("followed %d events of 30", len(got))
	}
}

// TestStreamsEndWithFailures gives up at what the service says, and when it is gone for
// good.
func TestStreamsEndWithFailures(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "event: error\ndata: {\"error\":{\"class\":\"engine\",\"kind\":\"no_output\",\"message\":\"m\",\"fix\":\"\"}}\n\n")
	})
	n := 0
	for _, err := range c.FollowRun(context.Background(), "x", 0) {
		if n++; !IsKind(err, "no_output") {
			t.Errorf("error = %v", err)
		}
	}
	gone := Unix(filepath.Join(t.TempDir(), "nobody"))
	gone.Patience = 100 * time.Millisecond
	for _, err := range gone.FollowRun(context.Background(), "x", 0) {
		if n++; err == nil {
			t.Error("followed nobody")
		}
	}
	if n != 2 {
		t.Errorf("%d things were yielded, want two errors", n)
	}
}

// TestCallsAreSentOnce does not repeat what the service may have done.
func TestCallsAreSentOnce(t *testing.T) {
	var asked atomic.Int64
	c := serve(t, func(http.ResponseWriter, *http.Request) {
		asked.Add(1)
		panic(http.ErrAbortHandler)
	})
	if _, err := c.Call(context.Background(), "p", "n", wire.Call{}, nil); err == nil || asked.Load() != 1 {
		t.Errorf("sent %d times: %v", asked.Load(), err)
	}
	asked.Store(0)
	c.Patience = 300 * time.Millisecond
	if _, err := c.StartRun(context.Background(), wire.RunRequest{}); err == nil || asked.Load() < 2 {
		t.Errorf("a start was sent %d times: %v", asked.Load(), err)
	}
}

// TestErrors has the words of the service, and some of its own for an answer of somebody
// else's.
func TestErrors(t *testing.T) {
	body := `{"error":{"class":"request","kind":"bad_arguments","message":"cannot","fix":"do"},"violations":[{"pointer":"/a","message":"m"}]}`
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Request-Id", "r1")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, body)
	})
	_, err := c.Run(context.Background(), "x")
	e, ok := err.(*Error)
	if !ok || e.Kind != "bad_arguments" || e.Status != 400 || e.Request != "r1" || e.Violations[0].Pointer != "/a" || e.Error() != "cannot (do)" {
		t.Errorf("error = %#v", err)
	}
	body = "<html>"
	if _, err := c.Run(context.Background(), "x"); !IsKind(err, "bad_answer") {
		t.Errorf("error = %v", err)
	}
}

// FuzzReadEvents wants no event of half a text.
func FuzzReadEvents(f *testing.F) {
	f.Add("id: 1\nevent: output\ndata: {}\n\n: comment\n\nevent: x\ndata: a\ndata: b\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		events := 0
		err := readEvents(strings.NewReader(text), func(event) error { events++; return nil })
		if err == nil && events > strings.Count(text, "\n") {
			t.Errorf("%d events in %q", events, text)
		}
	})
}
