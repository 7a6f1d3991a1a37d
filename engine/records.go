package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/direct-oci/engine/engine/journal"
)

// State is how far a run has come. It only moves forward.
//
//	creating -> created -> running -> stopped -> removed
//	    |          |                     ^
//	    +----------+---------------------+
//
// The first four are the runtime-spec's; removed means that nothing of the sandbox
// is left on the host but the record.
type State string

// The states.
const (
	Creating State = "creating"
	Created  State = "created"
	Running  State = "running"
	Stopped  State = "stopped"
	Removed  State = "removed"
)

// stateOf is the state that the furthest record on disk stands for.
var stateOf = map[string]State{
	"":              Creating,
	journal.Intent:  Creating,
	journal.Created: Created,
	journal.Started: Running,
	journal.Exit:    Stopped,
	journal.Cleaned: Removed,
}

// Record is what is known of one run.
type Record struct {
	ID       string     `json:"id"`
	State    State      `json:"state"`
	Alive    bool       `json:"alive"` // a process watches over it
	Created  time.Time  `json:"created"`
	Started  *time.Time `json:"started"`
	Deadline *time.Time `json:"deadline"` // of a session that is ready; nil for every other run
	Request  Request    `json:"request"`
	Result   *Result    `json:"result"`   // nil until it has ended
	Problems []string   `json:"problems"` // records that cannot be read, and what is no record

	newer   bool // some were written by a later version of the engine
	unbegun bool // nothing is on record but the id, so there never was a sandbox
}

// reason is why the run ended, in a word, for messages.
func (r Record) reason() string {
	switch {
	case r.Result == nil:
		return string(r.State)
	case r.Result.Reason == nil:
		return "refused"
	default:
		return string(*r.Result.Reason)
	}
}

// List returns all runs on record, the newest first, without their output. A state
// directory that is not there has no runs.
func (h Host) List() ([]Record, error) {
	records, err := collect(h.All())
	for i := range records {
		records[i].noteStrangers(h.withDirs())
	}
	return records, err
}

// Live is List of those runs alone that somebody watches over: of a host with many
// records it reads few.
func (h Host) Live() ([]Record, error) {
	h = h.withDirs()
	return collect(h.each(func(id string) bool {
		watched, err := journal.Alive(h.StateDir, id)
		return watched || err != nil
	}, func(r Record) bool { return r.Alive }))
}

// All is List one by one: who lives long does not want all of them in memory.
func (h Host) All() iter.Seq2[Record, error] {
	return h.withDirs().each(func(string) bool { return true }, func(Record) bool { return true })
}

