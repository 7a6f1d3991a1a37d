package engine

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine/journal"
)

// AwaitReady returns the record of the session once programs can be started in it. If it
// ends before, or has ended, the error says why.
func (h Host) AwaitReady(ctx context.Context, prefix string) (Record, error) {
	h = h.withDirs()
	id, err := h.find(prefix)
	if err != nil {
		return Record{}, err
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := h.load(id)
		switch {
		case err != nil:
			return Record{}, Failed("no_record", "%w", err)
		case !r.Created.IsZero() && r.Request.Session == nil:
			return Record{}, noSession(id)
		case r.Result != nil && r.Result.Error != nil:
			return r, r.Result.Error
		case r.Result != nil:
			return r, sessionEnded(id, r)
		case r.Alive && r.State == Running:
			return r, nil
		case !r.Alive:
			if err := h.gcOne(ctx, id); err != nil {
				return Record{}, err
			}
			continue
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return Record{}, Failed("timeout", "cannot wait for session=%s: %w", id, ctx.Err())
		}
	}
}

func noSession(id string) *Error {
	return Refused("bad_session", "cannot use run=%s as a session: it has a command of its own", id)
}

func sessionEnded(id string, r Record) *Error {
	err := Refused("not_running", "cannot use session=%s: it has ended (%s)", id, r.reason())
	if r.reason() == string(ReasonOOM) {
		return err.WithFix("give it more memory; under runsc some 20 MB of it are gVisor's own")
	}
	return err.WithFix("start another")
}

// Execs are the execs of a session, in the order in which they went on record. Of those
// that have ended the oldest may be gone.
func (h Host) Execs(prefix string) ([]ExecRecord, error) {
	h = h.withDirs()
	id, err := h.find(prefix)
	if err != nil {
		return nil, err
	}
	names, err := h.ExecIDs(id)
	if err != nil {
		return nil, err
	}
	list := make([]ExecRecord, 0, len(names))
	for _, name := range names {
		e, err := h.loadExec(id, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since, or never begun
		}
		if err != nil {
			return nil, Failed("no_record", "%w", err)
		}
		list = append(list, e)
	}
	slices.SortStableFunc(list, func(a, b ExecRecord) int { return a.Started.Compare(b.Started) })
	return list, nil
}

// ExecIDs are the ids of all that Execs would return, in no order, and perhaps of some that
// never began.
func (h Host) ExecIDs(prefix string) ([]string, error) {
	h = h.withDirs()
	id, err := h.find(prefix)
	if err != nil {
		return nil, err
	}
	names, err := journal.Execs(h.StateDir, id)
	if err != nil {
		return nil, Failed("no_record", "%w", err)
	}
	return names, nil
}

// LoadExec returns one exec of a session.
func (h Host) LoadExec(prefix, exec string) (ExecRecord, error) {
	h = h.withDirs()
	id, err := h.find(prefix)
	if err != nil {
		return ExecRecord{}, err
	}
	e, err := h.loadExec(id, exec)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, journal.ErrBadID):
		return ExecRecord{}, execNotFound(id, exec)
	case err != nil:
		return ExecRecord{}, Failed("no_record", "%w", err)
	}
	return e, nil
}

// loadExec reads one exec. One that has no result and whose session has no monitor any
// more is lost with it.
func (h Host) loadExec(id, exec string) (ExecRecord, error) {
	record, err := journal.OpenExec(h.StateDir, id, exec)
	if err != nil {
		return ExecRecord{}, err
	}
	// Asked before the records are read: a session seen as dead has written its last.
	alive, err := journal.Alive(h.StateDir, id)
	if err != nil {
		return ExecRecord{}, err
	}
	e := ExecRecord{ID: exec}
	header, err := record.Read(journal.Intent, &e.Exec)
	var torn *journal.RecordError
	if errors.As(err, &torn) && !torn.Newer {
		err = errors.Join(fs.ErrNotExist, err) // it never began
	}
	if err != nil {
		return ExecRecord{}, err
	}
	e.Started = header.Time
	var result ExecResult
	if _, err := record.Read(journal.Exit, &result); err == nil {
		e.Result = &result
	} else if !alive {
		e.Result = h.lostExec(id, record)
	}
	return e, nil
}

