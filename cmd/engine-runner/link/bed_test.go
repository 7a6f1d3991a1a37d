package link

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/capability/audit"
	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
)

const (
	secret   = "a secret of more than sixteen bytes"
	identity = "runner-1"
	patience = time.Minute
)

// quick are times for tests.
var quick = times{
	dial: 3 * time.Second, ping: 2 * time.Second, write: 5 * time.Second, again: 300 * time.Millisecond,
	least: 10 * time.Millisecond, most: 100 * time.Millisecond, stable: time.Second, refresh: 50 * time.Millisecond, drainAcks: 2 * time.Second,
}

// job is what the capabilities of the tests take.
type job struct {
	N     int `json:"n"`
	Ms    int `json:"ms"`    // how long it takes
	Lines int `json:"lines"` // how many it logs
	Bytes int `json:"bytes"` // of each line, and of the output
}

// noted is a capability that notes each start in a file. What kept says outlives the
// process: a child does the work, and leaves a file.
type noted struct {
	dir    string
	name   string
	hazard capability.Hazard
	kept   bool
}

func (n noted) Info() capability.Info {
	return capability.Info{Name: n.name, Hazard: n.hazard, Kind: capability.Action, Description: "for tests", Params: json.RawMessage(`{"type":"object"}`)}
}

func (n noted) Prepare(_ context.Context, ask capability.Ask) (capability.Prepared, error) {
	var j job
	data, err := json.Marshal(ask.Args)
	if err == nil {
		err = json.Unmarshal(data, &j)
	}
	if err != nil {
		return capability.Prepared{}, engine.Refused("bad_arguments", "%w", err)
	}
	p := capability.Prepared{Bound: approval.Bound{Digest: string(data)}, Title: "t", Documents: []capability.Document{{Name: "args", Text: string(data)}}}
	p.Run = func(ctx context.Context, env capability.Env) (capability.Outcome, error) { return n.run(ctx, env, j) }
	if n.kept {
		p.Resume = func(ctx context.Context, env capability.Env) (capability.Outcome, error) { return n.await(ctx, env, j) }
	}
	return p, nil
}

func (n noted) run(ctx context.Context, env capability.Env, j job) (capability.Outcome, error) {
	f, err := os.OpenFile(filepath.Join(n.dir, "starts"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return capability.Outcome{}, err
	}
	_, err = fmt.Fprintf(f, "%s %d\n", env.Call, j.N)
	if err := f.Close(); err != nil {
		return capability.Outcome{}, err
	}
	if err != nil {
		return capability.Outcome{}, err
	}
	for i := range j.Lines {
		env.Log(fmt.Sprintf("%d %s", i, strings.Repeat("x", j.Bytes)))
	}
	if n.kept {
		cmd := exec.Command("sh", "-c", fmt.Sprintf("sleep %f; touch %s", float64(j.Ms)/1000, filepath.Join(n.dir, "done-"+env.Call)))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return capability.Outcome{}, err
		}
		go cmd.Wait()
		return n.await(ctx, env, j)
	}
	select {
	case <-time.After(time.Duration(j.Ms) * time.Millisecond):
	case <-ctx.Done():
		return capability.Outcome{}, engine.Failed("cancelled", "cannot go on: %w", ctx.Err())
	}
	return capability.Outcome{Output: map[string]any{"n": j.N, "text": strings.Repeat("y", j.Bytes)}}, nil
}

func (n noted) await(ctx context.Context, env capability.Env, j job) (capability.Outcome, error) {
	bound := time.After(3 * time.Second) // a kill may have come before the child
	for {
		if _, err := os.Stat(filepath.Join(n.dir, "done-"+env.Call)); err == nil {
			return capability.Outcome{Output: map[string]any{"n": j.N}}, nil
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return capability.Outcome{}, engine.Failed("cancelled", "cannot go on: %w", ctx.Err())
		case <-bound:
			return capability.Outcome{}, engine.Failed("lost", "cannot find what came of it")
		}
	}
}

func alice() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(make([]byte, 32)) }

// newRunner makes a runner of a directory, with the two capabilities.
func newRunner(dir string) *capability.Runner {
	return &capability.Runner{
		Projects: map[string]capability.Project{"shop": {
			Slug: "shop", Built: []capability.Capability{
				noted{dir, "gone", capability.Read, false}, noted{dir, "kept", capability.Write, true}, noted{dir, "left", capability.Read, true},
			},
			Approvers: map[string]ed25519.PublicKey{"alice": alice().Public().(ed25519.PublicKey)},
		}},
		Audit: audit.Log{Path: filepath.Join(dir, "audit.jsonl")}, Burned: approval.Burned{Dir: filepath.Join(dir, "used")},
		Approved: capability.Approved{Dir: filepath.Join(dir, "last")}, Receipts: alice(),
	}
}

func options(dir, url string) Options {
	runner := newRunner(dir)
	return Options{
		Settings: Settings{URL: url, Secret: func(context.Context) ([]byte, error) { return []byte(secret), nil }},
		Identity: identity, Dir: filepath.Join(dir, "link"),
		Runner: func() *capability.Runner { return runner }, Keep: func(capability.Reply) error { return nil },
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), times: quick,
	}
}

