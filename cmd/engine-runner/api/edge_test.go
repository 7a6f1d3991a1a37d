package api

import (
	"strings"
	"testing"

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
