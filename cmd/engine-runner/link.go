package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/cmd/engine-runner/link"
)

// startLink keeps up the link to the control plane, if the config has one, until ctx
// ends.
func (s *serving) startLink(ctx context.Context) {
	c := s.live.Config()
	if c.ControlPlane == nil {
		return
	}
	p := *c.ControlPlane
	s.unlink, s.linked = make(chan struct{}), make(chan error, 1)
	o := link.Options{
		URL: p.URL, Identity: p.Identity, CAFile: p.CAFile,
		Secret: func(ctx context.Context) ([]byte, error) {
			return p.SigningSecret.Read(ctx, os.Getenv("CREDENTIALS_DIRECTORY"))
		},
		Runner: s.live.Runner,
		Keep:   func(reply capability.Reply) error { return s.app.keepReceipt(c, &callFlags{}, reply) },
		Dir:    filepath.Join(c.State(), "link"), MaxRuns: int(p.MaxConcurrent), MaxOutbox: int64(p.MaxOutboxMB * (1 << 20)),
		Skew:     time.Duration(p.ClockSkewSeconds * float64(time.Second)),
		Draining: s.server.Draining, Stop: s.unlink, Log: s.log,
	}
	go func() { s.linked <- link.Run(ctx, o) }()
}

// stopLink has the link take nothing new. The function it returns waits until what is
// under way has been answered, or ctx has ended: the next service answers the rest.
func (s *serving) stopLink(ctx context.Context) (wait func()) {
	if s.unlink == nil {
		return func() {}
	}
	close(s.unlink)
	return func() {
		select {
		case <-s.linked:
		case <-ctx.Done():
			s.log.Warn("invocations were still under way", "next", "they are answered when the service is started again")
		}
	}
}
