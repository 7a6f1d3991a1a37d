// Package devplane is a control plane for tests and for development on one machine: the
// other end of package link, with an HTTP API for people and scripts beside it.
//
// It keeps what was asked for, and what came of it, in a directory, so that it may be
// killed like a runner. It is no product: one secret for all runners, one token for all
// who ask, and no approvals of its own, which are made by whoever asks.
package devplane

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
)

// Plane is a control plane.
type Plane struct {
	ctx    context.Context // its end is the plane's
	dir    string
	secret []byte
	token  string
	log    *slog.Logger
	again  time.Duration // until what had no answer is asked again

	mu      sync.Mutex
	runners map[string]*runner // by identity, those that were ever here
	calls   map[string]*call   // by id
	reviews map[string]chan reviewed
	changed chan struct{} // closed and replaced whenever something changes
}

// runner is one that was here.
type runner struct {
	identity     string
	version      string
	session      *session  // nil: it is not here
	since        time.Time // when that changed
	room         wire.Room
	capabilities []capability.Listed
}

// States of a call.
const (
	Waiting  = "waiting"  // for its runner, or for room there
	Running  = "running"  // the runner has it
	Answered = "answered" // there is a result
	Refused  = "refused"  // the runner will not do it
)

// call is one invocation.
type call struct {
	ID     string    `json:"id"`
	Runner string    `json:"runner"`
	Body   []byte    `json:"body"`
	Since  time.Time `json:"since"`

	state   string
	cancel  bool
	lines   []string
	first   int64 // number of lines[0]
	dropped int64
	result  *wire.Result
	refusal *engine.Error
	asked   time.Time // when the runner was last asked, on asker
	asker   *session
}

// maxLines are kept of a call, the latest.
const maxLines = 10_000

type reviewed struct {
	review  wire.Review
	refusal *engine.Error
}

// open reads what an earlier process has left in dir.
func open(ctx context.Context, dir string, secret []byte, token string, log *slog.Logger) (*Plane, error) {
	p := &Plane{
		ctx: ctx, dir: dir, secret: secret, token: token, log: log, again: 2 * time.Second, runners: map[string]*runner{},
		calls: map[string]*call{}, reviews: map[string]chan reviewed{}, changed: make(chan struct{}),
	}
	if err := os.MkdirAll(p.path(""), 0o700); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(p.path("*.call"))
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		c := &call{state: Waiting, first: 1}
		if err := json.Unmarshal(data, c); err != nil {
			return nil, err
		}
		p.calls[c.ID] = c
		body, err := os.ReadFile(strings.TrimSuffix(path, ".call") + ".result")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		r, err := wire.DecodeResult(body)
		if err != nil {
			return nil, err
		}
		c.state, c.result = Answered, &r
	}
	return p, nil
}

func (p *Plane) path(name string) string { return filepath.Join(p.dir, "calls", name) }

// keep puts a file of a call on disk. An id is a name of a file: it holds no slash.
func (p *Plane) keep(id, suffix string, data []byte) error {
	return replace(p.path(""), id+suffix, data)
}

// replace puts a file into dir, whole or not at all, and on disk.
func replace(dir, name string, data []byte) error {
	tmp, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// wake tells those who wait that something has changed. The lock is held.
func (p *Plane) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// choose returns the identity of the runner that is meant: the only one that is here, if
// none is named. The lock is held.
func (p *Plane) choose(identity string) (string, error) {
	if identity != "" {
		if !wire.ValidName(identity) {
			return "", engine.Refused("bad_arguments", "cannot use runner=%q: it is no identity", identity)
		}
		return identity, nil
	}
	var here []string
	for _, r := range p.runners {
		if r.session != nil {
			here = append(here, r.identity)
		}
	}
	slices.Sort(here)
	switch len(here) {
	case 0:
		return "", engine.Refused("no_runner", "cannot choose a runner: none is connected").WithFix("start one, and look with engine controlplane runners")
	case 1:
		return here[0], nil
	default:
		return "", engine.Refused("no_runner", "cannot choose between %d runners", len(here)).WithFix("name one of " + strings.Join(here, ", "))
	}
}

// ask takes a new call, or the one that has this id already.
func (p *Plane) ask(id, identity string, ask wire.Call) (*call, error) {
	body, err := json.Marshal(ask)
	if err == nil {
		_, err = wire.DecodeCall(body)
	}
	if err == nil && len(body) > wire.MaxBody {
		err = errors.New("it is too large for a message")
	}
	if err != nil {
		return nil, engine.Refused("bad_arguments", "cannot accept the call: %w", err)
	}
	if id == "" {
		id = wire.NewNonce(8)
	}
	if !wire.ValidName(id) {
		return nil, engine.Refused("bad_id", "cannot accept id=%q of a call", id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok := p.calls[id]; ok {
		if string(c.Body) == string(body) {
			return c, nil
		}
		return nil, engine.Refused("exists", "cannot accept call=%s: another one has this id", id).WithFix("use another id")
	}
	if identity, err = p.choose(identity); err != nil {
		return nil, err
	}
	c := &call{ID: id, Runner: identity, Body: body, Since: time.Now().UTC(), state: Waiting, first: 1}
	data, err := json.Marshal(c)
	if err == nil {
		err = p.keep(id, ".call", data)
	}
	if err != nil {
		return nil, engine.Failed("no_record", "cannot keep call=%s: %w", id, err)
	}
	p.calls[id] = c
	p.wake()
	return c, nil
}

// Snapshot is a call as it is shown.
type Snapshot struct {
	ID      string        `json:"id"`
	Runner  string        `json:"runner"`
	State   string        `json:"state"`
	First   int64         `json:"first"` // number of the first line
	Lines   []string      `json:"lines"`
	Dropped int64         `json:"dropped"` // lines that are gone for good
	Result  *wire.Result  `json:"result"`
	Error   *engine.Error `json:"error"` // why it was refused
}

// snapshot shows a call with its lines from number from. The lock is held.
func (c *call) snapshot(from int64) Snapshot {
	skip := min(max(from-c.first, 0), int64(len(c.lines)))
	return Snapshot{
		ID: c.ID, Runner: c.Runner, State: c.state, First: c.first + skip, Lines: append([]string{}, c.lines[skip:]...), Dropped: c.dropped,
		Result: c.result, Error: c.refusal,
	}
}

// over reports whether nothing more will come of the call.
func (c *call) over() bool { return c.state == Answered || c.state == Refused }
