package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/cmd/engine-runner/config"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
)

// bed is a server on a Unix socket of its own.
type bed struct {
	t      *testing.T
	server *Server
	socket string
	log    *bytes.Buffer
}

func newBed(t *testing.T, service string) *bed {
	t.Helper()
	dir := t.TempDir()
	c, err := config.Parse("test", fmt.Appendf(nil, "stateDir: %s/state\nrunDir: %s/run\nservice: %s", dir, dir, service))
	if err != nil {
		t.Fatal(err)
	}
	policy, err := NewPolicy(c)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, socket: filepath.Join(dir, "api.sock"), log: &bytes.Buffer{}}
	runner := c.Runner(nil, "")
	b.server = New(Options{
		Host: c.Host(), Runner: func() *capability.Runner { return runner }, Policy: policy,
		Log:      slog.New(slog.NewJSONHandler(b.log, nil)),
		Timeouts: Timeouts{Header: 300 * time.Millisecond, Body: 300 * time.Millisecond, Refusal: time.Millisecond},
	})
	return b
}

// listen serves until the test's end.
func (b *bed) listen() {
	b.t.Helper()
	l, err := net.Listen("unix", b.socket)
	if err != nil {
		b.t.Fatal(err)
	}
	srv := b.server.HTTP()
	ended := make(chan struct{})
	go func() { srv.Serve(l); close(ended) }()
	b.t.Cleanup(func() { srv.Close(); <-ended })
}

// as answers one request as if this peer had sent it.
func (b *bed) as(p peer, method, path, body string) (int, wire.Failure) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(context.WithValue(context.Background(), peerKey{}, p), method, path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	return b.answer(r)
}

func (b *bed) answer(r *http.Request) (int, wire.Failure) {
	b.t.Helper()
	w := &answer{header: http.Header{}}
	b.server.ServeHTTP(w, r)
	var f wire.Failure
	if err := json.Unmarshal(w.body.Bytes(), &f); err != nil && w.status >= 400 {
		b.t.Fatalf("%s %s: status %d with a body that is no failure: %q", r.Method, r.URL, w.status, w.body.String())
	}
	return w.status, f
}

// answer is a plain http.ResponseWriter.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *answer) Header() http.Header { return w.header }
func (w *answer) WriteHeader(s int)   { w.status = s }
func (w *answer) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = 200
	}
	return w.body.Write(b)
}

const access = "{access: [{user: '1001', group: '50', allow: admin}, {user: '1001', allow: read}, {group: '60', allow: run, tenant: shop}]}"

// TestWhoMayDoWhat holds every class of route against callers of every class.
func TestWhoMayDoWhat(t *testing.T) {
	b := newBed(t, access)
	tests := []struct {
		name string
		peer peer
		want Class
	}{
		{"root", peer{}, Admin},
		{"somebody whom nothing names", peer{uid: 1002, groups: []uint32{1002}}, None},
		{"a user", peer{uid: 1001, groups: []uint32{1001}}, Read},
		{"a user in a group that the first entry wants too", peer{uid: 1001, groups: []uint32{1001, 50}}, Admin},
		{"a member of a group", peer{uid: 1003, groups: []uint32{7, 60}}, Run},
		{"the kernel did not say who", peer{uid: 0, err: io.EOF}, None},
	}
	routes := []struct {
		class        Class
		method, path string
	}{{Read, "GET", "/v1/runs"}, {Run, "DELETE", "/v1/runs/aaaaaaaaaaaaaaaa"}, {Admin, "PUT", "/v1/drain"}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, rt := range routes {
				status, f := b.as(tt.peer, rt.method, rt.path, "")
				refused := f.Error.Kind == "forbidden" && status == 403 || f.Error.Kind == "no_peer" && status == 500
				if allowed := tt.want >= rt.class; allowed == refused {
					t.Errorf("%s %s: status %d %q, want it allowed: %v", rt.method, rt.path, status, f.Error.Message, allowed)
				}
			}
		})
	}
	r, _ := http.NewRequest("GET", "/v1/runs", nil)
	if status, f := b.answer(r); status != 401 || f.Error.Kind != "unauthorised" {
		t.Errorf("nobody at all: status %d, %+v", status, f)
	}
}

