package client

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/direct-oci/engine/client/wire"
)

// NewRunID is a random id of a run.
func NewRunID() string {
	const letters = "abcdefghijklmnopqrstuvwxyz234567"
	b := make([]byte, 16)
	rand.Read(b)
	for i := range b {
		b[i] = letters[b[i]%32]
	}
	return string(b)
}

// StartRun starts a run, or joins the one that has its id. Without an id it chooses one,
// so that a start whose answer is lost can be repeated.
func (c *Client) StartRun(ctx context.Context, ask wire.RunRequest) (wire.Run, error) {
	if ask.ID == "" {
		ask.ID = NewRunID()
	}
	return put[wire.Run](ctx, c, http.MethodPost, path("runs"), ask)
}

// Run returns one run, with its output once it has ended.
func (c *Client) Run(ctx context.Context, id string) (wire.Run, error) {
	return get[wire.Run](ctx, c, path("runs", id), nil)
}

// RunFilter says which runs a list has. The zero value is all.
type RunFilter struct {
	State string
	Label string // KEY=VALUE
	After string // RunList.Next of the page before
	Limit int    // of a page; 0: the service's default
}

// Runs returns a page of runs, the newest first.
func (c *Client) Runs(ctx context.Context, f RunFilter) (wire.RunList, error) {
	query := url.Values{}
	for name, value := range map[string]string{"state": f.State, "label": f.Label, "after": f.After} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if f.Limit > 0 {
		query.Set("limit", strconv.Itoa(f.Limit))
	}
	return get[wire.RunList](ctx, c, path("runs"), query)
}

// WaitRun returns the run once it has ended.
func (c *Client) WaitRun(ctx context.Context, id string) (wire.Run, error) {
	for {
		run, err := get[wire.Run](ctx, c, path("runs", id, "wait"), nil)
		if err != nil || run.Result != nil {
			return run, err
		}
		// The time was over, or the service is about to stop.
		select {
		case <-ctx.Done():
			return run, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// KillRun ends a run, with reason cancelled.
func (c *Client) KillRun(ctx context.Context, id string) (wire.Run, error) {
	return ask[wire.Run](ctx, c, request{method: http.MethodPost, path: path("runs", id, "kill")})
}

// DeleteRun deletes what is on record of a run that has ended. One that is not there any
// more is no error.
func (c *Client) DeleteRun(ctx context.Context, id string) error {
	err := c.do(ctx, request{method: http.MethodDelete, path: path("runs", id)}, nil)
	if IsKind(err, "not_found") {
		return nil
	}
	return err
}

// RunOutput returns what a run wrote, from an offset on: 0, or Output.Next.
func (c *Client) RunOutput(ctx context.Context, id string, offset int64) (wire.Output, error) {
	return get[wire.Output](ctx, c, path("runs", id, "logs"), url.Values{"offset": {strconv.FormatInt(offset, 10)}})
}

// FollowRun yields what a run writes, from an offset on until its end, across broken
// connections and restarts of the service. An error is the last thing that it yields.
func (c *Client) FollowRun(ctx context.Context, id string, offset int64) iter.Seq2[wire.OutputRecord, error] {
	return follow[wire.OutputRecord](ctx, c, path("runs", id, "logs"), "output", strconv.FormatInt(offset, 10))
}

// errStop ends a stream because its reader has enough.
var errStop = errors.New("enough")
