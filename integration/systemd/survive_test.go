package systemd

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/integration/testenv"
)

// scopeVariable is all for the whole proof; otherwise it is a sample.
const scopeVariable = "ENGINE_SYSTEMD_SCOPE"

func whole() bool { return os.Getenv(scopeVariable) == "all" }

// counting writes 0, 1, 2 and so on, a line each, until there is a file /tmp/stop.
const counting = `i=0; while [ ! -e /tmp/stop ]; do echo $i; i=$((i+1)); sleep 0.2; done`

// counter is a sandbox with a program that counts, and who listens to it.
type counter struct {
	name string
	ttl  time.Duration // zero: it outlives the test
	box  wire.Sandbox
	got  []byte
	said []byte // on stderr
	end  *wire.ExecResult
	over chan error // told once the listener has ended
}

// runtimes are those that sandboxes of the survival tests are spread over.
var runtimes = []string{"embedded", "direct", "runc", "crun", "runsc"}

// count makes the i-th of these and starts to listen, for as long as ctx lives.
func (b *box) count(ctx context.Context, t *testing.T, c *client.Client, i int, ttl time.Duration) *counter {
	t.Helper()
	n := &counter{name: fmt.Sprintf("counter-%d", i), ttl: ttl, over: make(chan error, 1)}
	life := time.Hour
	if ttl > 0 {
		life = ttl
	}
	var err error
	n.box, err = c.CreateSandbox(ctx, wire.SandboxRequest{
		Name: n.name, Owner: t.Name(), Rootfs: "/srv/root", Runtime: runtimes[i%len(runtimes)],
		CPUs: 0.2, MemoryMB: 64, Pids: 16, TTLSeconds: life.Seconds(), IdleSeconds: -1,
	})
	if err != nil {
		t.Fatalf("sandbox %s: %v\n%s", n.name, err, b.journal())
	}
	t.Cleanup(func() { // for tests that fail
		if err := c.RemoveSandbox(within(t, testenv.Patience), n.box.ID); err != nil {
			t.Error(err)
		}
	})
	_, err = c.StartExec(ctx, n.name, wire.ExecRequest{ID: "count", Command: []string{"/bin/sh", "-c", counting}})
	if err != nil {
		t.Fatalf("sandbox %s: %v\n%s", n.name, err, b.journal())
	}
	go func() { n.over <- n.listen(ctx, c) }()
	return n
}

// listen follows the output to its end, whatever becomes of the service meanwhile.
func (n *counter) listen(ctx context.Context, c *client.Client) error {
	for event, err := range c.FollowExec(ctx, n.name, "count", "") {
		switch {
		case err != nil:
			return err
		case event.Kind == "data" && event.Stream == "stdout":
			n.got = append(n.got, event.Data...)
		case event.Kind == "data":
			n.said = append(n.said, event.Data...)
		case event.Kind == "exit":
			n.end = event.Result
		default:
			return fmt.Errorf("got an event %s %s %q", event.Kind, event.Stream, event.Data)
		}
	}
	return nil
}

// check compares what was heard with what must have been written: all numbers from 0 on.
func (n *counter) check(t *testing.T) {
	t.Helper()
	select {
	case err := <-n.over:
		if err != nil {
			t.Errorf("sandbox %s: its output broke off: %v", n.name, err)
			return
		}
	case <-time.After(testenv.Patience):
		t.Errorf("sandbox %s: its output does not end", n.name)
		return
	}
	if n.end == nil {
		t.Errorf("sandbox %s: nobody knows how its program ended", n.name)
		return
	}
	var want []byte
	for i := 0; int64(len(want)) < n.end.StdoutBytes; i++ {
		want = append(strconv.AppendInt(want, int64(i), 10), '\n')
	}
	if got, want := sha256.Sum256(n.got), sha256.Sum256(want); got != want || n.end.StdoutBytes == 0 {
		t.Errorf("sandbox %s: wrote %d bytes, %d were heard, and the hashes are %x and %x",
			n.name, n.end.StdoutBytes, len(n.got), want, got)
	}
	if len(n.said) > 0 {
		t.Errorf("sandbox %s: its program said %q", n.name, n.said)
	}
	reason := "exited"
	if n.ttl > 0 {
		reason = "timeout"
	}
	if n.end.Reason != reason {
		t.Errorf("sandbox %s: its program ended by %s, want %s", n.name, n.end.Reason, reason)
	}
}

