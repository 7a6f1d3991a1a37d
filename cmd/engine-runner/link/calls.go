package link

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
)

// Link is what outlives a connection: the invocations. Open makes one.
type Link struct {
	Options
	now     atomic.Pointer[inForce]
	counts  counts
	box     *outbox
	lines   *budget
	reviews chan struct{} // slots
	idle    chan struct{} // poked whenever an invocation ends or is forgotten
	work    sync.WaitGroup

	mu       sync.Mutex
	calls    map[string]*call     // by id, those in the outbox
	recent   map[string]time.Time // nonces, with the time after which their requests are stale
	stopping bool
	running  int
	bytes    int64                 // in the outbox, and reserved for results to come
	session  *session              // nil: the link is down
	audited  map[string]*auditRate // by kind of refusal, which are few
}

// call is one invocation.
type call struct {
	entry
	ask    wire.Call
	id     string // in the audit log, and of its run
	lines  *lines
	cancel context.CancelFunc // nil: it does not run any more

	sentOn *session // its result, last
	sentAt time.Time
}

// reserve is what a result may take on disk.
const reserve = wire.MaxBody

// callID is the id of an invocation in the runner's own records: the same whoever asks,
// so that what a runner that died has begun can be found.
func callID(identity, id string) string {
	sum := sha256.Sum256([]byte("engine link call\n" + identity + "\n" + id))
	return hex.EncodeToString(sum[:8])
}

func (l *Link) newCall(e entry, ask wire.Call) *call {
	return &call{entry: e, ask: ask, id: callID(l.Identity, e.Request.ID), lines: &lines{budget: l.lines}}
}

// load takes over an invocation of an earlier process.
func (l *Link) load(e entry) {
	ask, err := wire.DecodeCall(e.Request.Body)
	if err != nil { // of another version; without a project it is answered with an error
		l.Log.Error("cannot read an invocation in the outbox", "id", e.Request.ID, "cause", err.Error())
	}
	l.calls[e.Request.ID] = l.newCall(e, ask)
	l.recent[e.Request.Nonce] = l.staleAt(e.Request)
	l.bytes += e.size
}

func (l *Link) staleAt(r wire.Request) time.Time {
	return time.UnixMilli(r.Time).Add(2 * l.now.Load().Skew)
}

// resume answers invocations that were begun by a process which has died.
func (l *Link) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls {
		if c.sum != "" {
			continue
		}
		l.running++
		l.bytes += reserve
		l.start(c, true)
	}
}

// start begins an invocation that is on disk, or follows what an earlier process began.
func (l *Link) start(c *call, resumed bool) {
	// It goes on when the link is down, and when the service is being stopped.
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	l.work.Go(func() {
		defer cancel()
		l.do(ctx, c, resumed)
	})
}

func (l *Link) do(ctx context.Context, c *call, resumed bool) {
	ask := capability.Call{
		ID: c.id, Project: c.ask.Project, Capability: c.ask.Capability, Environment: c.ask.Environment, Args: c.ask.Args,
		Approval: c.ask.Approval, Caller: "control plane " + l.now.Load().URL + ", invocation " + c.Request.ID + ", for " + c.ask.Caller,
		Log: func(line string) {
			c.lines.add(line)
			l.poke()
		},
	}
	runner := l.Runner()
	dispatch := runner.Call
	if resumed {
		dispatch = runner.Resume
	}
	reply, err := dispatch(ctx, ask)
	result := wire.Result{Call: c.id, Resumed: resumed, Lines: c.lines.count()}
	if reply.Receipt.Payload != nil {
		result.Receipt = &reply.Receipt
		if err := l.Keep(reply); err != nil {
			l.Log.Error("cannot keep a receipt: the plane has it", "id", c.Request.ID, "cause", err.Error())
		}
	}
	if err == nil {
		result.Output, err = capability.EncodeOutput(reply.Output)
	}
	if err != nil {
		result.Output, result.Error = nil, clip(engine.AsError(err))
	}
	l.finish(c, encodeResult(result))
}

// encodeResult writes a result that fits into a message.
func encodeResult(r wire.Result) []byte {
	body, err := json.Marshal(r)
	if err == nil && len(body) <= wire.MaxBody {
		return body
	}
	if err == nil {
		r.Error = engine.Failed("result_too_large", "cannot send the output: it has %d bytes of JSON, and a message takes %d", len(body), wire.MaxBody)
	} else {
		r.Error = engine.Failed("internal", "internal error: the output has no JSON form: %w", err)
	}
	r.Output = nil
	if body, err = json.Marshal(r); err != nil || len(body) > wire.MaxBody {
		r.Receipt = nil // the runner has it
		body, _ = json.Marshal(r)
	}
	return body
}

// clip makes an error fit into a message.
func clip(e *engine.Error) *engine.Error {
	short := func(s string, most int) string {
		if len(s) > most {
			s = s[:most] + "…"
		}
		return s
	}
	return &engine.Error{Class: e.Class, Kind: e.Kind, Message: short(e.Message, 32<<10), Fix: short(e.Fix, 4<<10-3)}
}

// finish puts a result into the outbox. A full disk is waited for: the result is not to
// be had a second time.
func (l *Link) finish(c *call, body []byte) {
	wait := backoff{least: 100 * time.Millisecond, most: 30 * time.Second}
	for {
		err := l.box.finish(c.Request.ID, body)
		if err == nil {
			break
		}
		l.Log.Error("cannot write a result", "id", c.Request.ID, "cause", err.Error(), "fix", "make room in "+l.Dir)
		time.Sleep(wait.next())
	}
	l.mu.Lock()
	c.cancel, c.sum, c.answered = nil, sum(body), time.Now()
	c.size += int64(len(body))
	l.bytes += int64(len(body)) - reserve
	l.running--
	l.mu.Unlock()
	l.changed()
}

// poke has the session look for something to send.
func (l *Link) poke() {
	l.mu.Lock()
	s := l.session
	l.mu.Unlock()
	if s != nil {
		s.poke()
	}
}

// changed tells all who wait for invocations to end.
func (l *Link) changed() {
	l.poke()
	select {
	case l.idle <- struct{}{}:
	default:
	}
}

func (l *Link) startStopping() {
	l.mu.Lock()
	l.stopping = true
	l.mu.Unlock()
	l.poke()
}

// underWay counts invocations that run, and results that are not acknowledged.
func (l *Link) underWay() (running, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running, len(l.calls) - l.running
}

// drains reports whether nothing new is taken.
func (l *Link) drains() bool {
	l.mu.Lock()
	stopping := l.stopping
	l.mu.Unlock()
	return stopping || l.Draining != nil && l.Draining()
}

func (l *Link) room() wire.Room {
	draining, now := l.drains(), l.now.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	return wire.Room{Max: now.MaxRuns, Running: l.running, Draining: draining, OutboxBytes: max(l.bytes, 0), OutboxMax: now.MaxOutbox}
}

// release lets go of the outbox once nothing writes into it any more.
func (l *Link) release() {
	if running, _ := l.underWay(); running > 0 {
		go func() {
			l.work.Wait()
			l.box.close()
		}()
		return
	}
	if err := l.box.close(); err != nil {
		l.Log.Error("cannot close the outbox", "cause", err.Error())
	}
}
