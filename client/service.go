package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"

	"github.com/direct-oci/engine/client/wire"
)

// Capabilities lists what may be asked for, in all projects or in one.
func (c *Client) Capabilities(ctx context.Context, project string) (wire.CapabilityList, error) {
	query := url.Values{}
	if project != "" {
		query.Set("project", project)
	}
	return get[wire.CapabilityList](ctx, c, path("capabilities"), query)
}

// Call does one thing of what may be asked for. progress, which may be nil, is told each
// line that it has to say. A call is sent once: when its answer is lost the audit log
// tells what came of it.
func (c *Client) Call(ctx context.Context, project, name string, call wire.Call, progress func(line string)) (wire.Reply, error) {
	var reply wire.Reply
	body, err := encode(call)
	if err != nil {
		return reply, err
	}
	r := request{method: http.MethodPost, path: path("projects", project, "capabilities", name, "call"), body: body, once: true}
	if progress == nil {
		err := c.do(ctx, r, &reply)
		return reply, err
	}
	r.header = http.Header{"Accept": {"text/event-stream"}}
	res, err := c.send(ctx, r)
	if err != nil {
		return reply, err
	}
	if res.StatusCode >= 400 {
		_, err := readAll(res)
		return reply, err
	}
	defer res.Body.Close()
	err = readEvents(res.Body, func(e event) error {
		switch e.name {
		case "progress":
			var p wire.Progress
			if err := json.Unmarshal([]byte(e.data), &p); err != nil {
				return badEvent(err)
			}
			progress(p.Line)
		case "reply":
			if err := json.Unmarshal([]byte(e.data), &reply); err != nil {
				return badEvent(err)
			}
			return errDone
		case "error":
			return failureOf(res, []byte(e.data))
		}
		return nil
	})
	switch {
	case errors.Is(err, errDone):
		return reply, nil
	case err == nil:
		err = io.ErrUnexpectedEOF
	}
	return reply, err
}

func badEvent(err error) *Error {
	return &Error{Class: wire.ClassEngine, Kind: "bad_answer", Message: "cannot understand an event: " + err.Error()}
}

// Images lists the images.
func (c *Client) Images(ctx context.Context) (wire.ImageList, error) {
	return get[wire.ImageList](ctx, c, path("images"), nil)
}

// Image returns one image.
func (c *Client) Image(ctx context.Context, name string) (wire.Image, error) {
	return get[wire.Image](ctx, c, path("images")+"/"+(&url.URL{Path: name}).EscapedPath(), nil)
}

// Draining says whether nothing new may start.
func (c *Client) Draining(ctx context.Context) (wire.Drain, error) {
	return get[wire.Drain](ctx, c, path("drain"), nil)
}

// SetDraining begins or ends to let nothing new start.
func (c *Client) SetDraining(ctx context.Context, on bool) (wire.Drain, error) {
	return put[wire.Drain](ctx, c, http.MethodPut, path("drain"), wire.DrainRequest{Draining: on})
}

// Collect collects what dead runs left.
func (c *Client) Collect(ctx context.Context, dryRun bool) (wire.GCReport, error) {
	return put[wire.GCReport](ctx, c, http.MethodPost, path("gc"), wire.GCRequest{DryRun: dryRun})
}

// Version says who answers, and as whom they see the caller.
func (c *Client) Version(ctx context.Context) (wire.VersionInfo, error) {
	return get[wire.VersionInfo](ctx, c, path("version"), nil)
}

// Health says whether a run could start now. What is not well is in the answer, not an
// error.
func (c *Client) Health(ctx context.Context) (wire.Health, error) {
	return c.health(ctx, "healthz")
}

// Ready says whether new work should be sent here.
func (c *Client) Ready(ctx context.Context) (wire.Health, error) {
	return c.health(ctx, "readyz")
}

func (c *Client) health(ctx context.Context, which string) (wire.Health, error) {
	var h wire.Health
	res, err := c.send(ctx, request{method: http.MethodGet, path: path(which)})
	if err != nil {
		return h, err
	}
	data, err := readAll(res)
	if res.StatusCode == http.StatusServiceUnavailable && json.Unmarshal(data, &h) == nil && len(h.Checks) > 0 {
		return h, nil
	}
	if err != nil {
		return h, err
	}
	err = json.Unmarshal(data, &h)
	return h, err
}

// Metrics returns the figures in Prometheus' form.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	return c.raw(ctx, path("metrics"))
}

// OpenAPI returns the API's description.
func (c *Client) OpenAPI(ctx context.Context) ([]byte, error) {
	return c.raw(ctx, path("openapi.json"))
}

func (c *Client) raw(ctx context.Context, path string) ([]byte, error) {
	res, err := c.send(ctx, request{method: http.MethodGet, path: path})
	if err != nil {
		return nil, err
	}
	return readAll(res)
}
