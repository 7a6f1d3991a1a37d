package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
)

// exchange is one request on its way, and its answer.
type exchange struct {
	server *Server
	route  *route
	w      *recorder
	r      *http.Request
	caller Caller
	id     string
	leave  func() // gives back the place that a large body has; nil: none
}

// recorder notes what was answered, for the log and the metrics.
type recorder struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
	status   int
	bytes    int64
	kind     string // of the failure
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write gives a client that does not read only so much time.
func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	// A writer without deadlines is a test's.
	_ = w.control.SetWriteDeadline(time.Now().Add(w.patience))
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController through.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack lets a WebSocket through.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.status = http.StatusSwitchingProtocols
	return w.control.Hijack()
}

var requestIDForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	x := &exchange{server: s, r: r, id: r.Header.Get("X-Request-Id")}
	if !requestIDForm.MatchString(x.id) {
		x.id = newID()
	}
	x.w = &recorder{ResponseWriter: w, control: http.NewResponseController(w), patience: s.timeouts.Body}
	w.Header().Set("X-Request-Id", x.id)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	defer func() {
		if p := recover(); p != nil {
			x.panicked(p)
		}
		if x.leave != nil {
			x.leave()
		}
		if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok && x.w.status == http.StatusSwitchingProtocols {
			s.connections.drop(conn) // the server has let go of it
		}
		x.note(time.Since(began))
	}()
	if err := odd(r); err != nil {
		x.fail(err)
		return
	}
	s.handler.ServeHTTP(x.w, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)))
}

// odd is why a request is not for http.ServeMux, which would answer it by itself, and not in
// the form of the API: with a redirection, or with an empty body.
func odd(r *http.Request) error {
	if r.Method == http.MethodConnect {
		return engine.Refused("bad_method", "cannot CONNECT: this is no proxy")
	}
	at := r.URL.EscapedPath()
	if r.RequestURI == "*" || !strings.HasPrefix(at, "/") {
		return engine.Refused("unknown_route", "cannot find path=%q: want one that begins with /", clip(at)).WithFix("see /v1/openapi.json")
	}
	clean := path.Clean(at)
	if strings.HasSuffix(at, "/") && clean != "/" {
		clean += "/" // which no route has, as it says then
	}
	if at != clean {
		return engine.Refused("unknown_route", "cannot find path=%q: it holds an empty part, . or ..", clip(at)).WithFix("ask for " + clip(clean))
	}
	return nil
}

type exchangeKey struct{}

// handle is a route's http.Handler.
func (s *Server) handle(rt *route) http.Handler {
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		x := r.Context().Value(exchangeKey{}).(*exchange)
		x.route, x.r = rt, r
		if err := x.serve(); err != nil {
			x.fail(err)
		}
	})
}

// serve does what comes before the handler, and then that.
//
// SECURITY: nothing of a body is read before it is bounded, and nothing of it at all for a caller who may not.
// A body without an end fills the memory of a service that everybody depends on.
// Holds because: the length is compared and the reader cut before any other line here reads,
// and the caller is judged before the handler runs. Not covered: how many callers there are.
// Checked by: TestBodiesAreBounded, TestWhoMayDoWhat.
func (x *exchange) serve() error {
	if x.r.ContentLength > x.route.maxBody {
		x.w.Header().Set("Connection", "close")
		return tooLarge(x.route.maxBody)
	}
	x.r.Body = http.MaxBytesReader(x.w, x.r.Body, x.route.maxBody)
	if x.r.ContentLength != 0 {
		// What no handler reads is read by the server at the end, and not for ever either.
		x.deadline(x.server.timeouts.Body)
	}
	if err := x.identify(); err != nil {
		return err
	}
	if x.caller.Class < x.route.class {
		return engine.Refused("forbidden", "cannot let %s do this: it needs the class %s, and they have %s", x.caller.Name, x.route.class, x.caller.Class).
			WithFix("have service.access or service.tcp changed in the config")
	}
	if err := x.checkOrigin(); err != nil {
		return err
	}
	if err := x.checkQuery(); err != nil {
		return err
	}
	if err := x.server.pace.enter(x.r.Context(), x.caller, x.server.policy.Load().perSecond); err != nil {
		return err
	}
	return x.route.serve(x.server, x)
}

// identify finds out who asks.
func (x *exchange) identify() (err error) {
	if x.caller, err = x.server.policy.Load().identify(x.r); err != nil {
		wait(x.r.Context(), x.server.timeouts.Refusal)
	}
	return err
}

