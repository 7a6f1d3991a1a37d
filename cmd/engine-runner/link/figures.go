package link

import (
	"errors"
	"maps"
	"sync"
	"time"
)

// Figures are how a link stands, and what it did since it was opened.
type Figures struct {
	URL   string    // of the plane; "": there is none
	Up    bool      // it is connected, and both ends have proved themselves
	Since time.Time // it has been up, or down, since then
	Cause string    // why it is down; "": nothing has failed yet
	Heard time.Time // when the plane last said or answered something; zero: never

	RoundTrip time.Duration     // of the last ping that was answered; zero: none was
	Connects  int64             // how often it came up
	Failures  map[string]int64  // by one of Reasons: how often it did not, or was lost
	In, Out   int64             // messages
	Requests  map[Verdict]int64 // of the plane, by what became of them

	Running  int       // invocations
	Waiting  int       // results that the plane has not acknowledged
	Oldest   time.Time // when the one of them was made that waits longest; zero: none waits
	Bytes    int64     // in the outbox, and reserved for results to come
	MaxBytes int64
}

// Verdict is what became of a request of the plane's.
type Verdict struct {
	Request string // invoke, review, cancel
	Verdict string // accepted, duplicate, refused
	Kind    string // of the refusal
}

// Verdicts that are no refusals.
const (
	accepted  = "accepted"
	duplicate = "duplicate"
)

// Why a link does not come up, or is lost.
const (
	noSecret    = "secret"      // this end cannot get it
	unreachable = "unreachable" // no such name, no way there, no answer
	untrusted   = "certificate" // the plane's is of nobody who is trusted
	notAPlane   = "status"      // what answers is no control plane
	unproved    = "greeting"    // one of the ends has not proved itself
	silent      = "silent"      // the plane answers no ping, or does not read
	malformed   = "malformed"   // it sent what is no message
	forged      = "forged"      // it sent what is not signed
	ended       = "ended"       // the connection was closed, or broke
)

// Reasons are those by which Failures counts.
var Reasons = []string{noSecret, unreachable, untrusted, notAPlane, unproved, silent, malformed, forged, ended}

// failure is an end of the link with its reason.
type failure struct {
	reason string
	error
}

func (f *failure) Unwrap() error { return f.error }

func because(reason string, err error) error {
	var known *failure
	if err == nil || errors.As(err, &known) {
		return err
	}
	return &failure{reason, err}
}

func reasonOf(err error) string {
	var known *failure
	if errors.As(err, &known) {
		return known.reason
	}
	return ended
}

// counts are the figures that outlive a connection.
type counts struct {
	mu  sync.Mutex
	now Figures
}

func newCounts() counts {
	return counts{now: Figures{Since: time.Now(), Failures: map[string]int64{}, Requests: map[Verdict]int64{}}}
}

// note changes the figures.
func (c *counts) note(change func(f *Figures)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.now)
}

func (c *counts) cameUp() {
	c.note(func(f *Figures) {
		f.Up, f.Since, f.Cause, f.Heard, f.Connects = true, time.Now(), "", time.Now(), f.Connects+1
	})
}

// wentDown is also told of connections that never came up: what counts is since when there
// is none.
func (c *counts) wentDown(cause string) {
	c.note(func(f *Figures) {
		if f.Up {
			f.Up, f.Since = false, time.Now()
		}
		f.Cause = cause
	})
}

func (c *counts) failed(err error) {
	c.wentDown(err.Error())
	c.note(func(f *Figures) { f.Failures[reasonOf(err)]++ })
}

// heard notes that the plane is there. A ping that was answered took some time; zero: it
// was a message.
func (c *counts) heard(roundTrip time.Duration) {
	c.note(func(f *Figures) {
		if f.Heard = time.Now(); roundTrip > 0 {
			f.RoundTrip = roundTrip
		} else {
			f.In++
		}
	})
}

func (c *counts) judged(request, verdict, kind string) {
	c.note(func(f *Figures) { f.Requests[Verdict{request, verdict, kind}]++ })
}

// Figures returns those of this moment.
func (l *Link) Figures() Figures {
	l.counts.mu.Lock()
	f := l.counts.now
	f.Failures, f.Requests = maps.Clone(f.Failures), maps.Clone(f.Requests)
	l.counts.mu.Unlock()
	now := l.now.Load()
	f.URL, f.MaxBytes = now.URL, now.MaxOutbox
	l.mu.Lock()
	defer l.mu.Unlock()
	f.Running, f.Waiting, f.Bytes = l.running, len(l.calls)-l.running, max(l.bytes, 0)
	for _, c := range l.calls {
		if c.sum != "" && (f.Oldest.IsZero() || c.answered.Before(f.Oldest)) {
			f.Oldest = c.answered
		}
	}
	return f
}
