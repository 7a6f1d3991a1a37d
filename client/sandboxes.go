package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/direct-oci/engine/client/wire"
)

// CreateSandbox creates a sandbox, or adopts the one that its owner has under this name,
// and returns once it answers. It may be repeated.
func (c *Client) CreateSandbox(ctx context.Context, ask wire.SandboxRequest) (wire.Sandbox, error) {
	one, _, err := c.CreateOrAdopt(ctx, ask)
	return one, err
}

// CreateOrAdopt is CreateSandbox that also says whether the sandbox was there already. One
// whose creation was repeated, since its first answer was lost, was.
func (c *Client) CreateOrAdopt(ctx context.Context, create wire.SandboxRequest) (one wire.Sandbox, adopted bool, err error) {
	body, err := encode(create)
	if err != nil {
		return one, false, err
	}
	status := 0
	one, err = ask[wire.Sandbox](ctx, c, request{method: http.MethodPost, path: path("sandboxes"), body: body, status: &status})
	return one, err == nil && status == http.StatusOK, err
}

// Sandbox returns one sandbox, by its name or id.
func (c *Client) Sandbox(ctx context.Context, id string) (wire.Sandbox, error) {
	return get[wire.Sandbox](ctx, c, path("sandboxes", id), nil)
}

// SandboxFilter chooses sandboxes. The zero value is all.
type SandboxFilter struct {
	Owner  string
	Labels map[string]string // all of them
	States []string          // one of them
}

func (f SandboxFilter) query() url.Values {
	query := url.Values{}
	if f.Owner != "" {
		query.Set("owner", f.Owner)
	}
	for k, v := range f.Labels {
		query.Add("label", k+"="+v)
	}
	for _, s := range f.States {
		query.Add("state", s)
	}
	return query
}

// Sandboxes lists sandboxes, the newest first.
func (c *Client) Sandboxes(ctx context.Context, f SandboxFilter) (wire.SandboxList, error) {
	return get[wire.SandboxList](ctx, c, path("sandboxes"), f.query())
}

// RemoveSandbox tears one down. One that is gone is a success.
func (c *Client) RemoveSandbox(ctx context.Context, id string) error {
	return c.do(ctx, request{method: http.MethodDelete, path: path("sandboxes", id)}, nil)
}

// RemoveSandboxes tears down all that the filter chooses, and says how many there were.
func (c *Client) RemoveSandboxes(ctx context.Context, f SandboxFilter) (wire.Removed, error) {
	return ask[wire.Removed](ctx, c, request{method: http.MethodDelete, path: path("sandboxes"), query: f.query()})
}

// Liveness says whether a sandbox lives, when nothing is heard of it.
func (c *Client) Liveness(ctx context.Context, id string) (wire.Liveness, error) {
	return get[wire.Liveness](ctx, c, path("sandboxes", id, "liveness"), nil)
}

// RenewSandbox gives a sandbox a time to live from now on; zero is the one it was created
// with.
func (c *Client) RenewSandbox(ctx context.Context, id string, ttl time.Duration) (wire.Renewed, error) {
	return put[wire.Renewed](ctx, c, http.MethodPost, path("sandboxes", id, "renew"), wire.RenewRequest{TTLSeconds: ttl.Seconds()})
}

// PauseSandbox stops every process of a sandbox where it stands.
func (c *Client) PauseSandbox(ctx context.Context, id string) (wire.Sandbox, error) {
	return ask[wire.Sandbox](ctx, c, request{method: http.MethodPost, path: path("sandboxes", id, "pause")})
}

// ResumeSandbox lets them go on.
func (c *Client) ResumeSandbox(ctx context.Context, id string) (wire.Sandbox, error) {
	return ask[wire.Sandbox](ctx, c, request{method: http.MethodPost, path: path("sandboxes", id, "resume")})
}

// SandboxStats says what a sandbox used until now, and uses now.
func (c *Client) SandboxStats(ctx context.Context, id string) (wire.Stats, error) {
	return get[wire.Stats](ctx, c, path("sandboxes", id, "stats"), nil)
}

// FollowStats yields that every second until the sandbox ends, or ctx.
func (c *Client) FollowStats(ctx context.Context, id string) iter.Seq2[wire.Stats, error] {
	return follow[wire.Stats](ctx, c, path("sandboxes", id, "stats"), "stats", "")
}

// Estimate says what size files ask for.
func (c *Client) Estimate(ctx context.Context, inputs []wire.InputFile) (wire.Estimate, error) {
	return put[wire.Estimate](ctx, c, http.MethodPost, path("estimate"), wire.EstimateRequest{Inputs: inputs})
}

// StartExec starts a program, or joins the one that has its id, and returns once it runs.
// Without an id it chooses one, so that a start whose answer is lost can be repeated.
func (c *Client) StartExec(ctx context.Context, id string, ask wire.ExecRequest) (wire.Exec, error) {
	if ask.ID == "" {
		ask.ID = NewRunID()
	}
	return put[wire.Exec](ctx, c, http.MethodPost, path("sandboxes", id, "execs"), ask)
}

// Execs lists the programs of a sandbox.
func (c *Client) Execs(ctx context.Context, id string) (wire.ExecList, error) {
	return get[wire.ExecList](ctx, c, path("sandboxes", id, "execs"), nil)
}

// Exec returns one of them.
func (c *Client) Exec(ctx context.Context, id, exec string) (wire.Exec, error) {
	return get[wire.Exec](ctx, c, path("sandboxes", id, "execs", exec), nil)
}

// WaitExec returns a program once it has ended.
func (c *Client) WaitExec(ctx context.Context, id, exec string) (wire.Exec, error) {
	for {
		e, err := get[wire.Exec](ctx, c, path("sandboxes", id, "execs", exec, "wait"), nil)
		if err != nil || e.Result != nil {
			return e, err
		}
		select {
		case <-ctx.Done():
			return e, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ExecEvents returns what a program wrote, from a cursor on: "", or ExecEvents.Next.
func (c *Client) ExecEvents(ctx context.Context, id, exec, cursor string) (wire.ExecEvents, error) {
	query := url.Values{}
	if cursor != "" {
		query.Set("cursor", cursor)
	}
	return get[wire.ExecEvents](ctx, c, path("sandboxes", id, "execs", exec, "events"), query)
}

// FollowExec yields what a program writes and its exit, from a cursor on, across broken
// connections and restarts of the service.
func (c *Client) FollowExec(ctx context.Context, id, exec, cursor string) iter.Seq2[wire.ExecEvent, error] {
	return follow[wire.ExecEvent](ctx, c, path("sandboxes", id, "execs", exec, "events"), "exec", cursor)
}

// SignalExec sends a signal, "SIGTERM", to a program's process group.
func (c *Client) SignalExec(ctx context.Context, id, exec, signal string) error {
	body, err := encode(wire.SignalRequest{Signal: signal})
	if err != nil {
		return err
	}
	return c.do(ctx, request{method: http.MethodPost, path: path("sandboxes", id, "execs", exec, "signal"), body: body, once: true}, nil)
}

// ResizeExec gives a program's terminal another size.
func (c *Client) ResizeExec(ctx context.Context, id, exec string, size wire.WindowSize) error {
	_, err := put[wire.Exec](ctx, c, http.MethodPost, path("sandboxes", id, "execs", exec, "resize"), size)
	return err
}

func boolText(b bool) string { return strconv.FormatBool(b) }