// checkOrigin refuses what a page of somebody else's makes its reader's browser send.
//
// SECURITY: no page in a browser acts for its reader.
// A browser shows the reader's certificate to whoever a page names, and a body of JSON can
// be sent from any page without asking the service first.
// Holds because: browsers say where a request comes from, and what comes from elsewhere ends
// here, WebSockets included. Not covered: a page that is served from the service's own address.
// Checked by: TestPagesOfOthers.
func (x *exchange) checkOrigin() error {
	site, origin := x.r.Header.Get("Sec-Fetch-Site"), x.r.Header.Get("Origin")
	foreign := site == "cross-site" || site == "same-site"
	if origin != "" {
		at, err := url.Parse(origin)
		foreign = foreign || err != nil || at.Host != x.r.Host
	}
	if foreign {
		return engine.Refused("forbidden", "cannot answer a page of origin=%q", clip(origin)).WithFix("use a client that is no page in a browser")
	}
	return nil
}

func tooLarge(limit int64) *engine.Error {
	return engine.Refused("body_too_large", "cannot accept a body of more than %d bytes here", limit)
}

// fail answers with an error, unless an answer has begun.
func (x *exchange) fail(err error) {
	f, status := failure(err)
	x.w.kind = f.Error.Kind
	if f.Sandbox != nil {
		f.Sandbox.Sandbox, f.Sandbox.Owner = x.caller.showName(f.Sandbox.Sandbox), x.caller.showOwner(f.Sandbox.Owner)
	}
	if f.Error.Class == wire.ClassEngine {
		x.server.log.Error("failed", "request", x.id, "kind", f.Error.Kind, "message", f.Error.Message)
	}
	if x.w.status != 0 {
		return // a stream says it in its own way
	}
	if x.r.ContentLength != 0 {
		x.w.Header().Set("Connection", "close") // what is left of the body is not worth a wait
	}
	if status == http.StatusUnauthorized {
		x.w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if err := writeJSON(x.w, status, f); err != nil {
		x.server.log.Error("failed", "request", x.id, "message", err.Error())
	}
}

// panicked turns a bug into an error of the engine's.
func (x *exchange) panicked(p any) {
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		return
	}
	x.server.log.Error("panic", "request", x.id, "value", fmt.Sprint(p), "stack", string(debug.Stack()))
	x.server.metrics.panics.Inc()
	x.fail(engine.Failed("internal", "internal error: request=%s ended in a panic", x.id))
}

// note writes the log and counts.
func (x *exchange) note(took time.Duration) {
	pattern := "none"
	if x.route != nil {
		pattern = x.route.path
	}
	status := x.w.status
	if status == 0 {
		status = 499 // the client left before there was an answer
	}
	x.server.metrics.request(x.r.Method, pattern, status, took, x.route != nil && x.route.long)
	attrs := []slog.Attr{
		slog.String("request", x.id), slog.String("caller", x.caller.Name), slog.String("method", x.r.Method),
		slog.String("route", pattern), slog.Int("status", status),
		slog.Float64("ms", float64(took.Microseconds())/1000), slog.Int64("bytes", x.w.bytes),
	}
	for _, name := range []string{"id", "exec", "project", "name"} {
		if v := x.r.PathValue(name); v != "" {
			attrs = append(attrs, slog.String(name, clip(v)))
		}
	}
	if x.w.kind != "" {
		attrs = append(attrs, slog.String("kind", x.w.kind))
	}
	level := slog.LevelInfo
	if x.route != nil && x.route.quiet && status < 400 {
		level = slog.LevelDebug
	}
	x.server.log.LogAttrs(context.Background(), level, "request", attrs...)
}

// reply sends v with the route's status, or with another one.
func (x *exchange) reply(v any) error { return writeJSON(x.w, x.route.status, v) }

// deadline bounds how long the rest of the body may take to come. Zero takes the bound
// away: the connection is watched for its end meanwhile, and a deadline would look like it.
func (x *exchange) deadline(after time.Duration) {
	var at time.Time
	if after > 0 {
		at = time.Now().Add(after)
	}
	_ = x.w.control.SetReadDeadline(at)
}

// wantsEvents says whether the client asked for a stream of events.
func (x *exchange) wantsEvents() bool {
	return strings.Contains(x.r.Header.Get("Accept"), "text/event-stream")
}
