// Package client is for Go programs that use the service, over its Unix socket or over
// TLS. It links nothing of the engine, and runs wherever Go does.
//
// A failure that the service reports is an *Error, with its kind. What may be asked twice
// is asked again when the connection breaks, also across a restart of the service: reads,
// deletions, starts (the client chooses the id), and streams, which go on behind the last
// event that was seen, so that nothing is lost or comes twice.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/direct-oci/engine/client/wire"
)

// DefaultSocket is where the service listens unless its config says otherwise.
const DefaultSocket = "/run/engine/api.sock"

// DefaultPatience is how long a client goes on trying to reach a service that is not there.
const DefaultPatience = 30 * time.Second

// Client speaks to one service. It may be used by several goroutines.
type Client struct {
	// Patience bounds how long something is tried again while the service cannot be
	// reached. Zero is DefaultPatience, negative not at all.
	Patience time.Duration

	http  *http.Client
	base  string
	token string
}

// Unix makes a client of the service behind a Unix socket.
func Unix(socket string) *Client {
	return &Client{base: "http://engine", http: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     time.Minute,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
}

// TLS makes a client of the service at an address HOST:PORT, with a token, or with a
// certificate in config. A nil config trusts what the system does.
func TLS(address, token string, config *tls.Config) *Client {
	return &Client{base: "https://" + address, token: token, http: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     time.Minute,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: 10 * time.Second,
	}}}
}

// Close closes connections that nobody uses now.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Error is what the service refused, or could not do.
type Error struct {
	Class      string // wire.ClassRequest or wire.ClassEngine
	Kind       string // stable
	Message    string
	Fix        string // one imperative sentence; empty when no cure is known
	Status     int    // of HTTP
	Request    string // id of the request, as the service's log has it
	Violations []wire.Violation
	Sandbox    *wire.SandboxFailure // of a failure that concerns a sandbox
}

func (e *Error) Error() string {
	if e.Fix != "" {
		return e.Message + " (" + e.Fix + ")"
	}
	return e.Message
}

// IsKind says whether err is a failure of this kind that the service reported.
func IsKind(err error, kind string) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == kind
}

// request is one that may have to be sent again.
type request struct {
	method, path string
	query        url.Values
	header       http.Header
	body         []byte // nil: none
	once         bool   // it may not be sent again after the service has seen it
	status       *int   // where the answer's status goes; nil: nobody asks
}

// maxReply bounds an answer that is read as a whole.
const maxReply = 256 << 20

// do sends a request and reads the answer into out, which may be nil.
func (c *Client) do(ctx context.Context, r request, out any) error {
	var last error
	for range c.tries(ctx) {
		res, err := c.send(ctx, r)
		if err == nil {
			var data []byte
			if r.status != nil {
				*r.status = res.StatusCode
			}
			data, err = readAll(res)
			var e *Error
			if errors.As(err, &e) {
				return e
			}
			if err == nil && out != nil {
				if err = json.Unmarshal(data, out); err != nil {
					return fmt.Errorf("cannot read the answer to %s %s: %w", r.method, r.path, err)
				}
			}
		}
		if err == nil {
			return nil
		}
		last = fmt.Errorf("cannot %s %s: %w", r.method, r.path, err)
		if r.once && !neverSent(err) || ctx.Err() != nil {
			return last
		}
	}
	return last
}

// neverSent says that the service cannot have seen a request.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// tries yields until the client's patience is over, with pauses that grow.
func (c *Client) tries(ctx context.Context) func(func(int) bool) {
	patience := c.Patience
	if patience == 0 {
		patience = DefaultPatience
	}
	return func(yield func(int) bool) {
		end := time.Now().Add(patience)
		pause := 50 * time.Millisecond
		for n := 0; yield(n) && time.Now().Before(end); n++ {
			timer := time.NewTimer(pause/2 + rand.N(pause))
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
			pause = min(2*pause, 2*time.Second)
		}
	}
}

// send sends a request once. An answer that reports a failure is an *Error.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	var body io.Reader
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	return c.sendBody(ctx, r, body)
}

func (c *Client) sendBody(ctx context.Context, r request, body io.Reader) (*http.Response, error) {
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, err
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	return c.http.Do(req)
}

// readAll reads an answer as a whole.
func readAll(res *http.Response) ([]byte, error) {
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxReply+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxReply {
		return nil, &Error{Class: wire.ClassEngine, Kind: "bad_answer", Message: "cannot read an answer of this size", Status: res.StatusCode}
	}
	if res.StatusCode >= 400 {
		return data, failureOf(res, data)
	}
	return data, nil
}

// failureOf makes an error of an answer that reports one.
func failureOf(res *http.Response, data []byte) error {
	var f wire.Failure
	e := &Error{Status: res.StatusCode, Request: res.Header.Get("X-Request-Id")}
	if err := json.Unmarshal(data, &f); err != nil || f.Error.Kind == "" {
		e.Class, e.Kind = wire.ClassEngine, "bad_answer"
		e.Message = fmt.Sprintf("cannot understand an answer with status %d", res.StatusCode)
		return e
	}
	e.Class, e.Kind, e.Message, e.Fix = f.Error.Class, f.Error.Kind, f.Error.Message, f.Error.Fix
	e.Violations, e.Sandbox = f.Violations, f.Sandbox
	return e
}

func encode(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("cannot write the request: %w", err)
	}
	return data, nil
}

// ask is do with the value of the answer.
func ask[T any](ctx context.Context, c *Client, r request) (T, error) {
	var v T
	err := c.do(ctx, r, &v)
	return v, err
}

// get is ask for what only looks.
func get[T any](ctx context.Context, c *Client, path string, query url.Values) (T, error) {
	return ask[T](ctx, c, request{method: http.MethodGet, path: path, query: query})
}

// put is ask with JSON, which is sent again if the connection breaks.
func put[T any](ctx context.Context, c *Client, method, path string, body any) (T, error) {
	data, err := encode(body)
	if err != nil {
		var none T
		return none, err
	}
	return ask[T](ctx, c, request{method: method, path: path, body: data})
}

// upload sends bytes, once: only a service that cannot have seen any is asked again.
func upload[T any](ctx context.Context, c *Client, r request, body io.Reader) (T, error) {
	var v T
	r.header = http.Header{"Content-Type": {"application/octet-stream"}}
	var res *http.Response
	var err error
	for range c.tries(ctx) {
		// Hidden, so that an attempt that fails does not close it.
		if res, err = c.sendBody(ctx, r, struct{ io.Reader }{body}); err == nil || !neverSent(err) {
			break
		}
	}
	if err != nil {
		return v, fmt.Errorf("cannot %s %s: %w", r.method, r.path, err)
	}
	data, err := readAll(res)
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	return v, err
}

// path joins the parts of a path below the version, each escaped.
func path(parts ...string) string {
	var b strings.Builder
	b.WriteString("/" + wire.Version)
	for _, p := range parts {
		b.WriteString("/" + url.PathEscape(p))
	}
	return b.String()
}