// TestTokens takes tokens by their hashes, and nothing else for one.
func TestTokens(t *testing.T) {
	b := newBed(t, "{tcp: {listen: ':0', certificate: /c, key: /k, tokens: {ci: {sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08, allow: read}}}}")
	for header, want := range map[string]int{
		"Bearer test": 200, "Bearer Test": 401, "Bearer ": 401, "bearer test": 401, "Basic dGVzdA==": 401, "": 401,
		"Bearer 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08": 401,
	} {
		r, _ := http.NewRequest("GET", "/v1/version", nil)
		r.Header.Set("Authorization", header)
		if status, f := b.answer(r); status != want {
			t.Errorf("%q: status %d %q, want %d", header, status, f.Error.Message, want)
		}
	}
	r, _ := http.NewRequest("PUT", "/v1/drain", strings.NewReader(`{"draining":true}`))
	r.Header.Set("Authorization", "Bearer test")
	if status, _ := b.answer(r); status != 403 {
		t.Errorf("a reader drains: status %d", status)
	}
	if strings.Contains(b.log.String(), "Bearer") || strings.Contains(b.log.String(), `"test"`) {
		t.Errorf("a token is in the log: %s", b.log)
	}
}

// TestTenantsAreConfined gives a tenant neither the runs nor the projects of others, nor
// the label by which its own are known.
func TestTenantsAreConfined(t *testing.T) {
	b := newBed(t, access)
	shop := peer{uid: 1003, groups: []uint32{60}}
	if status, f := b.as(shop, "GET", "/v1/capabilities?project=other", ""); f.Error.Kind != "no_project" {
		t.Errorf("another's project: status %d %+v", status, f)
	}
	if _, f := b.as(shop, "POST", "/v1/runs", `{"image":"x","command":["x"],"labels":{"engine.tenant":"other"}}`); f.Error.Kind != "bad_label" {
		t.Errorf("another's label: %+v", f)
	}
	if _, f := b.as(shop, "POST", "/v1/runs", `{"rootfs":"/srv","command":["x"]}`); f.Error.Kind != "forbidden" {
		t.Errorf("a directory of the host's: %+v", f)
	}
	if _, f := b.as(shop, "POST", "/v1/sandboxes", `{"name":"x","mounts":{"resource":"other"}}`); f.Error.Kind != "forbidden" {
		t.Errorf("another's tree: %+v", f)
	}
	if owner := (Caller{Tenant: "shop"}).ownerOf("other"); owner != "shop/other" {
		t.Errorf("an owner of a tenant's is kept as %q", owner)
	}
	if _, f := b.as(shop, "POST", "/v1/runs", `{"image":"x","command":["x"],"egress":["internet"]}`); f.Error.Kind != "egress_refused" {
		t.Errorf("egress above the ceiling: %+v", f)
	}
}

// TestBodiesAreBounded refuses by the announced length, and by what comes.
func TestBodiesAreBounded(t *testing.T) {
	b := newBed(t, access)
	large := `{"dryRun": ` + strings.Repeat(" ", smallBody) + "true}"
	for name, body := range map[string]io.Reader{"with a length": strings.NewReader(large), "without": io.MultiReader(strings.NewReader(large))} {
		r, _ := http.NewRequestWithContext(context.WithValue(context.Background(), peerKey{}, peer{}), "POST", "/v1/gc", body)
		if status, f := b.answer(r); status != 413 || f.Error.Kind != "body_too_large" {
			t.Errorf("%s: status %d %+v", name, status, f)
		}
	}
	// The announced length counts before the caller does.
	if status, f := b.as(peer{uid: 9}, "POST", "/v1/gc", large); status != 413 {
		t.Errorf("a stranger's large body: status %d %+v", status, f)
	}
	// Whoever may not is not read at all.
	unread := &countingReader{}
	r, _ := http.NewRequestWithContext(context.WithValue(context.Background(), peerKey{}, peer{uid: 9}), "POST", "/v1/gc", unread)
	if status, _ := b.answer(r); status != 403 || unread.n != 0 {
		t.Errorf("status %d after %d bytes of a stranger's body", status, unread.n)
	}
}

type countingReader struct{ n int }

func (r *countingReader) Read(b []byte) (int, error) {
	r.n += len(b)
	return len(b), nil
}

// TestSlowClients cuts those who hold a connection up, at the head and in the body, and
// leaves alone those who wait for an answer.
func TestSlowClients(t *testing.T) {
	b := newBed(t, access)
	all := b.server.handler
	unread := b.server.handle(&route{method: "POST", path: "/unread", class: Read, maxBody: 100, status: 200, serve: func(_ *Server, x *exchange) error {
		return x.reply(wire.Removed{})
	}})
	b.server.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/unread" {
			unread.ServeHTTP(w, r)
			return
		}
		all.ServeHTTP(w, r)
	})
	b.listen()
	for name, text := range map[string]string{
		"half a head":                "GET /v1/version HTTP/1.1\r\nHost: e\r\n",
		"half a body":                "POST /v1/gc HTTP/1.1\r\nHost: e\r\nContent-Length: 10\r\n\r\n{",
		"half a body that none read": "POST /unread HTTP/1.1\r\nHost: e\r\nContent-Length: 10\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("unix", b.socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
			conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			got, err := io.ReadAll(conn)
			if err != nil {
				t.Errorf("the connection stays open: %v", err)
			}
			if strings.HasPrefix(text, "POST /v1") && !strings.Contains(string(got), "came too slowly") {
				t.Errorf("answered %q", got)
			}
		})
	}
}

