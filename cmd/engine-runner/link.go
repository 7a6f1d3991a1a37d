package main

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/cmd/engine-runner/config"
	"github.com/direct-oci/engine/cmd/engine-runner/link"
	"github.com/direct-oci/engine/engine"
)

// linkSettings are those of the config's control plane; without one they name none.
func linkSettings(c config.Config) link.Settings {
	if c.ControlPlane == nil {
		return link.Settings{}
	}
	p := *c.ControlPlane
	return link.Settings{
		URL: p.URL, CAFile: p.CAFile,
		Secret: func(ctx context.Context) ([]byte, error) {
			return p.SigningSecret.Read(ctx, os.Getenv("CREDENTIALS_DIRECTORY"))
		},
		MaxRuns: int(p.MaxConcurrent), MaxOutbox: int64(p.MaxOutboxMB * (1 << 20)),
		Skew: time.Duration(p.ClockSkewSeconds * float64(time.Second)),
	}
}

// changeLink returns what puts the control plane of a config into force, in the place of
// old's. The first one has the outbox taken hold of, which can be refused; from then on
// the link is there as long as this process, with a plane to dial or without.
func (s *serving) changeLink(old, c config.Config) (apply func(), err error) {
	p, l := c.ControlPlane, s.link.Load()
	switch {
	case l == nil && p == nil:
		return func() {}, nil
	case l == nil:
		l, err = link.Open(link.Options{
			Settings: linkSettings(c), Identity: p.Identity, Runner: s.live.Runner,
			Keep: func(reply capability.Reply) error { return s.app.keepReceipt(s.live.Config(), &callFlags{}, reply) },
			Dir:  filepath.Join(c.State(), "link"), Draining: s.server.Draining, Stop: s.unlink, Log: s.log,
		})
		return func() {
			s.link.Store(l)
			go func() {
				defer close(s.linked)
				l.Run(s.ctx)
			}()
		}, err
	case p != nil && p.Identity != l.Identity:
		// What runs has its id from that of the link, and is found by it after a crash.
		return nil, fixed("controlPlane.identity", l.Identity, p.Identity)
	case reflect.DeepEqual(old.ControlPlane, p):
		return func() {}, nil
	}
	return l.Change(linkSettings(c))
}

// linkFigures are those of the link, if there is one.
func (s *serving) linkFigures() link.Figures {
	if l := s.link.Load(); l != nil {
		return l.Figures()
	}
	return link.Figures{}
}

// stopLink has the link take nothing new. The function it returns waits until what is
// under way has been answered, or ctx has ended: the next service answers the rest.
func (s *serving) stopLink(ctx context.Context) (wait func()) {
	if s.link.Load() == nil {
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

// fixed is why a config cannot be put into force while this process serves.
func fixed(key, was, is string) error {
	return engine.Refused("bad_config", "cannot change %s from %q to %q while serving", key, was, is).
		WithFix("restart the service: runs go on meanwhile")
}
