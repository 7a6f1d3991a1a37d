// Package callback sends a sandbox's events to the address that its owner named: one
// POST for each event, in order, signed, and again until it is accepted.
//
// The body is JSON: {"sandboxId", "sequence", "event"}. sequence counts the events of
// one sandbox from 1; an event may come twice, with the same sequence, never out of
// order. Three headers go with it:
//
//	Engine-Sandbox    the sandbox's id
//	Engine-Timestamp  when this attempt was made, in milliseconds since 1970
//	Engine-Signature  v1=HMAC-SHA256 in hexadecimal, under the sandbox's secret, of
//	                  the timestamp as it stands there, a dot, and the body
//
// Any status of the 200s accepts an event. Everything else, redirections included, is
// tried again, after longer and longer pauses of random length. An event that nobody
// has taken for Config.GiveUp is dropped together with all others of that age, which
// leaves a gap in the sequence, and an event of type "dropped" says how many.
package callback

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/netns/egress"
	"github.com/direct-oci/engine/service/outbox"
)

// The headers of a callback.
const (
	SandboxHeader   = "Engine-Sandbox"
	TimestampHeader = "Engine-Timestamp"
	SignatureHeader = "Engine-Signature"
)

// Config is the operator's. The zero value posts to public addresses over TLS alone.
type Config struct {
	Off      bool           // no sandbox may have a callback
	Allow    []netip.Prefix // addresses that are not public and may be posted to, see egress.Guard
	HTTP     bool           // plain http is accepted
	Timeout  time.Duration  // of one attempt; zero: 10 seconds
	Pause    time.Duration  // the longest between two attempts; zero: a minute
	GiveUp   time.Duration  // the age at which an event is dropped; zero: 24 hours
	Capacity int64          // bytes of events that may wait for one sandbox; zero: 8 MiB
	TLS      *tls.Config    // nil: the host's authorities
}

// Completed is c with its defaults.
func (c Config) Completed() Config {
	set := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	set(&c.Timeout, 10*time.Second)
	set(&c.Pause, time.Minute)
	set(&c.GiveUp, 24*time.Hour)
	if c.Capacity <= 0 {
		c.Capacity = 8 << 20
	}
	return c
}

// Target is where the events of one sandbox go.
type Target struct {
	Sandbox string
	Tenant  string // against whom counts what waits
	URL     string
	Secret  []byte
}

// Bounds of what may be asked for.
const (
	minSecret = 16
	maxSecret = 4 << 10
	maxURL    = 2 << 10
	maxReply  = 64 << 10 // bytes of an answer that are read, so that the connection can be used again
	firstWait = 250 * time.Millisecond
)

// Sender posts. It is safe for use by many goroutines.
type Sender struct{ now atomic.Pointer[rules] }

// rules are what a sender goes by.
type rules struct {
	config Config
	guard  *egress.Guard
	client *http.Client
}

// New makes a sender.
func New(c Config) *Sender {
	s := &Sender{}
	s.now.Store(newRules(c))
	return s
}

// Change puts another config into force, for every attempt from now on: one of a sandbox
// that lives reaches no address that is not allowed any more.
func (s *Sender) Change(c Config) { s.now.Swap(newRules(c)).client.CloseIdleConnections() }

// newRules makes rules of a config.
//
// SECURITY: a callback reaches no address that its sandbox's owner should not reach through this host.
// A URL that leads to a metadata service, to loopback or to a neighbour would hand out what answers there, or do something there, in the host's name.
// Holds because: the guard judges the address of every connection in the socket's Control, after the name was resolved, and neither a proxy nor a redirection is followed.
// Not covered: a public address that forwards. Checked by: TestGuardedAddresses, TestRedirectsAreNotFollowed.
func newRules(c Config) *rules {
	c = c.Completed()
	s := &rules{config: c, guard: &egress.Guard{Allow: c.Allow}}
	dialer := &net.Dialer{Timeout: c.Timeout, Control: func(_, address string, _ syscall.RawConn) error {
		addr, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("cannot judge address=%s: %w", address, err)
		}
		return s.guard.Check(addr.Addr())
	}}
	s.client = &http.Client{
		Timeout: c.Timeout,
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			TLSClientConfig:        c.TLS.Clone(),
			ForceAttemptHTTP2:      true,
			MaxIdleConnsPerHost:    1,
			MaxIdleConns:           256,
			IdleConnTimeout:        30 * time.Second,
			TLSHandshakeTimeout:    c.Timeout,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s
}

// Close gives idle connections up.
func (s *Sender) Close() { s.now.Load().client.CloseIdleConnections() }

// Validate refuses a target before there is a sandbox. Names are judged when they are
// resolved, at each attempt.
func (s *Sender) Validate(t Target) error {
	bad := func(format string, args ...any) error {
		return engine.Refused("bad_callback", "cannot accept callback=%q: %w", t.URL, fmt.Errorf(format, args...))
	}
	now := s.now.Load()
	if now.config.Off {
		return bad("this service sends none")
	}
	if len(t.URL) > maxURL {
		return bad("it is longer than %d bytes", maxURL)
	}
	if len(t.Secret) < minSecret || len(t.Secret) > maxSecret {
		return bad("its secret has %d bytes, decoded from base64 where it came in JSON, and wants %d to %d", len(t.Secret), minSecret, maxSecret)
	}
	u, err := url.Parse(t.URL)
	switch {
	case err != nil:
		return engine.Refused("bad_callback", "cannot accept callback: it is no URL")
	case u.Scheme != "https" && (u.Scheme != "http" || !now.config.HTTP):
		return bad("its scheme is %q, want https, or http where service.sandboxes.callbacks.http is true in the config", u.Scheme)
	case u.Hostname() == "":
		return bad("it names no host")
	case u.User != nil:
		return bad("it holds a user")
	case u.Fragment != "":
		return bad("it holds a fragment")
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		if err := now.guard.Check(addr); err != nil {
			return engine.Refused("bad_callback", "cannot accept callback=%q: %w", t.URL, err).
				WithFix("name a public address, or have a private one, metadata services excepted, granted: service.sandboxes.callbacks.allow in the config")
		}
	}
	return nil
}