// TestPanicsAreErrors meets a bug in a handler.
func TestPanicsAreErrors(t *testing.T) {
	b := newBed(t, access)
	b.server.handler = b.server.handle(&route{method: "GET", path: "/bug", class: Read, status: 200, serve: func(*Server, *exchange) error {
		panic("a bug with a secret in it")
	}})
	status, f := b.as(peer{}, "GET", "/bug", "")
	if status != 500 || f.Error.Kind != "internal" || strings.Contains(f.Error.Message, "secret") {
		t.Errorf("status %d %+v", status, f)
	}
	if !strings.Contains(b.log.String(), "a bug with a secret in it") {
		t.Errorf("the log does not say what happened: %s", b.log)
	}
}

// TestStrangersWait tells somebody whom the config grants nothing no, whatever they ask for,
// and takes its time: they may not keep the service busy, nor fill its log.
func TestStrangersWait(t *testing.T) {
	b := newBed(t, access)
	b.server.timeouts.Refusal = 50 * time.Millisecond
	for _, path := range []string{"/v1/version", "/v1/rnus", "/healthz"} {
		began := time.Now()
		if status, f := b.as(peer{uid: 9}, "GET", path, ""); status != 403 || f.Error.Kind != "forbidden" {
			t.Errorf("%s: status %d %+v", path, status, f.Error)
		}
		if took := time.Since(began); took < b.server.timeouts.Refusal {
			t.Errorf("%s: after %v, want %v", path, took, b.server.timeouts.Refusal)
		}
	}
}

// TestUnknownRoutes explains what is not there.
func TestUnknownRoutes(t *testing.T) {
	b := newBed(t, access)
	tests := []struct {
		method, path, kind, fix string
		status                  int
	}{
		{"GET", "/v1/rnus", "unknown_route", "/v1/runs", 404},
		{"GET", "/", "unknown_route", "openapi", 404},
		{"POST", "/v1/version", "bad_method", "", 405},
		{"BREW", "/v1/runs", "bad_method", "", 405},
		{"GET", "/v1/runs?lable=a", "bad_parameter", "label", 400},
		{"GET", "/v1/runs/aaaaaaaaaaaaaaaa/wait?timeout=1", "bad_parameter", "known are seconds", 400},
		{"GET", "/v1/version?x=1", "bad_parameter", "leave it out", 400},
		{"GET", "/v1/runs/..%2f..%2fetc", "bad_id", "", 400},
		{"GET", "/v1/runs/aaaaaaaaaaaaaaaa", "not_found", "", 404},
		{"GET", "/v1/runs/aaaaaaaaaaaaaaaa/logs?offset=-1", "bad_parameter", "", 400},
		{"GET", "/v1/" + strings.Repeat("x", 20000), "unknown_route", "", 404},
	}
	for _, tt := range tests {
		status, f := b.as(peer{}, tt.method, tt.path, "")
		if status != tt.status || f.Error.Kind != tt.kind || !strings.Contains(f.Error.Fix, tt.fix) {
			t.Errorf("%s %.60s: status %d %+v, want %d %s", tt.method, tt.path, status, f.Error, tt.status, tt.kind)
		}
	}
}

