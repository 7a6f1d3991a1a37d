package api

import (
	"context"
	"sync"
	"time"

	"github.com/direct-oci/engine/engine"
)

// follower knows the runs that have not ended: those that this process has started, whose
// monitors tell it at once, and those that it has found, which it looks at. It holds
// nothing that they need.
type follower struct {
	host    engine.Host
	metrics *metrics

	mu      sync.Mutex
	started map[string]chan struct{} // closed at the end of a run
	found   map[string]bool
}

func newFollower(h engine.Host, m *metrics) *follower {
	return &follower{host: h, metrics: m, started: map[string]chan struct{}{}, found: map[string]bool{}}
}

// follow reaps the monitor of a run that this process has started, and notes what came
// of it.
func (f *follower) follow(run *engine.Run) {
	if run.Joined() {
		f.find(run.ID())
		return
	}
	ended := make(chan struct{})
	f.mu.Lock()
	f.started[run.ID()] = ended
	f.mu.Unlock()
	go func() {
		result, err := run.Wait()
		f.mu.Lock()
		delete(f.started, run.ID())
		f.mu.Unlock()
		close(ended)
		if err == nil {
			f.metrics.ended(result)
		}
	}()
}

// find adds a run that somebody else has started.
func (f *follower) find(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.started[id] == nil {
		f.found[id] = true
	}
}

// adopt finds all runs that go on.
func (f *follower) adopt() error {
	records, err := f.host.Live()
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Alive && r.Result == nil {
			f.find(r.ID)
		}
	}
	return nil
}

// live is how many runs are known not to have ended.
func (f *follower) live() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.started) + len(f.found)
}

// lookEvery is how often runs that were found are looked at.
const lookEvery = time.Second

// look notes the ends of runs that were found, until ctx ends.
func (f *follower) look(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		f.mu.Lock()
		ids := make([]string, 0, len(f.found))
		for id := range f.found {
			ids = append(ids, id)
		}
		f.mu.Unlock()
		for _, id := range ids {
			record, err := f.host.Load(id)
			if err == nil && record.Alive && record.Result == nil {
				continue
			}
			if err == nil && record.Result != nil {
				f.metrics.ended(*record.Result)
			}
			f.mu.Lock()
			delete(f.found, id)
			f.mu.Unlock()
		}
	}
}

// await returns the record of the run as it is when it has ended, or when ctx has. A run
// whose monitor is gone is brought to its end.
func (f *follower) await(ctx context.Context, record engine.Record) (engine.Record, error) {
	f.mu.Lock()
	ended := f.started[record.ID]
	f.mu.Unlock()
	pause := 5 * time.Millisecond
	for record.Result == nil {
		if ended == nil && !record.Alive {
			return f.host.Await(ctx, record.ID)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return record, nil
		case <-ended: // never, if another process has started it
			ended = nil
		case <-timer.C:
			if ended != nil {
				continue
			}
			pause = min(2*pause, 250*time.Millisecond)
		}
		timer.Stop()
		var err error
		if record, err = f.host.Load(record.ID); err != nil {
			return record, err
		}
	}
	return record, nil
}
