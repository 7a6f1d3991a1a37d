package api

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
)

// TestStatusOfACause answers a sandbox that could not be created with the status of why.
func TestStatusOfACause(t *testing.T) {
	for _, tt := range []struct {
		kind, cause string
		want        int
	}{
		{"container_create_failed", "disk_full", 503},
		{"container_create_failed", "ready_failed", 500},
		{"name_conflict", "disk_full", 409},
	} {
		if got := statusBecause(engine.Failed(tt.kind, "cannot"), tt.cause); got != tt.want {
			t.Errorf("%s because of %q: status %d, want %d", tt.kind, tt.cause, got, tt.want)
		}
	}
}

// TestOddRequests are taken for what they say or refused, never for something else.
func TestOddRequests(t *testing.T) {
	b := newBed(t, access)
	for _, tt := range []struct{ method, path, body, kind, message string }{
		{"POST", "/v1/runs", `{"image":"x","command":["x"],"env":{"A=B":"c"}}`, "bad_env", `"A=B"`},
		{"POST", "/v1/sandboxes", `{"name":"x","class":"small","ttlSeconds":-1e10}`, "bad_limit", "ttlSeconds"},
		{"POST", "/v1/sandboxes", `{"name":"","class":"small"}`, "bad_name", "128"},
		{"POST", "/v1/sandboxes", `{"name":"` + strings.Repeat("x", 129) + `","class":"small"}`, "bad_name", "128"},
		{"POST", "/v1/sandboxes", `[]`, "bad_body", "an array"},
		{"GET", "/v1/sandboxes?state=redy", "", "bad_parameter", "queued, starting, ready"},
		{"GET", "/v1/runs?state=runing", "", "bad_parameter", "running"},
	} {
		if status, f := b.as(peer{}, tt.method, tt.path, tt.body); status != 400 || f.Error.Kind != tt.kind || !strings.Contains(f.Error.Message, tt.message) {
			t.Errorf("%s %s %.60s: status %d %+v, want %s with %q", tt.method, tt.path, tt.body, status, f.Error, tt.kind, tt.message)
		}
	}
	b.log.Reset()
	b.as(peer{}, "GET", "/v1/runs/"+strings.Repeat("y", 5000), "")
	if n := b.log.Len(); n > 1000 {
		t.Errorf("a long path makes %d bytes of log", n)
	}
}

// TestEveryAnswerIsTheAPIs asks in ways that the mux, the WebSocket library or the server's
// own handlers would answer by themselves.
func TestEveryAnswerIsTheAPIs(t *testing.T) {
	b := newBed(t, access)
	b.listen()
	upgrade := "Connection: Upgrade\r\nUpgrade: websocket\r\n"
	for _, tt := range []struct {
		head, kind, fix string
		status          int
	}{
		{"GET //v1/version", "unknown_route", "/v1/version", 404},
		{"GET /v1/../v1/version", "unknown_route", "/v1/version", 404},
		{"POST /v1/./runs?a=b", "unknown_route", "/v1/runs", 404},
		{"DELETE /v1/runs//aaaaaaaaaaaaaaaa/", "unknown_route", "/v1/runs/aaaaaaaaaaaaaaaa/", 404},
		{"GET /v1/version/", "unknown_route", "/v1/version", 404},
		{"GET http://engine//", "unknown_route", "ask for /", 404},
		{"OPTIONS *", "unknown_route", "openapi", 404},
		{"GET *", "unknown_route", "openapi", 404},
		{"CONNECT engine:443", "bad_method", "", 405},
		{"OPTIONS /v1/runs", "bad_method", "", 405},
		{"PATCH /v1/runs", "bad_method", "", 405},
		{"GET /v1/runs?label=a;limit=1", "bad_parameter", "%3B", 400},
		{"GET /v1/runs?label=%zz", "bad_parameter", "%25", 400},
		{"GET /v1/sandboxes/a/execs/b/attach", "no_websocket", "", 426},
		{"GET /v1/sandboxes/a/execs/b/attach HTTP/1.1\r\n" + upgrade + "X:", "no_websocket", "", 426},
		{"GET /v1/sandboxes/a/execs/b/attach HTTP/1.1\r\n" + upgrade + "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\nX:", "no_websocket", "", 426},
		{"GET /v1/sandboxes/a/execs/b/attach HTTP/1.1\r\n" + upgrade + "Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nX:", "no_websocket", "", 426},
	} {
		res, f := b.raw(tt.head + " HTTP/1.1\r\nHost: engine\r\n\r\n")
		if res.StatusCode != tt.status || res.Header.Get("Content-Type") != "application/json" || f.Error.Kind != tt.kind || !strings.Contains(f.Error.Fix, tt.fix) {
			t.Errorf("%q: status %d %s %+v, want %d %s with %q", tt.head, res.StatusCode, res.Header.Get("Content-Type"), f.Error, tt.status, tt.kind, tt.fix)
		}
	}
}

// TestAnswersBeforeTheAPI holds what docs/SERVICE.md says of requests that cannot be read.
func TestAnswersBeforeTheAPI(t *testing.T) {
	b := newBed(t, access)
	b.listen()
	for text, want := range map[string]int{
		"nonsense\r\n\r\n":                        400,
		"GET /v1/version HTTP/1.1\r\n\r\n":        400, // no Host
		"GET /v1/%zz HTTP/1.1\r\nHost: e\r\n\r\n": 400,
		"GET /v1/version HTTP/1.1\r\nHost: e\r\nX: " + strings.Repeat("x", 40<<10) + "\r\n\r\n": 431,
		"POST /v1/gc HTTP/1.1\r\nHost: e\r\nTransfer-Encoding: gzip\r\n\r\n":                    501,
		"GET /v1/version HTTP/3.0\r\nHost: e\r\n\r\n":                                           505,
		"POST /v1/gc HTTP/1.1\r\nHost: e\r\nExpect: wonders\r\nContent-Length: 2\r\n\r\n{}":     417,
	} {
		res, _ := b.raw(text)
		if res.StatusCode != want || res.Header.Get("Content-Type") == "application/json" || res.Header.Get("X-Request-Id") != "" {
			t.Errorf("%.40q: status %d %v, want %d from the server itself", text, res.StatusCode, res.Header, want)
		}
	}
}

// raw sends bytes on a connection of their own, and reads the answer.
func (b *bed) raw(text string) (*http.Response, wire.Failure) {
	b.t.Helper()
	conn, err := net.Dial("unix", b.socket)
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		b.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		b.t.Fatalf("%.60q: %v", text, err)
	}
	defer res.Body.Close()
	var f wire.Failure
	if data, err := io.ReadAll(res.Body); err == nil && res.Header.Get("Content-Type") == "application/json" {
		err = json.Unmarshal(data, &f)
		if err != nil {
			b.t.Errorf("%.60q: %v in %q", text, err, data)
		}
	}
	return res, f
}
