package link

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/direct-oci/engine/cmd/engine-runner/link/devplane"
	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
)

// The variables by which a test starts this program again, as a runner.
const (
	asRunner  = "LINK_TEST_RUNNER"
	runnerURL = "LINK_TEST_URL"
)

func TestMain(m *testing.M) {
	dir := os.Getenv(asRunner)
	if dir == "" {
		os.Exit(m.Run())
	}
	o := options(dir, os.Getenv(runnerURL))
	o.times.dial = 500 * time.Millisecond
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	o.Secret = func(context.Context) ([]byte, error) { return os.ReadFile(filepath.Join(dir, "secret")) }
	l, err := Open(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	l.Run(context.Background())
}

// plane is a control plane and its directory.
type plane struct {
	dir, url string
	client   *devplane.Client
}

// newPlane serves a plane until the test ends, or until stop is called.
func newPlane(t *testing.T, dir string, plain bool) (p plane, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- devplane.Serve(ctx, devplane.Options{
			Dir: dir, Listen: "127.0.0.1:0", Plain: plain, Again: 300 * time.Millisecond, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		}, func(url string) { ready <- url })
	}()
	select {
	case p.url = <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if cancel(); !stopped {
			stopped = true
			if err := <-ended; err != nil {
				t.Errorf("Serve = %v", err)
			}
		}
	}
	t.Cleanup(stop)
	p.dir = dir
	var err error
	if p.client, err = devplane.Dial(dir); err != nil {
		t.Fatal(err)
	}
	return p, stop
}

// shareSecret gives the plane's secret to the runner in dir.
func (p plane) shareSecret(t *testing.T, dir string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(p.dir, devplane.SecretFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte(strings.TrimSpace(string(data))), 0o600); err != nil {
		t.Fatal(err)
	}
}

// startRunner starts a runner as a process of its own.
func startRunner(t *testing.T, dir, url string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = []string{asRunner + "=" + dir, runnerURL + "=" + url, "PATH=" + os.Getenv("PATH")}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	return cmd
}

// connected waits for the runner to be there, but for every fifth time.
func (p plane) connected(t *testing.T, dir string, round int) {
	t.Helper()
	for deadline := time.Now().Add(patience); round%5 > 0; time.Sleep(time.Millisecond) {
		list, err := p.client.Runners(context.Background())
		if err != nil || time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Fatalf("the runner does not come: %v\n%s", err, log[max(0, len(log)-4000):])
		}
		if len(list) == 1 && list[0].Connected {
			return
		}
	}
}

func (p plane) ask(t *testing.T, id, name string, j job) {
	t.Helper()
	args, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	ask := devplane.Ask{ID: id, Runner: identity, Call: wire.Call{Project: "shop", Capability: name, Args: args}}
	if _, err := p.client.Call(context.Background(), ask); err != nil {
		t.Fatal(err)
	}
}

// answers waits for all calls to be answered, and counts what came of them: an output,
// "resumed" with an output of a later process, or the kind of an error. Each was begun
// at most once, and whatever has an output was begun.
func (p plane) answers(t *testing.T, dir string, ids []string) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begun, what := starts(t, dir), map[string]int{}
	for _, id := range ids {
		s, err := p.client.Follow(ctx, id, func(string) {})
		if err != nil {
			t.Fatalf("call %s has no answer: %v", id, err)
		}
		switch {
		case s.State != devplane.Answered:
			t.Errorf("call %s: %s, %+v", id, s.State, s.Error)
		case s.Result.Error != nil:
			what[s.Result.Error.Kind]++
		case s.Result.Resumed:
			what["resumed"]++
		default:
			what["output"]++
		}
		if begun = starts(t, dir); s.Result != nil && s.Result.Error == nil && begun[callID(identity, id)] != 1 {
			t.Errorf("call %s has an output and was begun %d times", id, begun[callID(identity, id)])
		}
	}
	for id, n := range begun {
		if n > 1 {
			t.Errorf("call %s was begun %d times", id, n)
		}
	}
	return what
}

// TestKilledFiftyTimes kills the runner in the middle of whatever it does.
func TestKilledFiftyTimes(t *testing.T) {
	dir := t.TempDir()
	p, _ := newPlane(t, t.TempDir(), true)
	p.shareSecret(t, dir)
	var ids []string
	for i := range 50 {
		cmd := startRunner(t, dir, devplane.RunnerURL(p.url))
		for k := range 4 {
			id := fmt.Sprintf("round-%d:%d", i, k)
			ids = append(ids, id)
			p.ask(t, id, []string{"gone", "left"}[k%2], job{N: len(ids), Ms: rand.IntN(60), Lines: 5, Bytes: 10})
		}
		p.connected(t, dir, i)
		time.Sleep(time.Duration(rand.IntN(80)) * time.Millisecond) // anywhere from there to the results
		cmd.Process.Kill()
		cmd.Wait()
	}
	startRunner(t, dir, devplane.RunnerURL(p.url))
	what := p.answers(t, dir, ids)
	t.Logf("what came of %d calls: %v", len(ids), what)
	if what["output"]+what["resumed"] == 0 || what["interrupted"] == 0 {
		t.Error("nothing was answered in one of the ways: were the kills at the right time?")
	}
	data, err := os.ReadFile(filepath.Join(dir, "audit.jsonl"))
	if err != nil || !strings.Contains(string(data), `"event":"resume"`) {
		t.Errorf("nothing was resumed: %v", err)
	}
}

// evil is a network between a runner and a plane that does whatever networks do, and
// what they do not.
type evil struct {
	url   string
	to    atomic.Pointer[string]
	calm  atomic.Bool
	did   [6]atomic.Int64
	conns atomic.Int64
}

