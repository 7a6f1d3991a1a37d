// Package link lets a control plane call a runner. The runner dials out, so nothing of
// it listens; the two prove to each other that they know one secret; each invocation is
// signed with it.
//
// An invocation is done at most once, whatever breaks, and is answered in the end: it is
// on disk before it begins, its result stays on disk until the plane has acknowledged
// it, and one whose runner died is answered from the records of what it did. The link
// decides nothing about what may be done: that is the capability package's, as for every
// other caller. docs/LINK.md is the protocol.
package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/cmd/engine-runner/lock"
	"github.com/direct-oci/engine/engine"
)

// Options is what a link needs to know. What is zero has a default, unless it says so.
type Options struct {
	Settings
	Identity string // required: the runner's name, wire.ValidName

	// Runner is what dispatches calls, as it is now. Required.
	Runner func() *capability.Runner
	// Keep keeps the receipt of a reply. Required.
	Keep func(reply capability.Reply) error

	Dir string // required: of the outbox

	// Draining tells whether nothing new is to be taken, as it is now; nil: never.
	Draining func() bool
	// Stop, once it is closed, ends the link when what is under way has been answered.
	Stop <-chan struct{}
	Log  *slog.Logger // required

	times times
}

// times are those that tests shorten.
type times struct {
	dial      time.Duration // until the link is up
	ping      time.Duration // between pings, and until one is answered
	write     time.Duration // for one message
	again     time.Duration // until an unacknowledged result is sent again
	least     time.Duration // first wait after a failure
	most      time.Duration // longest one
	stable    time.Duration // a link of this age makes the waits short again
	refresh   time.Duration // between looks at the capabilities
	drainAcks time.Duration // for the plane to acknowledge the last results
}

var usual = times{
	dial: 20 * time.Second, ping: 15 * time.Second, write: 30 * time.Second, again: 30 * time.Second,
	least: 500 * time.Millisecond, most: time.Minute, stable: 30 * time.Second, refresh: time.Minute, drainAcks: 10 * time.Second,
}

// Open takes hold of the outbox, and returns a link to Run. Its errors are *engine.Error;
// whatever fails later is tried again.
func Open(o Options) (*Link, error) {
	if o.times == (times{}) {
		o.times = usual
	}
	if !wire.ValidName(o.Identity) {
		return nil, engine.Refused("bad_config", "cannot use controlPlane.identity=%q: want letters, digits and . _ : @ -", o.Identity)
	}
	now, err := newInForce(o.Settings, o.times)
	if err != nil {
		return nil, err
	}
	box, entries, err := openOutbox(o.Dir, time.Now())
	if err != nil {
		e := engine.Failed("no_outbox", "cannot use outbox=%s: %w", o.Dir, err)
		if errors.Is(err, lock.ErrHeld) {
			return nil, e.WithFix("stop the other one, or give each runner a state directory of its own")
		}
		return nil, e.WithFix("have it looked at; what is moved away from " + filepath.Join(o.Dir, "calls") + " is never answered")
	}
	l := &Link{
		Options: o, box: box, calls: map[string]*call{}, recent: map[string]time.Time{},
		counts: newCounts(), lines: &budget{left: maxAllLines}, reviews: make(chan struct{}, maxReviews), idle: make(chan struct{}, 1), audited: map[string]*auditRate{},
	}
	l.now.Store(now)
	for _, e := range entries {
		l.load(e)
	}
	return l, nil
}

// Run keeps the link up until ctx ends, or Stop is closed and nothing is under way any
// more. Then it gives the outbox up.
//
// When ctx ends, invocations that are under way go on, as long as this process does; the
// next process answers them.
func (l *Link) Run(ctx context.Context) {
	defer l.release()
	l.resume()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go l.drain(ctx, stop)
	wait := backoff{least: l.times.least, most: l.times.most}
	for ctx.Err() == nil {
		now, began := l.now.Load(), time.Now()
		if now.dialer == nil {
			running, waiting := l.underWay()
			l.Log.Info("there is no control plane", "running", running, "unacknowledged", waiting)
			select {
			case <-now.over:
			case <-ctx.Done():
			}
			continue
		}
		err := l.once(ctx, now)
		if ctx.Err() != nil {
			return
		}
		if now.isOver() {
			l.Log.Info("the link ended: its settings have changed", "url", now.URL)
			l.counts.wentDown("its settings have changed")
			wait.reset()
			continue
		}
		if time.Since(began) >= l.times.stable {
			wait.reset()
		}
		pause := wait.next()
		l.counts.failed(err)
		l.Log.Warn("the link is down", "url", now.URL, "cause", err.Error(), "again in", pause.Round(time.Millisecond).String())
		select {
		case <-time.After(pause):
		case <-now.over:
			wait.reset()
		case <-ctx.Done():
		}
	}
}

var errChanged = errors.New("the runner's config has changed")

// once is one connection, from dialling to its end.
func (l *Link) once(ctx context.Context, now *inForce) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-now.over:
			cancel(errChanged)
		case <-ctx.Done():
		}
	}()
	secret, err := now.Secret(ctx)
	if err != nil {
		return because(noSecret, fmt.Errorf("cannot get the signing secret: %w", err))
	}
	defer clear(secret)
	if len(secret) < wire.MinSecret {
		return because(noSecret, fmt.Errorf("the signing secret has %d bytes: want %d at least", len(secret), wire.MinSecret))
	}
	conn, err := now.dialer.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.CloseNow()
	s := newSession(l, conn, wire.NewKey(secret, l.Identity))
	return s.run(ctx)
}

// drain waits for Stop, then for what is under way to be answered, and calls stop.
func (l *Link) drain(ctx context.Context, stop func()) {
	if l.Stop == nil {
		return
	}
	select {
	case <-l.Stop:
	case <-ctx.Done():
		return
	}
	l.Log.Info("the link is being stopped: it takes nothing new")
	l.startStopping()
	var bound <-chan time.Time // nil: as long as something runs
	for {
		running, waiting := l.underWay()
		if running == 0 && (waiting == 0 || l.now.Load().dialer == nil) {
			break
		}
		if running == 0 && bound == nil {
			bound = time.After(l.times.drainAcks)
		}
		select {
		case <-l.idle:
			continue
		case <-bound: // the results are on disk, for the next one
		case <-ctx.Done():
		}
		break
	}
	stop()
}
