package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/direct-oci/engine/cmd/engine-runner/link/devplane"
	"github.com/direct-oci/engine/integration/testenv"
)

// linked is a bed with a control plane.
type linked struct {
	*bed
	client *devplane.Client
	config string
	since  time.Time // when the last runner was connected
}

func newLinked(t *testing.T, runtime string) *linked {
	t.Helper()
	b := newBed(t, runtime, "")
	dir := b.path("controlplane")
	testenv.Start(t, nil, "engine", "controlplane", "dev", "--dir", dir, "--listen", "127.0.0.1:0")
	l := &linked{bed: b}
	testenv.WaitFor(t, testenv.Patience, "the control plane to listen", func() bool {
		_, err := os.Stat(filepath.Join(dir, devplane.URLFile))
		return err == nil
	})
	url, err := os.ReadFile(filepath.Join(dir, devplane.URLFile))
	if err != nil {
		t.Fatal(err)
	}
	if l.client, err = devplane.Dial(dir); err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(b.path("config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	l.config = b.write("linked.yaml", string(old)+fmt.Sprintf("controlPlane:\n  url: %s\n  identity: dev\n  signingSecret: {file: %s}\n  caFile: %s\n",
		devplane.RunnerURL(strings.TrimSpace(string(url))), filepath.Join(dir, devplane.SecretFile), filepath.Join(dir, devplane.CAFile)))
	b.engine(0, "config", "check", l.config)
	return l
}

// start starts the service, which dials the plane.
func (l *linked) start(t *testing.T) *testenv.Process {
	t.Helper()
	p := testenv.Start(t, nil, "engine", "serve", "--config", l.config)
	t.Cleanup(func() { p.Cmd.Process.Kill() })
	return p
}

// kill kills the service at once.
func (l *linked) kill(t *testing.T, p *testenv.Process) {
	t.Helper()
	p.Signal(t, os.Kill)
	p.Wait(t)
}

// connected waits for a runner that was not there before.
func (l *linked) connected(t *testing.T) {
	t.Helper()
	testenv.WaitFor(t, testenv.Patience, "the runner to be connected", func() bool {
		list, err := l.client.Runners(context.Background())
		if err != nil || len(list) != 1 || !list[0].Connected || !list[0].Since.After(l.since) {
			return false
		}
		l.since = list[0].Since
		return true
	})
}

// dialled is engine controlplane with the bed's plane.
func (l *linked) dialled(status int, args ...string) testenv.Result {
	l.t.Helper()
	return l.engine(status, append([]string{"controlplane", "--dir", l.path("controlplane")}, args...)...)
}

