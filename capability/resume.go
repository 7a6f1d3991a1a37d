package capability

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/direct-oci/engine/capability/audit"
	"github.com/direct-oci/engine/engine"
)

// Resume answers a call that a runner which has died began under ask.ID. It never
// starts anything: what came of a sandbox is on the engine's record, and who agreed to
// it is in the audit log. The error is of kind interrupted where no more can be told
// than that the call is over.
func (r *Runner) Resume(ctx context.Context, ask Call) (Reply, error) {
	c, err := r.newCall(ask)
	if err != nil {
		return Reply{ID: c.id}, err
	}
	if err := c.note(audit.Entry{Event: "resume", Presented: map[string]any{"caller": c.Caller}}); err != nil {
		return Reply{ID: c.id}, err
	}
	reply, err := c.resume(ctx)
	return c.answer(reply, err)
}

func interrupted(c *call, why string) *engine.Error {
	return engine.Failed("interrupted", "cannot tell what came of call=%s: the runner was interrupted %s", c.id, why).
		WithFix("look for what it did, and ask again under another id")
}

func (c *call) resume(ctx context.Context) (Reply, error) {
	past, err := c.past()
	if err != nil {
		return Reply{}, err
	}
	p, err := c.prepare(ctx)
	if err != nil {
		return Reply{}, interrupted(c, "while it ran, and it can no longer be prepared: "+err.Error())
	}
	strong, err := p.Bound.Strong()
	if err != nil {
		return Reply{}, engine.Failed("internal", "internal error: %w", err)
	}
	switch {
	case strong != past.strong:
		return Reply{}, interrupted(c, "while it ran, and what it ran is no longer there to be compared with")
	case p.Resume == nil:
		return Reply{}, interrupted(c, "while it ran")
	}
	env, err := c.secrets(ctx, p) // to take them out of the output
	if err != nil {
		return Reply{}, err
	}
	out, runErr := p.Resume(ctx, c.complete(env))
	env.forget()
	return c.conclude(out, runErr, newReceipt(c, p, past.authorised, strong), past.began)
}

// past is what the audit log says of a call that began.
type past struct {
	authorised Authorised
	strong     string
	began      time.Time
}

// past reads the call's own lines. The error says why it never began.
func (c *call) past() (past, error) {
	entries, err := c.runner.Audit.Of(c.id)
	if err != nil {
		return past{}, engine.Failed("no_audit", "%w", err)
	}
	var p past
	resumed := false
	for _, e := range entries {
		switch e.Event {
		case "resume":
			resumed = true
		case "approval":
			err = reread(e.Authorised, &p.authorised)
		case "start":
			var start struct{ BoundDigest string }
			err = reread(e.Attempted, &start)
			p.strong, p.began = start.BoundDigest, e.Time
		case "refused":
			var why engine.Error
			if err = reread(e.Observed, &why); err == nil && p.strong == "" && !resumed {
				return past{}, &why
			}
		}
		if err != nil {
			return past{}, engine.Failed("no_audit", "cannot read the audit log's lines of call=%s: %w", c.id, err)
		}
	}
	if p.strong == "" {
		return past{}, interrupted(c, "before it began")
	}
	return p, nil
}

// reread makes of a part of an entry what it was when it was written.
func reread(from, to any) error {
	data, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(data, to)
	}
	if err != nil {
		return fmt.Errorf("it has an unexpected form: %w", err)
	}
	return nil
}
