package api

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/service"
)

func showExec(r engine.ExecRecord) wire.Exec {
	e := wire.Exec{
		ID: r.ID, Command: list(r.Exec.Command), Env: list(r.Exec.Env), Workdir: r.Exec.Workdir, Stdin: r.Exec.Stdin,
		Started: r.Started.UTC(), Result: showExecResult(r.Result),
	}
	if r.Exec.TTY != nil {
		size := wire.WindowSize(*r.Exec.TTY)
		e.TTY = &size
	}
	return e
}

func showExecResult(r *engine.ExecResult) *wire.ExecResult {
	if r == nil {
		return nil
	}
	w := &wire.ExecResult{
		Reason: string(r.Reason), ExitCode: r.ExitCode, Signal: r.Signal, TimedOut: r.TimedOut,
		StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes, StdoutTruncated: r.StdoutTruncated, StderrTruncated: r.StderrTruncated,
		DurationMs: r.DurationMs, CPUSecs: r.CPUSecs,
	}
	if r.Error != nil {
		e := wireError(r.Error)
		w.Error = &e
	}
	return w
}

func (s *Server) startExec(x *exchange) error {
	var ask wire.ExecRequest
	if err := x.body(&ask); err != nil {
		return err
	}
	one, err := x.sandbox()
	if err != nil {
		return err
	}
	e := engine.Exec{ID: ask.ID, Command: ask.Command, Workdir: ask.Workdir, Stdin: ask.Stdin, OutputKept: ask.OutputKeptBytes}
	if e.Env, err = environ(ask.Env); err != nil {
		return err
	}
	if e.Timeout, err = duration("timeoutSeconds", ask.TimeoutSeconds); err != nil {
		return err
	}
	if ask.TTY != nil {
		size := engine.WindowSize(*ask.TTY)
		e.TTY = &size
	}
	conn, err := s.sandboxes.Exec(x.r.Context(), one.ID, e)
	if err != nil {
		return err
	}
	id := conn.ID()
	if err := conn.Close(); err != nil {
		return engine.Failed("no_session", "cannot let go of exec=%s: %w", id, err)
	}
	record, err := s.sandboxes.LoadExec(x.r.Context(), one.ID, id)
	if err != nil {
		return err
	}
	return x.reply(showExec(record))
}

func (s *Server) listExecs(x *exchange) error {
	one, err := x.sandbox()
	if err != nil {
		return err
	}
	if err := x.room(bulkBody + 1); err != nil {
		return err
	}
	records, err := s.sandboxes.Execs(x.r.Context(), one.ID)
	if err != nil {
		return err
	}
	reply := wire.ExecList{Execs: []wire.Exec{}}
	for _, r := range records {
		// Those by which the service itself reaches files are nobody's programs. A caller's own
		// that looks like one is shown.
		if !r.Exec.Raw {
			reply.Execs = append(reply.Execs, showExec(r))
		}
	}
	return x.reply(reply)
}

// exec returns the exec that the path names.
func (x *exchange) exec() (sandboxID string, record engine.ExecRecord, err error) {
	one, err := x.sandbox()
	if err != nil {
		return "", record, err
	}
	record, err = x.server.sandboxes.LoadExec(x.r.Context(), one.ID, x.r.PathValue("exec"))
	return one.ID, record, err
}

func (s *Server) getExec(x *exchange) error {
	_, record, err := x.exec()
	if err != nil {
		return err
	}
	return x.reply(showExec(record))
}

func (s *Server) waitExec(x *exchange) error {
	seconds, err := x.number("seconds", 60, 600)
	if err != nil {
		return err
	}
	id, record, err := x.exec()
	if err != nil {
		return err
	}
	if record.Result == nil {
		if err := s.awaitExec(x, id, record.ID, time.Duration(seconds)*time.Second); err != nil {
			return err
		}
		if record, err = s.sandboxes.LoadExec(x.r.Context(), id, record.ID); err != nil {
			return err
		}
	}
	return x.reply(showExec(record))
}

// awaitExec returns when the exec has ended, or the time is over.
func (s *Server) awaitExec(x *exchange, id, exec string, most time.Duration) error {
	ctx, cancel := context.WithTimeout(x.r.Context(), most)
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	conn, err := s.sandboxes.Attach(x.r.Context(), id, exec)
	if err != nil {
		return err
	}
	_, err = conn.Wait(ctx)
	if ctx.Err() != nil {
		err = nil // it goes on
	}
	return errors.Join(err, conn.Close())
}

// eventCursor is where the client wants to go on.
func (x *exchange) eventCursor() string {
	if last := x.r.Header.Get("Last-Event-ID"); last != "" && x.wantsEvents() {
		return last
	}
	return x.r.URL.Query().Get("cursor")
}

func showEvent(e service.Event) wire.ExecEvent {
	return wire.ExecEvent{
		Cursor: e.Cursor, Kind: string(e.Kind), Stream: e.Stream, Seq: e.Sequence, Time: e.Time.UTC(),
		Data: slices.Clone(e.Data), Dropped: e.Dropped, Result: showExecResult(e.Result),
	}
}

