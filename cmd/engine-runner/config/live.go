package config

import (
	"context"
	"crypto/ed25519"
	"sync/atomic"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/engine"
)

// Live is a config that may change while calls are under way, and the runner of it.
type Live struct {
	read   func() (Config, error)
	accept func(Config) error
	means  Means
	now    atomic.Pointer[current]
}

type current struct {
	config Config
	runner *capability.Runner
}

// Means are what a runner works with that no config has.
type Means struct {
	Receipts    ed25519.PrivateKey
	Credentials string // systemd's directory, "" without one
	Admit       func(ctx context.Context, id, project string, room engine.Limits) (leave func(), err error)
}

// NewLive begins with a config that was read already. read reads it again. accept puts
// what else depends on it into force, or is why that cannot be.
func NewLive(c Config, read func() (Config, error), accept func(Config) error, means Means) *Live {
	l := &Live{read: read, accept: accept, means: means}
	l.now.Store(l.make(c))
	return l
}

func (l *Live) make(c Config) *current {
	r := c.Runner(l.means.Receipts, l.means.Credentials)
	r.Admit = l.means.Admit
	return &current{c, r}
}

// Config is the one that is in force.
func (l *Live) Config() Config { return l.now.Load().config }

// Runner is the runner of the config in force. A call ends with the one it began with.
func (l *Live) Runner() *capability.Runner { return l.now.Load().runner }

// Reload reads the config again. One that is wrong, or not accepted, changes nothing.
// Connections of the config before are closed once their last call has ended.
func (l *Live) Reload() error {
	c, err := l.read()
	if err != nil {
		return err
	}
	if err := l.accept(c); err != nil {
		return err
	}
	return l.now.Swap(l.make(c)).runner.Close()
}
