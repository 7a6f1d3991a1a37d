package engine

import (
	"context"
	"time"

	"github.com/direct-oci/engine/engine/journal"
)

// Over returns the ids of the runs that were over before a time, for those who delete old
// records: a run is over once it has a result and nothing of it is left on the host. Sessions
// are left out, whose records whoever named them removes. When ctx ends it returns those
// found by then, and an error.
func (h Host) Over(ctx context.Context, before time.Time) ([]string, error) {
	h = h.withDirs()
	all, err := journal.List(h.StateDir)
	if err != nil {
		return nil, Failed("no_record", "%w", err)
	}
	ids := []string{}
	for _, id := range all {
		if ctx.Err() != nil {
			return ids, Failed("timeout", "cannot look at all records: %w", ctx.Err())
		}
		if h.wasOver(id, before) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// wasOver is Over for one run. What cannot be read is left to people.
func (h Host) wasOver(id string, before time.Time) bool {
	if since, over := h.over(id); !over || !since.Before(before) {
		return false
	}
	run, err := journal.Open(h.StateDir, id)
	if err != nil {
		return false
	}
	var req Request
	_, err = run.Read(journal.Intent, &req)
	return err == nil && req.Session == nil
}