func (s *Server) execEvents(x *exchange) error {
	limit, err := x.number("limit", 1<<20, 4<<20)
	if err != nil {
		return err
	}
	id, record, err := x.exec()
	if err != nil {
		return err
	}
	cursor := x.eventCursor()
	source, err := s.sandboxes.Events(x.r.Context(), id, record.ID, cursor)
	if err != nil {
		return err
	}
	defer source.Close() // it was only read
	if x.wantsEvents() {
		return s.followExec(x, source, cursor)
	}
	if err := x.roomForOutput(s.host.ExecOutputPath(id, record.ID), 0, limit); err != nil {
		return err
	}
	page := wire.ExecEvents{Events: []wire.ExecEvent{}, Next: cursor}
	for size := int64(0); size < limit; {
		e, err := source.Poll()
		if errors.Is(err, service.ErrCaughtUp) || errors.Is(err, io.EOF) {
			page.Done = errors.Is(err, io.EOF)
			break
		}
		if err != nil {
			return err
		}
		size += int64(len(e.Data)) + recordSize
		page.Events = append(page.Events, showEvent(e))
		page.Next, page.Done = e.Cursor, e.Kind == service.EventExit
	}
	return x.reply(page)
}

// followExec sends the events as they come, until the exit.
func (s *Server) followExec(x *exchange, source *service.Events, cursor string) error {
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	events := x.stream()
	for {
		e, err := nextEvent(ctx, source, func() error { return errors.Join(events.flush(), events.comment()) }, events.flush)
		switch {
		case errors.Is(err, io.EOF):
			return events.done(wire.ExecDone{Next: cursor})
		case ctx.Err() != nil || errors.Is(err, errGone):
			return nil
		case err != nil:
			return events.fail(err)
		}
		cursor = e.Cursor
		if events.send(cursor, "exec", showEvent(e)) != nil {
			return nil // the client is gone
		}
	}
}

// nextEvent waits for an event. caughtUp is called when there is none yet, and idle when
// there has been none for long; errGone is that one of them failed.
func nextEvent(ctx context.Context, source *service.Events, idle, caughtUp func() error) (service.Event, error) {
	e, err := source.Poll()
	if !errors.Is(err, service.ErrCaughtUp) {
		return e, err
	}
	if caughtUp() != nil {
		return service.Event{}, errGone
	}
	for {
		short, cancel := context.WithTimeout(ctx, beat)
		e, err := source.Next(short)
		late := short.Err() != nil && ctx.Err() == nil
		cancel()
		if !late || err == nil {
			return e, err
		}
		if idle() != nil {
			return service.Event{}, errGone
		}
	}
}

// attached joins the exec that the path names, for a request that reaches into it.
func (x *exchange) attached(ctx context.Context) (service.Conn, error) {
	one, err := x.sandbox()
	if err != nil {
		return nil, err
	}
	return x.server.sandboxes.Attach(ctx, one.ID, x.r.PathValue("exec"))
}

// writeStdin passes a body on to the program, as it comes. The program that does not read
// holds it up.
func (s *Server) writeStdin(x *exchange) error {
	closeAfter, err := x.flag("close")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	id, record, err := x.exec()
	if err != nil {
		return err
	}
	if !record.Exec.Stdin {
		return noStdin(record.ID)
	}
	conn, err := s.sandboxes.Attach(ctx, id, record.ID)
	if err != nil {
		return err
	}
	defer context.AfterFunc(s.stopping, func() { conn.Close() })()
	defer context.AfterFunc(ctx, func() { conn.Close() })() // a program that does not read would hold on to it
	n, err := io.Copy(conn, &patientBody{x: x})
	if err == nil && closeAfter {
		err = conn.CloseStdin()
	}
	if err == nil {
		err = conn.Deliver(ctx) // so that the next request's comes behind it
	}
	if err != nil && s.stopping.Err() != nil { // by which its connection was cut
		err = engine.Failed("draining", "cannot pass all of stdin on to exec=%s: the service is about to stop", record.ID)
	}
	if err = errors.Join(err, conn.Close()); err != nil {
		return engine.AsError(bodyOr(err, x.route.maxBody))
	}
	return x.reply(wire.StdinReply{Bytes: n})
}

func noStdin(exec string) error {
	return engine.Refused("bad_session", "cannot write to exec=%s: it reads /dev/null", exec).WithFix("start it with stdin true")
}

// bodyOr tells an error of reading the body from one of the engine's.
func bodyOr(err error, limit int64) error {
	var e *engine.Error
	if errors.As(err, &e) {
		return e
	}
	return bodyError(err, limit)
}

// patientBody reads a body, each piece in bounded time.
type patientBody struct{ x *exchange }

func (b *patientBody) Read(p []byte) (int, error) {
	b.x.deadline(b.x.server.timeouts.Body)
	n, err := b.x.r.Body.Read(p)
	if err == io.EOF {
		b.x.deadline(0)
	}
	return n, err
}

func (s *Server) signalExec(x *exchange) error {
	var ask wire.SignalRequest
	if err := x.body(&ask); err != nil {
		return err
	}
	number, err := parseSignal(ask.Signal)
	if err != nil {
		return err
	}
	return s.reach(x, func(conn service.Conn) error { return conn.Signal(number) })
}

// parseSignal reads SIGTERM, TERM or 15.
func parseSignal(text string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(text); err == nil && n > 0 && n < 65 {
		return syscall.Signal(n), nil
	}
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if n := unix.SignalNum(name); n != 0 {
		return n, nil
	}
	return 0, engine.Refused("bad_signal", "cannot send signal=%q: want a name as SIGTERM, or 1 to 64", clip(text))
}

func (s *Server) resizeExec(x *exchange) error {
	var ask wire.WindowSize
	if err := x.body(&ask); err != nil {
		return err
	}
	return s.reach(x, func(conn service.Conn) error { return conn.Resize(engine.WindowSize(ask)) })
}

// reach does something to an exec, and answers with what is known of it.
func (s *Server) reach(x *exchange, do func(service.Conn) error) error {
	conn, err := x.attached(x.r.Context())
	if err != nil {
		return err
	}
	if err := errors.Join(do(conn), conn.Close()); err != nil {
		return engine.AsError(err)
	}
	return s.getExec(x)
}