// starts counts, by call, how often it was begun.
func starts(t *testing.T, dir string) map[string]int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "starts"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	count := map[string]int{}
	for line := range strings.Lines(string(data)) {
		id, _, _ := strings.Cut(line, " ")
		count[id]++
	}
	return count
}

// audited returns the kinds of refused requests in the audit log.
func audited(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "audit.jsonl"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var kinds []string
	for line := range strings.Lines(string(data)) {
		var l struct {
			Entry struct {
				Event    string
				Observed struct{ Kind string }
			}
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		if l.Entry.Event == "link" {
			kinds = append(kinds, l.Entry.Observed.Kind)
		}
	}
	return strings.Join(kinds, " ")
}

// hand is a plane that is worked by hand: the test reads and writes each message.
type hand struct {
	t     *testing.T
	url   string
	key   wire.Key
	conns chan *websocket.Conn
	conn  *websocket.Conn
	end   chan struct{}
}

func newHand(t *testing.T) *hand {
	t.Helper()
	h := &hand{t: t, key: wire.NewKey([]byte(secret), identity), conns: make(chan *websocket.Conn, 16), end: make(chan struct{})}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{wire.Subprotocol}})
		if err != nil {
			return
		}
		conn.SetReadLimit(wire.MaxMessage)
		select {
		case h.conns <- conn:
		case <-h.end:
		}
		<-h.end
		conn.CloseNow()
	}))
	t.Cleanup(func() { close(h.end); server.Close() })
	h.url = "ws" + strings.TrimPrefix(server.URL, "http") + "/link"
	return h
}

// start runs a link to this plane until the test ends.
func (h *hand) start(o Options) (stop func()) {
	h.t.Helper()
	_, stop = startLink(h.t, o)
	return stop
}

func startLink(t *testing.T, o Options) (l *Link, stop func()) {
	t.Helper()
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { l.Run(ctx); close(ended) }()
	stop = func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Error("Run does not return")
		}
	}
	t.Cleanup(stop)
	return l, stop
}

func (h *hand) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	h.t.Cleanup(cancel)
	return ctx
}

// accept waits for the next connection, without a word.
func (h *hand) accept() {
	h.t.Helper()
	select {
	case h.conn = <-h.conns:
	case <-time.After(patience):
		h.t.Fatal("no runner came")
	}
}

// greet waits for the next connection and brings the link up.
func (h *hand) greet() *wire.Proof {
	h.t.Helper()
	h.accept()
	hello := expect[*wire.Hello](h)
	nonce := wire.NewNonce(32)
	h.send(wire.Challenge{Type: wire.TypeChallenge, Protocol: wire.Protocol, Nonce: nonce, MAC: h.key.Greet(wire.Plane, hello.Nonce, nonce)})
	proof := expect[*wire.Proof](h)
	if !h.key.Greeted(wire.Runner, hello.Nonce, nonce, proof.MAC) {
		h.t.Fatal("the runner does not know the secret")
	}
	h.send(wire.Welcome{Type: wire.TypeWelcome, Time: time.Now().UnixMilli()})
	return proof
}

func (h *hand) send(m any) {
	h.t.Helper()
	data, err := wire.Encode(m)
	if err != nil {
		h.t.Fatal(err)
	}
	h.sendRaw(data)
}

func (h *hand) sendRaw(data []byte) {
	h.t.Helper()
	if err := h.conn.Write(h.context(), websocket.MessageText, data); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hand) read() (any, error) {
	_, data, err := h.conn.Read(h.context())
	if err != nil {
		return nil, err
	}
	return wire.Decode(wire.Runner, data)
}

// expect reads until a message of this type comes.
func expect[T any](h *hand) T {
	h.t.Helper()
	for {
		m, err := h.read()
		if err != nil {
			var none T
			h.t.Fatalf("the connection ended before %T came: %v", none, err)
		}
		if m, ok := m.(T); ok {
			return m
		}
	}
}

// gone waits for the connection's end.
func (h *hand) gone() error {
	h.t.Helper()
	for {
		if _, err := h.read(); err != nil {
			return err
		}
	}
}

// invoke makes a signed invocation.
func (h *hand) invoke(id, name string, j job) wire.Request {
	h.t.Helper()
	return h.key.NewRequest(wire.TypeInvoke, id, time.Now(), h.body(name, j))
}

func (h *hand) body(name string, j job) []byte {
	h.t.Helper()
	args, err := json.Marshal(j)
	if err != nil {
		h.t.Fatal(err)
	}
	body, err := json.Marshal(wire.Call{Project: "shop", Capability: name, Args: args, Caller: "test"})
	if err != nil {
		h.t.Fatal(err)
	}
	return body
}

// result reads until the result of this invocation comes.
func (h *hand) result(id string) (wire.Result, *wire.Sealed) {
	h.t.Helper()
	for {
		m := expect[*wire.Sealed](h)
		if m.ID != id {
			continue
		}
		if !h.key.Unbroken(*m) {
			h.t.Fatal("the result is not signed")
		}
		r, err := wire.DecodeResult(m.Body)
		if err != nil {
			h.t.Fatal(err)
		}
		return r, m
	}
}

// refused reads until a refusal comes, and returns its kind.
func (h *hand) refused() string {
	h.t.Helper()
	return expect[*wire.Refused](h).Error.Kind
}
