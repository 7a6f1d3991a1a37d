package service

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/service/callback"
	"github.com/direct-oci/engine/service/outbox"
)

const (
	targetName   = "target.json"
	boxName      = "events.log"
	completeName = "complete"
	maxTarget    = 64 << 10

	// completeWithin is how long a teardown waits for the last events to be put into
	// the outbox. Whether they are taken is no matter of the teardown.
	completeWithin = 5 * time.Second
)

// callbacks is the directory with the events that are sent, a directory for each run.
type callbacks struct {
	dir string

	mu      *sync.Mutex
	sending map[string]bool // run ids whose events this Manager sends
}

func openCallbacks(stateDir string) (callbacks, error) {
	c := callbacks{filepath.Join(stateDir, "callbacks"), &sync.Mutex{}, map[string]bool{}}
	if err := os.Mkdir(c.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return c, engine.Failed("no_directory", "cannot make directory=%s: %w", c.dir, err)
	}
	if err := os.Chmod(c.dir, 0o700); err != nil {
		return c, engine.Failed("no_directory", "cannot set the mode of directory=%s: %w", c.dir, err)
	}
	return c, nil
}

func (c callbacks) path(id string) string { return filepath.Join(c.dir, id) }

// write puts a target on disk.
//
// SECURITY: the key of a sandbox's signatures is in one file that only root can read.
// Who has it can send events in the sandbox's name.
// Holds because: it is written here alone, with mode 0600 below directories of mode 0700, and into no record, log or error.
// Not covered: who reads the disk from outside. Checked by: TestCallbackSecretIsInOneFile.
func (c callbacks) write(t callback.Target) error {
	dir := c.path(t.Sandbox)
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		var data []byte
		if data, err = json.Marshal(t); err == nil {
			err = errors.Join(writeFile(dir, targetName, data), syncDir(c.dir))
		}
	}
	if err != nil {
		return engine.Failed("no_record", "cannot write the callback of run=%s: %w", t.Sandbox, err)
	}
	return nil
}

func (c callbacks) has(id string) bool {
	_, err := os.Lstat(filepath.Join(c.path(id), targetName))
	return err == nil
}

func (c callbacks) read(id string) (callback.Target, error) {
	var t callback.Target
	f, err := os.OpenFile(filepath.Join(c.path(id), targetName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return t, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxTarget))
	if err = errors.Join(err, f.Close()); err != nil {
		return t, err
	}
	return t, json.Unmarshal(data, &t)
}

func (c callbacks) remove(id string) error { return os.RemoveAll(c.path(id)) }

func (c callbacks) complete(id string) bool {
	_, err := os.Lstat(filepath.Join(c.path(id), completeName))
	return err == nil
}

// claim says whether this Manager may begin to send the events of a run.
func (c callbacks) claim(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sending[id] {
		return false
	}
	c.sending[id] = true
	return true
}

func (c callbacks) unclaim(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sending, id)
}

// send sees to it that the events of a sandbox are sent: by this Manager, unless another
// one does.
func (m *Manager) send(r record) {
	if !m.callbacks.has(r.ID) || !m.callbacks.claim(r.ID) {
		return
	}
	m.work.Go(func() {
		defer m.callbacks.unclaim(r.ID)
		err := m.sendAll(r.ID, &r)
		if err != nil && !errors.Is(err, outbox.ErrBusy) && m.ctx.Err() == nil {
			m.log.Error("events of a sandbox cannot be sent", "sandbox", r.Name, "id", r.ID, "err", err)
		}
	})
}

// sendLeftovers sends what torn down sandboxes left, and removes what is done with.
func (m *Manager) sendLeftovers() error {
	entries, err := os.ReadDir(m.callbacks.dir)
	if err != nil {
		return engine.Failed("no_record", "cannot list callbacks: %w", err)
	}
	for _, e := range entries {
		id := e.Name()
		if !journal.ValidID(id) {
			continue
		}
		// One that is not complete belongs to a sandbox on record, or to a creator that
		// is about to give up, or died.
		m.mu.Lock()
		_, onRecord := m.ids[id]
		m.mu.Unlock()
		info, err := e.Info()
		if onRecord || err != nil || !m.callbacks.complete(id) && time.Since(info.ModTime()) < time.Minute {
			continue
		}
		if !m.callbacks.claim(id) {
			continue
		}
		m.work.Go(func() {
			defer m.callbacks.unclaim(id)
			if err := m.sendAll(id, nil); err != nil && !errors.Is(err, outbox.ErrBusy) && m.ctx.Err() == nil {
				m.log.Error("events of a sandbox that is gone cannot be sent", "id", id, "err", err)
			}
		})
	}
	return nil
}

