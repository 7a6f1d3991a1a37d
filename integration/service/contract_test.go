package service

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/client"
)

// operation is what the API's description says of one.
type operation struct {
	OperationID string `json:"operationId"`
	Class       string `json:"x-class"`
	RequestBody *struct {
		Content map[string]media `json:"content"`
	} `json:"requestBody"`
	Responses map[string]struct {
		Content map[string]media `json:"content"`
	} `json:"responses"`
}

type media struct {
	Schema json.RawMessage `json:"schema"`
	Events map[string]struct {
		Schema json.RawMessage `json:"schema"`
	} `json:"x-events"`
}

// description is the API's, and what of it was seen to be true.
type description struct {
	t          *testing.T
	Paths      map[string]map[string]operation `json:"paths"`
	Components json.RawMessage                 `json:"components"`
	seen       map[string]bool
}

// check holds a value against a schema.
func (d *description) check(what string, schema json.RawMessage, data []byte) {
	d.t.Helper()
	var s map[string]any
	if err := json.Unmarshal(schema, &s); err != nil {
		d.t.Fatalf("%s: %v", what, err)
	}
	s["components"] = d.Components
	text, err := json.Marshal(s)
	if err != nil {
		d.t.Fatal(err)
	}
	compiled, err := capability.CompileSchema(text)
	if err != nil {
		d.t.Fatalf("%s: %v", what, err)
	}
	v, err := jsjson.Parse(data)
	if err != nil {
		d.t.Errorf("%s: %v in %q", what, err, data)
		return
	}
	if violations := compiled.Validate(v); violations != nil {
		d.t.Errorf("%s: %v in %.400s", what, violations, data)
	}
}

// find returns the operation that a request meets.
func (d *description) find(method, path string) (string, operation, bool) {
	best := ""
	for template := range d.Paths {
		if matches(template, path) && (best == "" || strings.Count(template, "{") < strings.Count(best, "{")) {
			best = template
		}
	}
	op, ok := d.Paths[best][strings.ToLower(method)]
	return best, op, ok
}

func matches(template, path string) bool {
	a, b := strings.Split(template, "/"), strings.Split(path, "/")
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !strings.HasPrefix(a[i], "{") && a[i] != b[i] {
			return false
		}
	}
	return true
}