// lostExec is the result of an exec that nobody could record.
func (h Host) lostExec(id string, record *journal.ExecRecord) *ExecResult {
	result := &ExecResult{Reason: ReasonLost}
	if r, err := h.load(id); err == nil && r.Result != nil && r.Result.Reason != nil && *r.Result.Reason == ReasonInterrupted {
		result.Reason = ReasonInterrupted
	}
	// What is on record of its output is told; more cannot be known.
	if out, err := journal.ReadOutput(record.OutputPath(), 0); err == nil {
		result.StdoutBytes, result.StderrBytes = out.Totals[0].Written, out.Totals[1].Written
		result.StdoutTruncated, result.StderrTruncated = out.Totals[0].Truncated(), out.Totals[1].Truncated()
	}
	return result
}

// ExecOutputPath is where the output of an exec is on record, for journal.OpenOutput:
// both streams in one order. It may be read while it is written.
func (h Host) ExecOutputPath(id, exec string) string {
	return journal.ExecOutputPath(h.withDirs().StateDir, id, exec)
}

// Pause freezes all processes of a session; it holds their memory and goes on being
// timed, and no program can be started. Idempotent.
func (h Host) Pause(ctx context.Context, id string) error {
	_, err := h.ask(ctx, id, sessionRequest{Op: opPause})
	return err
}

// Resume lets a session go on that was paused. Idempotent.
func (h Host) Resume(ctx context.Context, id string) error {
	_, err := h.ask(ctx, id, sessionRequest{Op: opResume})
	return err
}

// Renew lets a session live for ttl from now, whether that is longer than before or
// shorter, and returns its new deadline, which is on disk then.
func (h Host) Renew(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
	if ttl%time.Millisecond != 0 {
		ttl = ttl.Truncate(time.Millisecond) + time.Millisecond
	}
	e, err := h.ask(ctx, id, sessionRequest{Op: opRenew, TTLMs: ttl.Milliseconds()})
	if err != nil {
		return time.Time{}, err
	}
	if e.Deadline == nil {
		return time.Time{}, Failed("no_session", "cannot renew session=%s: its monitor does not tell the deadline", id)
	}
	return *e.Deadline, nil
}

// SignalExec sends a signal to the process group of an exec.
func (h Host) SignalExec(ctx context.Context, id, exec string, signal int) error {
	_, err := h.ask(ctx, id, sessionRequest{Op: opSignal, ID: exec, Signal: signal})
	return err
}

// LiveUsage is what a run that is alive has used so far, and uses now.
type LiveUsage struct {
	Usage
	MemoryBytes *int64 `json:"memoryBytes"` // now
	Pids        *int64 `json:"pids"`        // processes and threads, now
	Paused      bool   `json:"paused"`
}

// Cgroup is the directory that the cgroups of all runs are in.
func (h Host) Cgroup() (string, error) {
	hierarchy, err := cgroups.Open(h.CgroupRoot)
	if err != nil {
		return "", Failed("no_cgroup", "%w", err)
	}
	return hierarchy.Root, nil
}

// Usage reads the figures of a run that is alive. It is no call that keeps a session
// from being idle.
func (h Host) Usage(prefix string) (LiveUsage, error) {
	h = h.withDirs()
	id, err := h.find(prefix)
	if err != nil {
		return LiveUsage{}, err
	}
	hierarchy, err := cgroups.Open(h.CgroupRoot)
	if err != nil {
		return LiveUsage{}, Failed("no_cgroup", "%w", err)
	}
	group := h.groupOf(hierarchy, id)
	u, err := group.ReadUsage()
	if errors.Is(err, fs.ErrNotExist) {
		return LiveUsage{}, Refused("not_running", "cannot read the usage of run=%s: it has ended", id)
	}
	now, errNow := group.ReadCurrent()
	if err = errors.Join(err, errNow); err != nil {
		return LiveUsage{}, Failed("no_usage", "cannot read the usage of run=%s: %w", id, err)
	}
	live := LiveUsage{Usage: actuals(u), MemoryBytes: now.Memory, Pids: now.Pids, Paused: now.Frozen}
	r, err := h.load(id)
	if err != nil {
		return LiveUsage{}, Failed("no_record", "%w", err)
	}
	if t := h.lastTraffic(r.Request); t != nil {
		live.RxBytes, live.TxBytes = &t.Rx, &t.Tx
	}
	return live, nil
}