func newEvil(t *testing.T, to string) *evil {
	e := &evil{}
	e.to.Store(&to)
	server := httptest.NewServer(http.HandlerFunc(e.serve))
	t.Cleanup(server.CloseClientConnections)
	e.url = "ws" + strings.TrimPrefix(server.URL, "http") + "/link"
	return e
}

func (e *evil) serve(w http.ResponseWriter, r *http.Request) {
	runner, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{wire.Subprotocol}})
	if err != nil {
		return
	}
	defer runner.CloseNow()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	plane, _, err := websocket.Dial(ctx, *e.to.Load(), &websocket.DialOptions{Subprotocols: []string{wire.Subprotocol}})
	if err != nil {
		return
	}
	defer plane.CloseNow()
	e.conns.Add(1)
	runner.SetReadLimit(wire.MaxMessage)
	plane.SetReadLimit(wire.MaxMessage)
	ended := make(chan struct{}, 2)
	for _, way := range [][2]*websocket.Conn{{runner, plane}, {plane, runner}} {
		go func() {
			e.carry(ctx, way[0], way[1])
			ended <- struct{}{}
		}()
	}
	<-ended
}

// carry passes messages on until it cuts the connection.
func (e *evil) carry(ctx context.Context, from, to *websocket.Conn) {
	var held []byte
	for {
		_, data, err := from.Read(ctx)
		if err != nil {
			return
		}
		messages := [][]byte{data}
		if held != nil {
			messages, held = append(messages, held), nil
		}
		if !e.calm.Load() {
			what := rand.IntN(100)
			switch {
			case what < 4: // drop
				e.did[0].Add(1)
				messages = messages[1:]
			case what < 10: // twice
				e.did[1].Add(1)
				messages = append(messages, data)
			case what < 18:
				e.did[2].Add(1)
				time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
			case what < 24: // after the next one
				e.did[3].Add(1)
				held, messages = data, messages[1:]
			case what < 25:
				e.did[4].Add(1)
				data[rand.IntN(len(data))] ^= 1 << rand.IntN(8)
			case what < 26:
				e.did[5].Add(1)
				return
			}
		}
		for _, m := range messages {
			if to.Write(ctx, websocket.MessageText, m) != nil {
				return
			}
		}
	}
}

// TestEvilNetwork has every message dropped, doubled, delayed, reordered or changed that
// can be, and the connection cut anywhere; the plane is killed now and then too.
func TestEvilNetwork(t *testing.T) {
	dir, planeDir := t.TempDir(), t.TempDir()
	p, stop := newPlane(t, planeDir, true)
	p.shareSecret(t, dir)
	e := newEvil(t, devplane.RunnerURL(p.url))
	startRunner(t, dir, e.url)
	var ids []string
	for i := range 150 {
		id := fmt.Sprint("call-", i)
		ids = append(ids, id)
		p.ask(t, id, []string{"gone", "left"}[i%2], job{N: i, Ms: rand.IntN(30), Lines: 20, Bytes: 100})
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
	}
	what := p.answers(t, dir, ids[:100])
	stop()
	p2, _ := newPlane(t, planeDir, true) // what it knows is on its disk
	e.calm.Store(true)
	to := devplane.RunnerURL(p2.url)
	e.to.Store(&to)
	for kind, n := range p2.answers(t, dir, ids) {
		what[kind] = n
	}
	t.Logf("what came of %d calls over %d connections: %v", len(ids), e.conns.Load(), what)
	for i, name := range []string{"dropped", "doubled", "delayed", "reordered", "changed", "cut"} {
		if e.did[i].Load() == 0 {
			t.Errorf("nothing was %s", name)
		}
	}
	if what["output"] != len(ids) {
		t.Errorf("%v, want an output of each: its runner lives", what)
	}
}

// TestCertificates wants a plane's certificate to be one that the runner knows.
func TestCertificates(t *testing.T) {
	p, _ := newPlane(t, t.TempDir(), false)
	other, _ := newPlane(t, t.TempDir(), false)
	connected := func(edit func(*Options)) bool {
		dir := t.TempDir()
		p.shareSecret(t, dir)
		o := options(dir, devplane.RunnerURL(p.url))
		o.Identity, o.CAFile = "tls-"+wire.NewNonce(4), filepath.Join(p.dir, devplane.CAFile)
		o.Secret = func(context.Context) ([]byte, error) { return os.ReadFile(filepath.Join(dir, "secret")) }
		edit(&o)
		l, stop := startLink(t, o)
		defer stop()
		f := l.until(t, func(f Figures) bool { return f.Up || f.Failures[untrusted]+f.Failures[unreachable] > 0 })
		return f.Up
	}
	for name, c := range map[string]struct {
		edit func(*Options)
		want bool
	}{
		"the plane's":         {func(*Options) {}, true},
		"another plane's":     {func(o *Options) { o.CAFile = filepath.Join(other.dir, devplane.CAFile) }, false},
		"only the system's":   {func(o *Options) { o.CAFile = "" }, false},
		"another host's name": {func(o *Options) { o.URL = strings.Replace(o.URL, "127.0.0.1", "127.0.0.2", 1) }, false},
	} {
		if got := connected(c.edit); got != c.want {
			t.Errorf("with certificates that are %s: connected %v, want %v", name, got, c.want)
		}
	}
	o := options(t.TempDir(), "wss://127.0.0.1:1/link")
	o.CAFile = filepath.Join(t.TempDir(), "none")
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "caFile") {
		t.Errorf("without the file: %v", err)
	}
}
