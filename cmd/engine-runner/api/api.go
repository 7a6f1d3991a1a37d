// Package api is the service's HTTP edge: bytes to values and back, who may do what, and
// no policy of runs. What is done is done by engine, capability and the image store.
//
// One table, routes, has every route with the class of caller that it needs, the types
// that go in and out, and its bounds; the handlers, the API's description and the tests
// are made of it. A request passes, in this order: its id and the log, a panic's net, the
// bound of its body, the caller's identity and class, the handler. Every failure is a
// wire.Failure with the status of its kind.
//
// The server holds nothing that a run needs. When it stops, or is killed, runs go on, and
// streams are taken up again by their cursors.
package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/cmd/engine-runner/link"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/service"
)

// Options are what a server is made of. All but Link and Timeouts is required.
type Options struct {
	Host      engine.Host
	Runner    func() *capability.Runner                               // of the config in force
	Keep      func(ctx context.Context, reply capability.Reply) error // keeps a receipt
	Sandboxes *service.Manager                                        // the server does not close it
	Link      func() link.Figures                                     // as they are now; nil: there never is one
	Policy    *Policy                                                 // who may do what, to begin with
	Log       *slog.Logger
	Timeouts  Timeouts
}

// Timeouts bound what a client can hold up. Zero is the default.
type Timeouts struct {
	Header time.Duration // for the head of a request; 10 s
	Body   time.Duration // for the next piece of a body, or of an answer; 30 s
	Idle   time.Duration // between two requests of a connection; 2 min
	// Refusal is how long somebody waits for a no whom the config grants nothing, 100 ms:
	// they have few connections, and each answer costs a line of the log.
	Refusal time.Duration
}

func (t Timeouts) filled() Timeouts {
	for _, d := range []struct {
		value *time.Duration
		usual time.Duration
	}{{&t.Header, 10 * time.Second}, {&t.Body, 30 * time.Second}, {&t.Idle, 2 * time.Minute}, {&t.Refusal, 100 * time.Millisecond}} {
		if *d.value == 0 {
			*d.value = d.usual
		}
	}
	return t
}

// Server answers requests.
type Server struct {
	host        engine.Host
	runner      func() *capability.Runner
	keep        func(ctx context.Context, reply capability.Reply) error
	log         *slog.Logger
	timeouts    Timeouts
	policy      atomic.Pointer[Policy]
	metrics     *metrics
	follower    *follower
	sandboxes   *service.Manager
	link        func() link.Figures
	connections connections
	bulk        bulk
	pace        pace
	handler     http.Handler
	drain       drain
	gc          gcState

	stopping context.Context // ends when streams have to
	stop     context.CancelFunc
	describe func() ([]byte, error) // the API's description, made once
}

// New makes a server. Follow and Collect do its work in the background.
func New(o Options) *Server {
	s := &Server{
		host: o.Host, runner: o.Runner, keep: o.Keep, log: o.Log, timeouts: o.Timeouts.filled(),
		sandboxes: o.Sandboxes, link: o.Link,
		metrics: newMetrics(o.Log), drain: drain{path: drainPath(o.Host)},
	}
	s.connections = connections{by: map[string]int{}, of: map[net.Conn][]string{}}
	s.bulk = newBulk()
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.policy.Store(o.Policy)
	s.follower = newFollower(o.Host, s.metrics)
	s.metrics.gauges(s)
	s.describe = sync.OnceValues(describe)
	if on, err := s.drain.on(); s.sandboxes != nil && (on || err != nil) {
		s.sandboxes.Drain(true)
	}
	s.handler = s.mux()
	return s
}

// SetPolicy replaces who may do what, for requests that begin from now on.
func (s *Server) SetPolicy(p *Policy) { s.policy.Store(p) }

// StopStreams ends the streams that are open, so that Shutdown does not wait for them.
// Their clients take them up again at the next service.
func (s *Server) StopStreams() { s.stop() }

// HTTP returns what serves connections.
func (s *Server) HTTP() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // deadlines of streams, and WebSockets, are those of a connection
	return &http.Server{
		Handler: s,
		// OPTIONS * is answered like all else.
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            s.timeouts.Header,
		IdleTimeout:                  s.timeouts.Idle,
		MaxHeaderBytes:               32 << 10,
		ConnContext:                  s.accepted,
		ConnState: func(conn net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				s.connections.drop(conn)
			}
		},
		ErrorLog:  slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		Protocols: protocols,
	}
}

// newID is a random name of a request.
func newID() string {
	b := make([]byte, 8)
	rand.Read(b)
	return hex.EncodeToString(b)
}
