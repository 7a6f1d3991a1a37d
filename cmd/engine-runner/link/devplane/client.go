package devplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
)

// Client talks to the API of a plane.
type Client struct {
	url, token string
	http       *http.Client
}

// Dial makes a client of the plane whose directory is dir.
func Dial(dir string) (*Client, error) {
	address, err := os.ReadFile(filepath.Join(dir, URLFile))
	if err != nil {
		return nil, engine.Refused("no_plane", "cannot find a control plane: %w", err).WithFix("start one with engine controlplane dev --dir " + dir)
	}
	token, err := os.ReadFile(filepath.Join(dir, TokenFile))
	if err != nil {
		return nil, engine.Refused("no_plane", "cannot read the control plane's token: %w", err)
	}
	roots := x509.NewCertPool()
	if ca, err := os.ReadFile(filepath.Join(dir, CAFile)); err == nil { // there is none without TLS
		roots.AppendCertsFromPEM(ca)
	}
	return &Client{strings.TrimSpace(string(address)), strings.TrimSpace(string(token)), &http.Client{
		Timeout:   2 * time.Minute,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}},
	}}, nil
}

// Runners lists the runners that were ever connected.
func (c *Client) Runners(ctx context.Context) (list []Runner, err error) {
	return list, c.do(ctx, "GET", "/v1/runners", nil, &list)
}

// Review asks a runner what a call would do.
func (c *Client) Review(ctx context.Context, ask Ask) (r wire.Review, err error) {
	return r, c.do(ctx, "POST", "/v1/reviews", ask, &r)
}

// Call asks for a call.
func (c *Client) Call(ctx context.Context, ask Ask) (s Snapshot, err error) {
	return s, c.do(ctx, "POST", "/v1/calls", ask, &s)
}

// Cancel asks for a call's end.
func (c *Client) Cancel(ctx context.Context, id string) (s Snapshot, err error) {
	return s, c.do(ctx, "POST", "/v1/calls/"+url.PathEscape(id)+"/cancel", nil, &s)
}

// Get shows a call with its lines from number from, and waits for some, or for its end,
// no longer than wait.
func (c *Client) Get(ctx context.Context, id string, from int64, wait time.Duration) (s Snapshot, err error) {
	path := fmt.Sprintf("/v1/calls/%s?from=%d&wait=%d", url.PathEscape(id), from, int(wait.Seconds()))
	return s, c.do(ctx, "GET", path, nil, &s)
}

// Follow waits for a call's end, and passes its lines on.
func (c *Client) Follow(ctx context.Context, id string, line func(string)) (Snapshot, error) {
	from := int64(1)
	for {
		s, err := c.Get(ctx, id, from, 30*time.Second)
		if err != nil {
			return s, err
		}
		for _, text := range s.Lines {
			line(text)
		}
		from = s.First + int64(len(s.Lines))
		if s.State == Answered || s.State == Refused {
			return s, nil
		}
	}
}

func (c *Client) do(ctx context.Context, method, path string, body, into any) error {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return engine.Refused("bad_arguments", "cannot write the question: %w", err)
		}
		content = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
	if err != nil {
		return engine.Refused("no_plane", "cannot ask the control plane: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	response, err := c.http.Do(request)
	if err != nil {
		return engine.Failed("no_plane", "cannot ask the control plane: %w", err).WithFix("start it with engine controlplane dev")
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, 2*wire.MaxMessage))
	if err != nil {
		return engine.Failed("no_plane", "cannot read the control plane's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		var refused struct {
			Error *engine.Error `json:"error"`
		}
		if err := json.Unmarshal(data, &refused); err != nil || refused.Error == nil {
			return engine.Failed("no_plane", "cannot use the control plane's answer: its HTTP status is %d", response.StatusCode)
		}
		return refused.Error
	}
	if err := json.Unmarshal(data, into); err != nil {
		return engine.Failed("no_plane", "cannot read the control plane's answer: %w", err)
	}
	return nil
}