// Of one tenant's sandboxes that were torn down so much may wait to be sent. They count
// against no quota any more, and it is the tenant's own receiver that does not take them.
const (
	maxLeft      = 1000
	maxLeftBytes = 256 << 20
)

// roomForEvents refuses another sandbox with a callback to a tenant of whose earlier ones
// too much waits.
func (m *Manager) roomForEvents(r record) error {
	entries, err := os.ReadDir(m.callbacks.dir)
	if err != nil {
		return engine.Failed("no_record", "cannot list callbacks: %w", err)
	}
	count, size := 0, int64(0)
	for _, e := range entries {
		m.mu.Lock()
		_, onRecord := m.ids[e.Name()]
		m.mu.Unlock()
		if onRecord {
			continue
		}
		if t, err := m.callbacks.read(e.Name()); err != nil || t.Tenant != r.Tenant {
			continue // another's, or sent meanwhile
		}
		count++
		if info, err := os.Lstat(filepath.Join(m.callbacks.path(e.Name()), boxName)); err == nil {
			size += info.Size()
		}
	}
	if count < maxLeft && size < maxLeftBytes {
		return nil
	}
	return failure(engine.Refused("quota", "cannot create sandbox=%s with a callback: the events of %d torn down ones wait, %d bytes, and tenant=%s may have %d and %d waiting",
		r.Name, count, size, r.Tenant, maxLeft, int64(maxLeftBytes)).
		WithFix("have the receivers of the callbacks take what they are sent"), "create", r, "")
}

// sendAll feeds the outbox of a run from what is on record, and posts what is in it,
// until all was taken. r is nil for a run whose record is gone.
func (m *Manager) sendAll(id string, r *record) error {
	target, err := m.callbacks.read(id)
	if errors.Is(err, fs.ErrNotExist) && r == nil {
		return m.callbacks.remove(id)
	}
	if err != nil {
		return err
	}
	box, err := outbox.Open(filepath.Join(m.callbacks.path(id), boxName), m.config.Load().Callbacks.Capacity)
	if err != nil {
		return err
	}
	defer box.Close()
	fed := make(chan struct{})
	feeding := make(chan error, 1)
	go func() {
		defer close(fed)
		var err error
		if r != nil && !m.callbacks.complete(id) {
			err = newFeeder(m, *r, box).run(m.ctx)
		}
		feeding <- err
	}()
	err = m.sender.Deliver(m.ctx, target, box, fed, &narrator{m: m, id: id})
	if feedErr := <-feeding; err == nil {
		err = feedErr
	}
	if err != nil {
		return err
	}
	if m.callbacks.complete(id) || r == nil {
		return m.callbacks.remove(id)
	}
	return nil
}

// awaitComplete gives whoever feeds the outbox of a run a chance to put the last events
// into it, before what they are made from is removed.
func (m *Manager) awaitComplete(ctx context.Context, r record) {
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	for m.callbacks.has(r.ID) && !m.callbacks.complete(r.ID) {
		m.send(r)
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			m.log.Warn("last events of a sandbox may be missing", "sandbox", r.Name, "id", r.ID)
			return
		}
	}
}

// narrator tells Deliver about the events in an outbox.
type narrator struct {
	m      *Manager
	id     string
	failed bool
}

func (n *narrator) Dropped(count int) []byte {
	return encode(callbackEvent{Type: "dropped", Time: time.Now(), Events: count, Why: "nobody took them in time"})
}

// Report logs the first of a row of failures.
func (n *narrator) Report(err error) {
	n.m.log.Log(context.Background(), levelOf(n.failed), "callback failed", "id", n.id, "err", err)
	n.failed = true
}
