package config

import (
	"crypto/ed25519"
	"sync/atomic"

	"github.com/direct-oci/engine/capability"
)

// Live is the runner of a config that may change while calls are under way.
type Live struct {
	path        string // as for Load
	receipts    ed25519.PrivateKey
	credentials string
	now         atomic.Pointer[capability.Runner]
}

// NewLive reads the config for the first time.
func NewLive(path string, receipts ed25519.PrivateKey, credentials string) (*Live, error) {
	l := &Live{path: path, receipts: receipts, credentials: credentials}
	return l, l.Reload()
}

// Runner is the runner of the config that was read last. A call ends with the one it
// began with.
func (l *Live) Runner() *capability.Runner { return l.now.Load() }

// Reload reads the config again. One that is wrong changes nothing and is an *Error.
// Connections of the config before are closed once their last call has ended.
func (l *Live) Reload() error {
	c, err := Load(l.path)
	if err != nil {
		return err
	}
	if before := l.now.Swap(c.Runner(l.receipts, l.credentials)); before != nil {
		return before.Close()
	}
	return nil
}
