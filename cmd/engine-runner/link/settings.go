package link

import (
	"context"
	"time"

	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
)

// Settings are what may change while a link is there. What is zero has a default, unless
// it says so.
type Settings struct {
	URL    string // wss://…, or ws://… to this very host; "": there is no plane, and nobody is dialled
	CAFile string // certificates, in PEM, that may have signed the plane's; "": the system's

	// Secret reads the signing secret, anew for each connection. Required with an URL.
	Secret func(ctx context.Context) ([]byte, error)

	MaxRuns   int           // invocations at once; 8
	MaxOutbox int64         // bytes on disk of what is not acknowledged; 1 GiB
	Skew      time.Duration // how far the two clocks may be apart; 5 minutes
}

func (s Settings) withDefaults() Settings {
	if s.MaxRuns == 0 {
		s.MaxRuns = 8
	}
	if s.MaxOutbox == 0 {
		s.MaxOutbox = 1 << 30
	}
	if s.Skew == 0 {
		s.Skew = 5 * time.Minute
	}
	return s
}

// inForce are settings that a link goes by.
type inForce struct {
	Settings
	dialer *dialer       // nil: nobody is dialled
	over   chan struct{} // closed once others are in force
}

func (f *inForce) isOver() bool {
	select {
	case <-f.over:
		return true
	default:
		return false
	}
}

func newInForce(s Settings, t times) (*inForce, error) {
	f := &inForce{Settings: s.withDefaults(), over: make(chan struct{})}
	if f.URL == "" {
		return f, nil
	}
	if err := wire.CheckURL(f.URL); err != nil {
		return nil, engine.Refused("bad_config", "cannot use controlPlane.url=%q: it %w", f.URL, err)
	}
	var err error
	f.dialer, err = newDialer(f.Settings, t)
	return f, err
}

// Change returns what puts other settings into force, or an *engine.Error if they cannot
// be. The connection is made anew then; what is under way, and what waits in the outbox, is
// answered on the next one, to whatever plane that leads.
func (l *Link) Change(s Settings) (apply func(), err error) {
	next, err := newInForce(s, l.times)
	if err != nil {
		return nil, err
	}
	return func() { close(l.now.Swap(next).over) }, nil
}