// TestLinkEndToEnd goes from a connected runner to a receipt, with an approval.
func TestLinkEndToEnd(t *testing.T) {
	for _, rt := range runtimes {
		t.Run(rt, func(t *testing.T) {
			l := newLinked(t, rt)
			l.start(t)
			l.connected(t)
			if list := l.dialled(0, "runners"); !strings.Contains(list.Stdout, "dev  connected") || !strings.Contains(list.Stdout, "[shop] workload.execute  [workload/unknown]") {
				t.Errorf("%s", list)
			}
			spec := l.spec(`echo on the way >&2; test "$TOKEN" = `+token+` && echo "out $TOKEN"`, `,"secrets":["TOKEN"]`)
			if review := l.dialled(0, "review", "shop", "workload.execute", "@"+spec); !strings.Contains(review.Stdout, "on the way") || !strings.Contains(review.Stdout, "stronger") {
				t.Errorf("%s", review)
			}
			call := []string{"call", "shop", "workload.execute", "@" + spec}
			if refused := l.dialled(125, append(call, "--json")...); !strings.Contains(refused.Stdout, `"kind":"not_approved"`) {
				t.Errorf("%s\nwant it refused without an approval", refused)
			}
			signs := append(call, "--key", l.path("alice.pem"), "--approver", "alice", "--receipt", l.path("receipt.json"))
			all := append([]string{"engine", "controlplane", "--dir", l.path("controlplane")}, signs...)
			if no := testenv.Start(t, strings.NewReader("no\n"), all...).Wait(t); no.Status != 125 || !strings.Contains(no.Stderr, "Approve exactly this") {
				t.Errorf("%s\nwant a question, and a no", no)
			}
			yes := testenv.Start(t, strings.NewReader("yes\n"), all...).Wait(t)
			var o output
			if err := json.Unmarshal([]byte(yes.Stdout), &o); err != nil || yes.Status != 0 || o.Stdout != "out [redacted:TOKEN]\n" || !strings.Contains(yes.Stderr, "\non the way\n") {
				t.Errorf("%s\nwant its output and progress: %v", yes, err)
			}
			// The receipt is the runner's, and the approval is used up.
			l.engine(0, "verify", l.path("receipt.json"), "--key", l.path("state/receipts/key.pub"))
			approval := l.approve("workload.execute", spec)
			l.dialled(0, append(call, "--approval", approval)...)
			if used := l.dialled(125, append(call, "--approval", approval, "--json")...); !strings.Contains(used.Stdout, `"kind":"approval_used"`) {
				t.Errorf("%s\nwant it used up", used)
			}
			// A program that fails is a result.
			fails := l.spec("exit 3", "")
			l.dialled(1, "call", "shop", "workload.execute", "@"+fails, "--key", l.path("alice.pem"), "--approver", "alice", "--yes")
			l.governed(0, "audit", "verify")
		})
	}
}

// TestLinkedRunnerIsKilled kills the runner while sandboxes run: they go on, and their
// results come from the next runner.
func TestLinkedRunnerIsKilled(t *testing.T) {
	for _, rt := range runtimes {
		t.Run(rt, func(t *testing.T) {
			l := newLinked(t, rt)
			const rounds = 5
			var calls []*testenv.Process
			for i := range rounds {
				cmd := l.start(t)
				l.connected(t)
				spec := l.write(fmt.Sprintf("job-%d.json", i), fmt.Sprintf(`{"files":[{"path":"main.sh","contents":"echo begun >&2; sleep 1.%d; echo done %d"}],"entrypoint":"main.sh"}`, rand.IntN(9), i))
				id := fmt.Sprint("killed:", i)
				calls = append(calls, testenv.Start(t, nil, "engine", "controlplane", "--dir", l.path("controlplane"), "call", "shop", "workload.execute", "@"+spec,
					"--key", l.path("alice.pem"), "--approver", "alice", "--yes", "--id", id))
				testenv.WaitFor(t, testenv.Patience, "the program to run", func() bool {
					s, err := l.client.Get(context.Background(), id, 1, 0)
					return err == nil && strings.Contains(strings.Join(s.Lines, "\n"), "begun")
				})
				time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
				l.kill(t, cmd)
			}
			l.start(t)
			for i, p := range calls {
				var o output
				call := p.Wait(t)
				if err := json.Unmarshal([]byte(call.Stdout), &o); err != nil || call.Status != 0 || o.Stdout != fmt.Sprintf("done %d\n", i) || !o.OK {
					t.Errorf("%s\nwant the output of what went on: %v", call, err)
				}
				s, err := l.client.Get(context.Background(), fmt.Sprint("killed:", i), 1, 0)
				if err != nil || s.Result == nil || !s.Result.Resumed || s.Result.Receipt == nil {
					t.Errorf("result %d = %+v, %v, want it resumed and with a receipt", i, s.Result, err)
				}
			}
			if runs, err := os.ReadDir(l.path("state/runs")); err != nil || len(runs) != rounds {
				t.Errorf("%d runs on record, %v, want %d", len(runs), err, rounds)
			}
			l.governed(0, "audit", "verify")
		})
	}
}