func collect(runs iter.Seq2[Record, error]) ([]Record, error) {
	records := []Record{}
	for r, err := range runs {
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}

// each gives those runs, the newest first, that are wanted before they are read and after.
func (h Host) each(look func(id string) bool, want func(Record) bool) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		ids, err := journal.List(h.StateDir)
		if err != nil {
			yield(Record{}, Failed("no_record", "%w", err))
			return
		}
		ids = slices.DeleteFunc(ids, func(id string) bool { return !look(id) })
		created := make(map[string]time.Time, len(ids))
		for _, id := range ids {
			created[id] = h.createdAt(id)
		}
		slices.SortStableFunc(ids, func(a, b string) int { return created[b].Compare(created[a]) })
		for _, id := range ids {
			r, err := h.load(id)
			if errors.Is(err, fs.ErrNotExist) || err == nil && !want(r) {
				continue // removed or ended since
			}
			if err != nil {
				err = Failed("no_record", "%w", err)
			}
			if r.Created.IsZero() {
				r.Created = created[id]
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// createdAt is when a run was begun, as far as that is known.
func (h Host) createdAt(id string) time.Time {
	if run, err := journal.Open(h.StateDir, id); err == nil {
		if header, err := run.Read(journal.Intent, nil); err == nil {
			return header.Time
		}
	}
	if info, err := os.Lstat(journal.RunDir(h.StateDir, id)); err == nil {
		return info.ModTime()
	}
	return time.Time{}
}

// Load returns one run, without its output. A prefix of its id is enough where it
// fits one run alone.
func (h Host) Load(prefix string) (Record, error) {
	h = h.withDirs()
	id, err := h.find(prefix)
	if err != nil {
		return Record{}, err
	}
	r, err := h.load(id)
	if err != nil {
		return Record{}, Failed("no_record", "%w", err)
	}
	r.noteStrangers(h)
	return r, nil
}

// noteStrangers adds to the problems what lies among the records and is none of them.
func (r *Record) noteStrangers(h Host) {
	run, err := journal.Open(h.StateDir, r.ID)
	if err != nil {
		return // removed since
	}
	names, _ := run.Strangers()
	for _, name := range names {
		r.Problems = append(r.Problems, fmt.Sprintf("cannot tell what file=%q of run %s is for", name, r.ID))
	}
}

// FillOutput adds to a result what is on record of the output, which may be large.
// A record that cannot be read is said in the result, which stands otherwise.
func (h Host) FillOutput(r *Result) { h.FillOutputTo(r, math.MaxInt64) }

// FillOutputTo is FillOutput with at most most bytes of each stream; where that is less
// than there is, the result says that it is truncated.
func (h Host) FillOutputTo(r *Result, most int64) {
	counted := r.Reason == nil || *r.Reason != ReasonLost && *r.Reason != ReasonInterrupted
	if counted && r.StdoutBytes+r.StderrBytes == 0 {
		return // there was none, and a record of none need not have reached the disk
	}
	out, err := journal.ReadOutput(h.OutputPath(r.ID), most)
	r.Stdout, r.Stderr = out.Stdout, out.Stderr
	r.StdoutBytes, r.StderrBytes = out.Totals[0].Written, out.Totals[1].Written
	r.StdoutTruncated, r.StderrTruncated = out.Totals[0].Truncated() || out.Cut[0], out.Totals[1].Truncated() || out.Cut[1]
	if err != nil && r.Error == nil && r.Reason != nil {
		r.Error = Failed("no_output", "cannot read the output of run=%s: %w", r.ID, err)
	}
}

// OutputPath is where the output of the run is on record, for journal.OpenOutput.
func (h Host) OutputPath(id string) string {
	return journal.OutputPath(h.withDirs().StateDir, id)
}

func (h Host) find(prefix string) (string, error) {
	if journal.ValidID(prefix) {
		if _, err := journal.Open(h.StateDir, prefix); err == nil {
			return prefix, nil
		}
		return "", notFound(prefix)
	}
	if prefix == "" {
		return "", Refused("bad_id", "cannot find a run: its id is empty")
	}
	ids, err := journal.List(h.StateDir)
	if err != nil {
		return "", Failed("no_record", "%w", err)
	}
	found := slices.DeleteFunc(ids, func(id string) bool { return !strings.HasPrefix(id, prefix) })
	switch len(found) {
	case 0:
		return "", notFound(prefix)
	case 1:
		return found[0], nil
	default:
		return "", Refused("bad_id", "cannot choose between %d runs that start with id=%s", len(found), prefix).WithFix("give more of the id")
	}
}

func notFound(id string) *Error {
	return Refused("not_found", "cannot find run=%s: there is none on record", id).WithFix("list the runs with engine ps")
}

// Alive says whether somebody watches over the run, which is cheaper than Load. One that
// is not there is not alive.
func (h Host) Alive(id string) (bool, error) {
	alive, err := journal.Alive(h.withDirs().StateDir, id)
	if err != nil {
		return false, Failed("no_record", "%w", err)
	}
	return alive, nil
}

func (h Host) load(id string) (Record, error) {
	run, err := journal.Open(h.StateDir, id)
	if err != nil {
		return Record{}, err
	}
	// Asked before the records are read: a run seen as dead has written its last.
	alive, err := journal.Alive(h.StateDir, id)
	if err != nil {
		return Record{}, err
	}
	last, problems := run.Last()
	r := Record{ID: id, State: stateOf[last], Alive: alive, Problems: []string{}}
	for _, p := range problems {
		r.Problems = append(r.Problems, p.Error())
		var bad *journal.RecordError
		r.newer = r.newer || errors.As(p, &bad) && bad.Newer
	}
	r.unbegun = last == "" && len(problems) == 0
	if header, err := run.Read(journal.Intent, &r.Request); err == nil {
		r.Created = header.Time
	}
	if header, err := run.Read(journal.Started, nil); err == nil {
		r.Started = &header.Time
	}
	if r.Request.Session != nil {
		var d deadlineRecord
		if _, err := run.Read(journal.Deadline, &d); err == nil {
			r.Deadline = &d.Deadline
		}
	}
	var result Result
	if _, err := run.Read(journal.Exit, &result); err == nil {
		r.Result = &result
	}
	return r, nil
}

// awaitResult returns when the result of the run is on record.
func (h Host) awaitResult(ctx context.Context, id string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := h.load(id)
		if err != nil {
			return Failed("no_record", "%w", err)
		}
		if r.Result != nil {
			return nil
		}
		if !r.Alive {
			return h.gcOne(ctx, id)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return Failed("timeout", "cannot wait for run=%s: %w", id, ctx.Err())
		}
	}
}

// Await returns the record of the run once it has ended.
func (h Host) Await(ctx context.Context, prefix string) (Record, error) {
	h = h.withDirs()
	id, err := h.find(prefix)
	if err != nil {
		return Record{}, err
	}
	if err := h.awaitResult(ctx, id); err != nil {
		return Record{}, err
	}
	rec, err := h.Load(id)
	if err == nil && rec.Result == nil {
		err = noResult(rec)
	}
	return rec, err
}

// noResult explains a run that is over and has no result to show.
func noResult(r Record) *Error {
	why := "none is on record"
	if len(r.Problems) > 0 {
		why = strings.Join(r.Problems, "; ")
	}
	return Failed("lost", "cannot read the result of run=%s: %s", r.ID, why)
}

// Remove deletes the record of a run that has ended, output included.
func (h Host) Remove(prefix string) error {
	h = h.withDirs()
	id, err := h.find(prefix)
	if err != nil {
		return err
	}
	r, err := h.load(id)
	if err != nil {
		return Failed("no_record", "%w", err)
	}
	if r.Alive {
		return Refused("running", "cannot remove run=%s: it is alive", id).WithFix("end it first with engine kill " + id)
	}
	if r.State != Removed {
		// Somebody has to clean up behind it before what it used is forgotten.
		if err := h.gcOne(context.Background(), id); err != nil {
			return err
		}
	}
	err = journal.Remove(h.StateDir, id)
	switch {
	case errors.Is(err, journal.ErrAlive):
		return Refused("running", "cannot remove run=%s: it is alive", id).WithFix("end it first with engine kill " + id)
	case err != nil:
		return Failed("no_record", "%w", err)
	}
	return nil
}