// body is what is posted.
type body struct {
	SandboxID string          `json:"sandboxId"`
	Sequence  uint64          `json:"sequence"`
	Event     json.RawMessage `json:"event"`
}

// Deliver posts what is in the box, in order, and returns when ctx ends or when the box
// is empty and done is closed.
func (s *Sender) Deliver(ctx context.Context, t Target, box *outbox.Box, done <-chan struct{}, events Events) error {
	failures := 0
	for {
		changed := box.Changed()
		m, ok := box.First()
		if !ok {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return ctx.Err()
			case <-done:
				if n, _ := box.Waiting(); n > 0 {
					continue
				}
				return nil
			}
		}
		if gone, err := s.giveUp(box, events); err != nil {
			return err
		} else if gone {
			continue
		}
		err := s.post(ctx, t, m)
		if err == nil {
			if failures = 0; box.Ack(m.Sequence) != nil {
				failures = 1 // it comes again: pause, as a disk that is full stays so for a while
			}
		} else if ctx.Err() == nil {
			failures++
			events.Report(err)
		} else {
			return ctx.Err()
		}
		if failures > 0 && !pause(ctx, s.backoff(failures, err)) {
			return ctx.Err()
		}
	}
}

// Events is what Deliver has to know of its messages.
type Events interface {
	Dropped(count int) []byte // an event that says so
	Report(err error)         // an attempt that failed
}

// giveUp drops all messages that are too old, and says so in one of its own.
func (s *Sender) giveUp(box *outbox.Box, events Events) (bool, error) {
	limit := time.Now().Add(-s.now.Load().config.GiveUp)
	count, last := box.Count(func(m outbox.Message) bool { return m.Appended.Before(limit) })
	if count == 0 {
		return false, nil
	}
	// Said before it is done, unless there is no room for saying it.
	_, err := box.Append(events.Dropped(count), "", box.Marks()[""], true)
	if err != nil && !errors.Is(err, outbox.ErrFull) {
		return false, err
	}
	full := err != nil
	if err := box.Ack(last); err != nil || !full {
		return true, err
	}
	_, err = box.Append(events.Dropped(count), "", box.Marks()[""], true)
	return true, err
}

// refusedError is an answer that does not accept.
type refusedError struct {
	status int
	after  time.Duration // Retry-After; zero: none
}

func (e *refusedError) Error() string { return fmt.Sprintf("it was answered with status %d", e.status) }

func (s *Sender) post(ctx context.Context, t Target, m outbox.Message) error {
	data, err := json.Marshal(body{t.Sandbox, m.Sequence, m.Body})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.URL, bytes.NewReader(data))
	if err != nil {
		return err
	}
	stamp := strconv.FormatInt(time.Now().UnixMilli(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "engine/"+engine.Version)
	req.Header.Set(SandboxHeader, t.Sandbox)
	req.Header.Set(TimestampHeader, stamp)
	req.Header.Set(SignatureHeader, Sign(t.Secret, stamp, data))
	resp, err := s.now.Load().client.Do(req)
	if err != nil {
		var u *url.Error // which would say the whole URL, and its query may be secret
		if errors.As(err, &u) {
			err = u.Err
		}
		return err
	}
	io.Copy(io.Discard, io.LimitReader(resp.Body, maxReply)) // whatever it says
	resp.Body.Close()
	if resp.StatusCode/100 == 2 {
		return nil
	}
	refused := &refusedError{status: resp.StatusCode}
	if secs, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && secs > 0 {
		refused.after = min(time.Duration(min(secs, 1<<20))*time.Second, s.now.Load().config.Pause)
	}
	return refused
}

// backoff is a pause of random length that doubles at most with each failure.
func (s *Sender) backoff(failures int, err error) time.Duration {
	most := min(firstWait<<min(failures-1, 20), s.now.Load().config.Pause)
	wait := most/2 + rand.N(most/2+1)
	var refused *refusedError
	if errors.As(err, &refused) {
		wait = max(wait, refused.after)
	}
	return wait
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Sign is the value of the signature's header.
func Sign(secret []byte, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(timestamp + "."))
	mac.Write(body)
	return "v1=" + hex.EncodeToString(mac.Sum(nil))
}

// Verify is the receiver's side: it refuses a body that was not signed with secret, or
// at a time further from now than skew.
func Verify(secret []byte, h http.Header, body []byte, now time.Time, skew time.Duration) error {
	stamp := h.Get(TimestampHeader)
	ms, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || strings.HasPrefix(stamp, "+") {
		return errors.New("cannot verify callback: it has no timestamp")
	}
	if d := now.Sub(time.UnixMilli(ms)); d > skew || d < -skew {
		return errors.New("cannot verify callback: its timestamp is too far from now")
	}
	if !hmac.Equal([]byte(Sign(secret, stamp, body)), []byte(h.Get(SignatureHeader))) {
		return errors.New("cannot verify callback: its signature is another's")
	}
	return nil
}