// checkDeadline compares a sandbox's length with its time to live.
func (n *counter) checkDeadline(ctx context.Context, t *testing.T, c *client.Client) (late time.Duration) {
	t.Helper()
	var s wire.Sandbox
	for end := time.Now().Add(testenv.Patience); s.Result == nil && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var err error
		if s, err = c.Sandbox(ctx, n.name); err != nil {
			t.Error(err)
			return 0
		}
	}
	if s.Result == nil || !s.Result.TimedOut {
		t.Errorf("sandbox %s is past its deadline, and %s: %+v", n.name, s.State, s.Result)
		return 0
	}
	late = time.Duration(s.Result.DurationMs*float64(time.Millisecond)) - n.ttl
	if late < 0 || late > time.Second {
		t.Errorf("sandbox %s lived %v longer than it was to", n.name, late)
	}
	return late
}

// TestRestartsLoseNothing restarts the service, in order and by kill -9, under live
// sandboxes of all runtimes. Every other sandbox has a deadline on the way.
func TestRestartsLoseNothing(t *testing.T) {
	b := boot(t)
	restarts, count := 5, 5
	if whole() {
		restarts, count = 100, 50
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	c := b.client(t)
	ctx := within(t, time.Duration(restarts)*30*time.Second+10*time.Minute)
	counters := b.countAll(ctx, t, c, count, func(i int) time.Duration {
		if i%2 == 0 {
			return 0
		}
		return time.Duration(count)*time.Second/2 + time.Duration(rnd.Int64N(int64(restarts)*int64(2*time.Second)))
	})
	kills := 0
	for range restarts {
		time.Sleep(time.Duration(rnd.Int64N(int64(time.Second))))
		if rnd.IntN(2) == 0 {
			b.run(t, "systemctl", "restart", "engine")
			continue
		}
		kills++
		pid := b.mainPID(t)
		b.run(t, "kill", "-KILL", strconv.Itoa(pid))
		b.waitReplaced(t, pid)
	}
	b.endAll(ctx, t, c, counters)
	t.Logf("%d restarts, %d of them by kill -9, under %d sandboxes", restarts, kills, count)
}

// countAll makes a number of counters, several at a time.
func (b *box) countAll(ctx context.Context, t *testing.T, c *client.Client, n int, ttl func(i int) time.Duration) []*counter {
	t.Helper()
	var counters []*counter
	for i := range n {
		counters = append(counters, b.count(ctx, t, c, i, ttl(i)))
	}
	return counters
}

// endAll lets the counters end, checks what was heard of them, and removes them.
func (b *box) endAll(ctx context.Context, t *testing.T, c *client.Client, counters []*counter) {
	t.Helper()
	for _, n := range counters {
		if n.ttl > 0 {
			continue
		}
		if l, err := c.Liveness(ctx, n.name); err != nil || !l.Alive {
			t.Errorf("sandbox %s is lost: %+v, %v\n%s", n.name, l, err, b.journal())
			continue
		}
		if _, err := c.StartExec(ctx, n.name, wire.ExecRequest{ID: "stop", Command: []string{"/bin/sh", "-c", ": >/tmp/stop"}}); err != nil {
			t.Errorf("sandbox %s takes no program any more: %v", n.name, err)
		}
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var late []time.Duration
	for _, n := range counters {
		all.Go(func() {
			n.check(t)
			if n.ttl > 0 {
				l := n.checkDeadline(ctx, t, c)
				mu.Lock()
				late = append(late, l)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(late) > 0 {
		t.Logf("%d deadlines, the latest %v late", len(late), slices.Max(late))
	}
	for _, n := range counters {
		if err := c.RemoveSandbox(ctx, n.name); err != nil {
			t.Error(err)
		}
	}
}