// TestDrainOutlivesARestart lets nothing new start, also in the next service.
func TestDrainOutlivesARestart(t *testing.T) {
	b := newBed(t, access)
	if err := os.MkdirAll(b.server.host.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if status, _ := b.as(peer{}, "PUT", "/v1/drain", `{"draining":true}`); status != 200 {
		t.Fatalf("status %d", status)
	}
	next := New(Options{Host: b.server.host, Runner: b.server.runner, Policy: b.server.policy.Load(), Log: b.server.log})
	b.server = next
	if status, f := b.as(peer{}, "POST", "/v1/runs", `{"image":"x","command":["x"]}`); status != 503 || f.Error.Kind != "draining" {
		t.Errorf("status %d %+v", status, f)
	}
	if status, _ := b.as(peer{}, "PUT", "/v1/drain", `{"draining":false}`); status != 200 {
		t.Fatalf("status %d", status)
	}
	if _, f := b.as(peer{}, "POST", "/v1/runs", `{"command":["x"]}`); f.Error.Kind == "draining" {
		t.Errorf("it goes on to drain: %+v", f)
	}
}

// TestOldRecordsAreDeleted deletes what has been over for long, tells how much that was, and
// leaves the rest.
func TestOldRecordsAreDeleted(t *testing.T) {
	b := newBed(t, "{}")
	state := b.server.host.StateDir
	for id, steps := range map[string][]string{
		"aaaaaaaaaaaaaaaa": {journal.Intent, journal.Exit, journal.Cleaned}, "bbbbbbbbbbbbbbbb": {journal.Intent, journal.Exit},
	} {
		run, err := journal.Create(state, id)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range steps {
			if err := run.Write(step, struct{}{}, false); err != nil {
				t.Fatal(err)
			}
		}
		run.Close()
	}
	for _, tt := range []struct {
		before time.Time
		left   []string
	}{
		{time.Now().Add(-time.Hour), []string{"aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"}},
		{time.Now(), []string{"bbbbbbbbbbbbbbbb"}},
	} {
		b.server.retain(t.Context(), tt.before)
		if ids, err := journal.List(state); err != nil || !slices.Equal(ids, tt.left) {
			t.Errorf("left are %q (%v), want %q", ids, err, tt.left)
		}
	}
	if !strings.Contains(b.log.String(), `"runs":1`) {
		t.Errorf("the log does not tell of it: %s", b.log)
	}
}

// TestResultIsTheEngines compares the fields of a result as clients have it with the
// engine's.
func TestResultIsTheEngines(t *testing.T) {
	got, want := fields(reflect.TypeFor[wire.Result]()), fields(reflect.TypeFor[engine.Result]())
	if !slices.Equal(got, want) {
		t.Errorf("the API has\n%q\nand the engine\n%q", got, want)
	}
}

func fields(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		name, _ := jsonName(t.Field(i))
		inner := t.Field(i).Type
		form := inner.Kind().String()
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			inner = inner.Elem()
			form += " " + inner.Kind().String()
		}
		if name == "" {
			continue
		}
		names = append(names, name+" "+form)
		if inner.Kind() == reflect.Struct {
			for _, n := range fields(inner) {
				names = append(names, name+"."+n)
			}
		}
	}
	return names
}

// TestStatusesAreOfKinds wants a row in OPERATIONS for each kind that has a status, and
// the same table in SERVICE.
func TestStatusesAreOfKinds(t *testing.T) {
	operations, err := os.ReadFile("../../../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	service, err := os.ReadFile("../../../docs/SERVICE.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d{3}) \| (.*) \|$`).FindAllStringSubmatch(string(service), -1) {
		for _, kind := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(m[2], -1) {
			documented[kind[1]] = m[1]
		}
	}
	for kind, status := range statuses {
		if !strings.Contains(string(operations), "| `"+kind+"` |") {
			t.Errorf("OPERATIONS has no kind %s", kind)
		}
		if documented[kind] != fmt.Sprint(status) {
			t.Errorf("SERVICE gives %s the status %q, the code %d", kind, documented[kind], status)
		}
		delete(documented, kind)
	}
	for kind := range documented {
		t.Errorf("SERVICE gives %s a status of its own, the code does not", kind)
	}
}

// TestRoutesAreDocumented compares the table of routes with SERVICE, and with the API's
// own description.
func TestRoutesAreDocumented(t *testing.T) {
	service, err := os.ReadFile("../../../docs/SERVICE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(service), "<!-- routes:")
	var got, want []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Z]+ /[^`]*)` \\| (\\w+) \\| (.*) \\|$").FindAllStringSubmatch(table, -1) {
		got = append(got, m[1]+" "+m[2]+" "+m[3])
	}
	for _, rt := range routes() {
		want = append(want, rt.method+" "+rt.path+" "+rt.class.String()+" "+rt.summary)
	}
	if !slices.Equal(got, want) {
		t.Errorf("SERVICE has the routes\n%s\nand the code\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	text, err := describe()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	described := 0
	for _, operations := range doc.Paths {
		described += len(operations)
	}
	if described != len(want) {
		t.Errorf("%d operations are described, and there are %d routes", described, len(want))
	}
}

// TestPeerIsWhoConnected asks the kernel for the groups of this process.
func TestPeerIsWhoConnected(t *testing.T) {
	b := newBed(t, access)
	l, err := net.Listen("unix", b.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := net.Dial("unix", b.socket); err == nil {
			bufio.NewReader(conn).ReadByte()
			conn.Close()
		}
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p := peerOf(conn.(*net.UnixConn))
	mine, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if p.err != nil || int(p.uid) != os.Geteuid() || !slices.Contains(p.groups, uint32(os.Getegid())) {
		t.Errorf("peer = %+v", p)
	}
	for _, g := range mine {
		if !slices.Contains(p.groups, uint32(g)) {
			t.Errorf("groups = %v, want %d among them", p.groups, g)
		}
	}
}
