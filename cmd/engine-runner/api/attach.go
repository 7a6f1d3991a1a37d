package api

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/coder/websocket"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/service"
)

// maxMessage bounds what a client says in one message: each connection may hold one in memory.
const maxMessage = 256 << 10

// attachExec is an exec on a WebSocket: binary messages are its stdin, text messages a
// wire.Control each; what comes back is a wire.ExecEvent for each message, the same as in
// a stream of events, up to the exit. The connection may end at any time: the program goes
// on, and another begins at the cursor that it names.
func (s *Server) attachExec(x *exchange) error {
	if !opensWebSocket(x.r) {
		x.w.Header().Set("Upgrade", "websocket")
		return engine.Refused("no_websocket", "cannot attach: want a WebSocket").WithFix("use a client that speaks it, or stdin and events")
	}
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	id, record, err := x.exec()
	if err != nil {
		return err
	}
	source, err := s.sandboxes.Events(ctx, id, record.ID, x.eventCursor())
	if err != nil {
		return err
	}
	defer source.Close() // it was only read
	conn, err := s.sandboxes.Attach(ctx, id, record.ID)
	if err != nil {
		return err
	}
	defer conn.Close() // the program goes on
	// Origin is checked: a page in a browser must not reach a service that takes its user
	// for a caller.
	socket, err := websocket.Accept(x.w, x.r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil // it has answered
	}
	defer socket.CloseNow()
	socket.SetReadLimit(maxMessage)
	defer context.AfterFunc(s.stopping, cancel)()
	go func() {
		defer cancel()
		listen(ctx, socket, conn, record)
	}()
	if err := speak(ctx, socket, source); err != nil {
		f, _ := failure(err)
		x.w.kind = f.Error.Kind
		// The reason of a close is short; the exit and its result tell more.
		return socket.Close(websocket.StatusInternalError, f.Error.Kind)
	}
	return nil
}

// opensWebSocket says whether a request is the opening one of RFC 6455, which the library
// would answer in a form of its own if it is not.
func opensWebSocket(r *http.Request) bool {
	keys := r.Header.Values("Sec-WebSocket-Key")
	if len(keys) != 1 || r.Header.Get("Sec-WebSocket-Version") != "13" || !r.ProtoAtLeast(1, 1) {
		return false
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(keys[0]))
	return err == nil && len(key) == 16 && hasToken(r.Header, "Connection", "upgrade") && hasToken(r.Header, "Upgrade", "websocket")
}

// hasToken looks for a word in a header that is a list.
func hasToken(h http.Header, name, token string) bool {
	for part := range strings.SplitSeq(strings.Join(h.Values(name), ","), ",") {
		if strings.EqualFold(strings.TrimSpace(part), token) {
			return true
		}
	}
	return false
}

// speak sends the events until the exit, or until ctx ends.
func speak(ctx context.Context, socket *websocket.Conn, source *service.Events) error {
	ping := func() error { return socket.Ping(ctx) }
	for {
		e, err := nextEvent(ctx, source, ping, func() error { return nil })
		switch {
		case errors.Is(err, io.EOF):
			// Whoever does not answer to it is gone already.
			_ = socket.Close(websocket.StatusNormalClosure, "exit")
			return nil
		case ctx.Err() != nil || errors.Is(err, errGone):
			return nil
		case err != nil:
			return err
		}
		data, err := encode(showEvent(e))
		if err != nil {
			return engine.Failed("internal", "internal error: an event has no JSON form: %w", err)
		}
		write, cancel := context.WithTimeout(ctx, 2*beat)
		err = socket.Write(write, websocket.MessageText, data)
		cancel()
		if err != nil {
			return nil // the client is gone
		}
	}
}

// listen does what the client says, until it says no more. What it has said wrongly is
// told and ends the connection.
func listen(ctx context.Context, socket *websocket.Conn, conn service.Conn, record engine.ExecRecord) {
	for {
		kind, data, err := socket.Read(ctx)
		if err != nil {
			return
		}
		switch {
		case kind == websocket.MessageBinary && !record.Exec.Stdin:
			err = noStdin(record.ID)
		case kind == websocket.MessageBinary:
			_, err = conn.Write(data)
		default:
			err = obey(conn, data)
		}
		var e *engine.Error
		if errors.As(err, &e) && e.Kind == "not_running" {
			continue // it has ended: its exit is on the way
		}
		if err != nil {
			_ = socket.Close(websocket.StatusPolicyViolation, clip(engine.AsError(err).Message)) // there is no other way to tell
			return
		}
	}
}

func obey(conn service.Conn, data []byte) error {
	var c wire.Control
	if err := decode(data, &c); err != nil {
		return err
	}
	switch c.Type {
	case "resize":
		return conn.Resize(engine.WindowSize{Rows: c.Rows, Columns: c.Columns})
	case "close":
		return conn.CloseStdin()
	case "signal":
		number, err := parseSignal(c.Signal)
		if err != nil {
			return err
		}
		return conn.Signal(number)
	}
	return engine.Refused("bad_body", "cannot do %q: want resize, signal or close", clip(c.Type))
}