// TestContract goes through every operation that the API describes, and holds every answer
// against what is said of it.
func TestContract(t *testing.T) {
	b := newBed(t, "")
	c, ctx := b.start(), patient(t)
	text, err := c.OpenAPI(ctx)
	if err != nil {
		t.Fatal(err)
	}
	d := &description{t: t, seen: map[string]bool{}}
	if err := json.Unmarshal(text, d); err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, b: b, d: d, ctx: ctx}
	id := client.NewRunID()
	start, _ := json.Marshal(script("echo out; echo err >&2; sleep 1"))
	start = append(start[:len(start)-1], fmt.Sprintf(`,"id":%q}`, id)...)
	sandbox := `{"name":"one","owner":"wf:1","image":"box","runtime":"embedded","cpus":1,"memoryMb":256}`
	job := `{"approveLocally":true,"args":{"files":[{"path":"main.sh","contents":"echo one >&2; echo two"}],"entrypoint":"main.sh"}}`
	for _, step := range []struct {
		method, path, accept, body string
		status                     int
	}{
		{"POST", "/v1/runs", "", string(start), 201},
		{"POST", "/v1/runs", "", string(start), 200},
		{"POST", "/v1/runs", "", `{"image":"nothing","command":["x"]}`, 400},
		{"GET", "/v1/runs/" + id + "/logs", "text/event-stream", "", 200},
		{"GET", "/v1/runs/" + id + "/wait", "", "", 200},
		{"GET", "/v1/runs/" + id + "/logs", "", "", 200},
		{"GET", "/v1/runs/" + id, "", "", 200},
		{"GET", "/v1/runs", "", "", 200},
		{"POST", "/v1/runs/" + id + "/kill", "", "", 0},
		{"DELETE", "/v1/runs/" + id, "", "", 200},
		{"DELETE", "/v1/runs/" + id, "", "", 404},
		{"POST", "/v1/sandboxes", "", sandbox, 201},
		{"POST", "/v1/sandboxes", "", sandbox, 200},
		{"POST", "/v1/sandboxes", "", strings.Replace(sandbox, "wf:1", "wf:2", 1), 409},
		{"POST", "/v1/sandboxes", "", `{"name":"two","image":"box"}`, 400},
		{"GET", "/v1/sandboxes", "", "", 200},
		{"GET", "/v1/sandboxes/one", "", "", 200},
		{"GET", "/v1/sandboxes/one/liveness", "", "", 200},
		{"GET", "/v1/sandboxes/one/stats", "", "", 200},
		{"POST", "/v1/sandboxes/one/renew", "", `{"ttlSeconds":60}`, 200},
		{"POST", "/v1/sandboxes/one/pause", "", "", 200},
		{"POST", "/v1/sandboxes/one/resume", "", "", 200},
		{"POST", "/v1/estimate", "", `{"inputs":[{"name":"a.csv","size":5}]}`, 200},
		{"POST", "/v1/sandboxes/one/execs", "", `{"id":"e:1","command":["sh","-c","read a; echo $a; stty size"],"tty":{"rows":24,"columns":80},"stdin":true}`, 200},
		{"POST", "/v1/sandboxes/one/execs", "", `{"command":["no-such-program"]}`, 400},
		{"GET", "/v1/sandboxes/one/execs", "", "", 200},
		{"GET", "/v1/sandboxes/one/execs/e:1", "", "", 200},
		{"GET", "/v1/sandboxes/one/execs/none", "", "", 404},
		{"POST", "/v1/sandboxes/one/execs/e:1/resize", "", `{"rows":30,"columns":90}`, 200},
		{"POST", "/v1/sandboxes/one/execs/e:1/signal", "", `{"signal":"SIGWINCH"}`, 200},
		{"POST", "/v1/sandboxes/one/execs/e:1/signal", "", `{"signal":"SIGNOT"}`, 400},
		{"GET", "/v1/sandboxes/one/execs/e:1/wait?seconds=0", "", "", 200},
		{"POST", "/v1/sandboxes/one/execs/e:1/stdin", "", "hello\n", 200},
		{"GET", "/v1/sandboxes/one/execs/e:1/events", "text/event-stream", "", 200},
		{"GET", "/v1/sandboxes/one/execs/e:1/events", "", "", 200},
		{"GET", "/v1/sandboxes/one/execs/e:1/events?cursor=nonsense", "", "", 400},
		{"GET", "/v1/sandboxes/one/execs/e:1/wait", "", "", 200},
		{"GET", "/v1/sandboxes/one/execs/e:1/attach", "", "", 426},
		{"PUT", "/v1/sandboxes/one/files/content?path=/workload/a", "", "content", 200},
		{"GET", "/v1/sandboxes/one/files/content?path=/workload/a", "", "", 200},
		{"GET", "/v1/sandboxes/one/files/content?path=/none", "", "", 404},
		{"GET", "/v1/sandboxes/one/files/stat?path=/workload/a", "", "", 200},
		{"GET", "/v1/sandboxes/one/files/list?path=/workload", "", "", 200},
		{"POST", "/v1/sandboxes/one/files/mkdir", "", `{"path":"/workload/b"}`, 200},
		{"POST", "/v1/sandboxes/one/files/move", "", `{"from":"/workload/a","to":"/workload/b/a"}`, 200},
		{"PUT", "/v1/sandboxes/one/files/content?path=/workload/caf%e9", "", "content", 200},
		{"GET", "/v1/sandboxes/one/files/list?path=/workload", "", "", 200},
		{"POST", "/v1/sandboxes/one/files/move", "", `{"fromBytes":"L3dvcmtsb2FkL2NhZuk=","to":"/workload/b/c"}`, 200},
		{"POST", "/v1/sandboxes/one/files/move", "", `{"from":"/workload/b/c"}`, 400},
		{"GET", "/v1/sandboxes/one/files/archive?path=/workload", "", "", 200},
		{"PUT", "/v1/sandboxes/one/files/archive?path=/tmp/x", "", string(make([]byte, 1024)), 200},
		{"DELETE", "/v1/sandboxes/one/files?path=/workload/b&recursive=true", "", "", 200},
		{"GET", "/v1/sandboxes/one/files/watch?path=/none", "", "", 404},
		{"DELETE", "/v1/sandboxes/one", "", "", 200},
		{"DELETE", "/v1/sandboxes?owner=wf:1", "", "", 200},
		{"GET", "/v1/capabilities", "", "", 200},
		{"POST", "/v1/projects/shop/capabilities/workload.execute/call", "", job, 200},
		{"POST", "/v1/projects/shop/capabilities/workload.execute/call", "text/event-stream", job, 200},
		{"POST", "/v1/projects/shop/capabilities/workload.execute/call", "", `{"args":{}}`, 400},
		{"GET", "/v1/images", "", "", 200},
		{"GET", "/v1/images/box", "", "", 200},
		{"GET", "/v1/images/none", "", "", 404},
		{"GET", "/v1/drain", "", "", 200},
		{"PUT", "/v1/drain", "", `{"draining":true}`, 200},
		{"GET", "/readyz", "", "", 503},
		{"PUT", "/v1/drain", "", `{"draining":false}`, 200},
		{"POST", "/v1/gc", "", `{"dryRun":true}`, 200},
		{"POST", "/v1/gc", "", "", 200},
		{"GET", "/v1/version", "", "", 200},
		{"GET", "/v1/openapi.json", "", "", 200},
		{"GET", "/v1/healthz", "", "", 200},
		{"GET", "/v1/readyz", "", "", 200},
		{"GET", "/v1/metrics", "", "", 200},
		{"GET", "/healthz", "", "", 200},
		{"GET", "/readyz", "", "", 200},
		{"GET", "/metrics", "", "", 200},
	} {
		s.do(step.method, step.path, step.accept, step.body, step.status)
	}
	for path, methods := range d.Paths {
		for method := range methods {
			if !d.seen[method+" "+path] {
				t.Errorf("%s %s is described, and nothing here has asked for it", method, path)
			}
		}
	}
}