// TestLinkedCancel ends a sandbox from afar, also one that an earlier runner began.
func TestLinkedCancel(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint("runner killed ", killed), func(t *testing.T) {
			l := newLinked(t, "embedded")
			cmd := l.start(t)
			l.connected(t)
			spec := l.spec("echo begun >&2; sleep 100", "")
			call := testenv.Start(t, nil, "engine", "controlplane", "--dir", l.path("controlplane"), "call", "shop", "workload.execute", "@"+spec,
				"--key", l.path("alice.pem"), "--approver", "alice", "--yes", "--id", "long")
			testenv.WaitFor(t, testenv.Patience, "the program to run", func() bool {
				s, err := l.client.Get(context.Background(), "long", 1, 0)
				return err == nil && strings.Contains(strings.Join(s.Lines, "\n"), "begun")
			})
			if killed {
				l.kill(t, cmd)
				l.start(t)
				l.connected(t)
			}
			l.dialled(0, "cancel", "long")
			var o output
			if end := call.Wait(t); json.Unmarshal([]byte(end.Stdout), &o) != nil || o.Reason != "cancelled" {
				t.Errorf("%s\nwant it cancelled", end)
			}
		})
	}
}

// TestLinkedServiceStops ends the service in order while an invocation is under way: it
// is answered first.
func TestLinkedServiceStops(t *testing.T) {
	l := newLinked(t, "embedded")
	p := l.start(t)
	l.connected(t)
	spec := l.spec("echo begun >&2; sleep 1; echo done", "")
	call := testenv.Start(t, nil, "engine", "controlplane", "--dir", l.path("controlplane"), "call", "shop", "workload.execute", "@"+spec,
		"--key", l.path("alice.pem"), "--approver", "alice", "--yes", "--id", "last")
	testenv.WaitFor(t, testenv.Patience, "the program to run", func() bool {
		s, err := l.client.Get(context.Background(), "last", 1, 0)
		return err == nil && strings.Contains(strings.Join(s.Lines, "\n"), "begun")
	})
	p.Signal(t, syscall.SIGTERM)
	if end := p.Wait(t); end.Status != 0 {
		t.Errorf("%s", end)
	}
	s, err := l.client.Get(context.Background(), "last", 1, 0)
	if err != nil || s.Result == nil || s.Result.Resumed || s.Result.Error != nil {
		t.Errorf("result = %+v, %v, want it before the service's end", s.Result, err)
	}
	if done := call.Wait(t); done.Status != 0 {
		t.Errorf("%s", done)
	}
}

// TestLinkedReload changes the control plane's part of the config while an invocation is
// under way: its connection ends, and it does not.
func TestLinkedReload(t *testing.T) {
	l := newLinked(t, "embedded")
	p := l.start(t)
	l.connected(t)
	spec := l.spec("echo begun >&2; sleep 8; echo done", "")
	call := testenv.Start(t, nil, "engine", "controlplane", "--dir", l.path("controlplane"), "call", "shop", "workload.execute", "@"+spec,
		"--key", l.path("alice.pem"), "--approver", "alice", "--yes", "--id", "through")
	testenv.WaitFor(t, testenv.Patience, "the program to run", func() bool {
		s, err := l.client.Get(context.Background(), "through", 1, 0)
		return err == nil && strings.Contains(strings.Join(s.Lines, "\n"), "begun")
	})
	old, err := os.ReadFile(l.config)
	if err != nil {
		t.Fatal(err)
	}
	l.write("linked.yaml", string(old)+"  maxConcurrent: 3\n")
	p.Signal(t, syscall.SIGHUP)
	l.connected(t) // anew
	if list, err := l.client.Runners(context.Background()); err != nil || len(list) != 1 || list[0].Capacity.Max != 3 {
		t.Errorf("the runner tells %+v, %v", list, err)
	}
	if done := call.Wait(t); done.Status != 0 || !strings.Contains(done.Stdout, "done") {
		t.Errorf("%s", done)
	}
	s, err := l.client.Get(context.Background(), "through", 1, 0)
	if err != nil || s.Result == nil || s.Result.Resumed || s.Result.Error != nil {
		t.Errorf("result = %+v, %v, want that of the process that began it", s.Result, err)
	}
}
