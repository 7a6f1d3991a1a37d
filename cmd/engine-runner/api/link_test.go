package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/cmd/engine-runner/link"
)

// TestLinkInHealth has a dead link seen in health and in the figures, and no run, prober or
// caller suffer from it.
func TestLinkInHealth(t *testing.T) {
	const url = "wss://plane.example/link"
	now := time.Now()
	failures := map[string]int64{"unreachable": 7}
	for _, tt := range []struct {
		name       string
		figures    link.Figures
		degraded   bool
		kind, says string
		metric     string
	}{
		{"up", link.Figures{URL: url, Up: true, Since: now.Add(-time.Hour), Heard: now.Add(-3 * time.Second)}, false, "", "connected to " + url + " for 1h0m0s, heard 3s ago", "engine_link_connected 1"},
		{"down for a moment", link.Figures{URL: url, Since: now.Add(-90 * time.Second), Cause: "refused"}, false, "", "not connected to " + url + " for 1m30s: refused", "engine_link_connected 0"},
		{"down for long", link.Figures{URL: url, Since: now.Add(-3 * time.Minute), Cause: "no route", Failures: failures}, true, "link_down", "for 3m0s: no route", `engine_link_failures_total{reason="unreachable"} 7`},
		{"no control plane", link.Figures{}, false, "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t, access)
			b.server.link = func() link.Figures { return tt.figures }
			for _, path := range []string{"/healthz", "/readyz"} {
				var h wire.Health
				// What else is not well here is no matter: the link alone decides nothing.
				status, _ := b.get(t, path, &h)
				var found *wire.Check
				others := true
				for _, c := range h.Checks {
					if c.Name == "link" {
						found = &c
					} else {
						others = others && c.OK
					}
				}
				if h.OK != others || h.Degraded != tt.degraded || (status == http.StatusOK) != others {
					t.Errorf("%s: status %d %+v", path, status, h)
				}
				if (found == nil) != (tt.figures.URL == "") {
					t.Fatalf("%s: the check is %+v", path, found)
				}
				if found != nil && (!found.Minor || found.OK == tt.degraded || found.Kind != tt.kind || !strings.Contains(found.Found, tt.says)) {
					t.Errorf("%s: the check is %+v, want %q", path, found, tt.says)
				}
			}
			_, text := b.get(t, "/metrics", nil)
			if tt.metric == "" && strings.Contains(text, "engine_link_") || !strings.Contains(text, tt.metric) {
				t.Errorf("the figures lack %q:\n%s", tt.metric, text)
			}
		})
	}
}

// get answers a request of root's, and reads the answer into v if there is one.
func (b *bed) get(t *testing.T, path string, v any) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(context.WithValue(context.Background(), peerKey{}, peer{}), "GET", path, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &answer{header: http.Header{}}
	b.server.ServeHTTP(w, r)
	if v != nil {
		if err := json.Unmarshal(w.body.Bytes(), v); err != nil {
			t.Fatalf("%s: %v in %q", path, err, w.body.String())
		}
	}
	return w.status, w.body.String()
}