// session asks, and holds the answers against the description.
type session struct {
	t   *testing.T
	b   *bed
	d   *description
	ctx context.Context
}

// do asks once; status 0 is any.
func (s *session) do(method, path, accept, body string, status int) {
	s.t.Helper()
	name := method + " " + path
	bare, _, _ := strings.Cut(path, "?")
	template, op, ok := s.d.find(method, bare)
	if !ok {
		s.t.Errorf("%s is not described", name)
		return
	}
	s.d.seen[strings.ToLower(method)+" "+template] = true
	if body != "" {
		if op.RequestBody == nil {
			s.t.Errorf("%s: the description has no body", name)
		} else if content, ok := op.RequestBody.Content["application/json"]; ok && status < 400 {
			s.d.check(name+" request", content.Schema, []byte(body))
		}
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.b.socket())
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(s.ctx, method, "http://engine"+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	if status != 0 && res.StatusCode != status {
		s.t.Errorf("%s: status %d, want %d: %.400s", name, res.StatusCode, status, data)
		return
	}
	described, ok := op.Responses[fmt.Sprint(res.StatusCode)]
	if !ok {
		described = op.Responses["default"]
	}
	kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	content, ok := described.Content[kind]
	switch {
	case !ok:
		s.t.Errorf("%s: status %d with %s is not described", name, res.StatusCode, kind)
	case kind == "text/event-stream":
		s.events(name, content, data)
	case content.Schema != nil:
		s.d.check(name, content.Schema, data)
	}
}

// events holds each event against the schema of its name.
func (s *session) events(name string, content media, data []byte) {
	s.t.Helper()
	last := ""
	for _, text := range strings.Split(strings.TrimSpace(string(data)), "\n\n") {
		kind, payload := "", []byte(nil)
		for _, line := range strings.Split(text, "\n") {
			if v, ok := strings.CutPrefix(line, "event: "); ok {
				kind = v
			}
			if v, ok := strings.CutPrefix(line, "data: "); ok {
				payload = bytes.TrimSpace([]byte(v))
			}
		}
		if kind == "" {
			continue // a comment
		}
		described, ok := content.Events[kind]
		if !ok {
			s.t.Errorf("%s: the event %s is not described", name, kind)
			continue
		}
		s.d.check(name+" "+kind, described.Schema, payload)
		last = kind
	}
	if last != "done" && last != "reply" && last != "stats" {
		s.t.Errorf("%s: the last event is %q", name, last)
	}
}
