package engine

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ExecConn is one caller's connection with an exec. Its methods may be called by any
// number of goroutines. It ends with Close; the exec does not.
type ExecConn struct {
	host    Host
	session string
	id      string
	joined  bool

	conn    *net.UnixConn // nil: the exec had ended
	writing sync.Mutex
	raw     [2]*os.File // its stdin and its stdout, of a raw exec that this caller started

	changed chan struct{}
	done    chan struct{} // closed when nothing more comes; result tells what it was
	result  *ExecResult   // nil: the connection ended first
	closed  atomic.Bool   // by Close
}

// Exec starts a program in a session and returns once it runs. For an id that is on
// record with the same request it starts nothing and returns a connection with that
// exec. Every error is an *Error; after one that says why the program could not be
// started, nothing of it runs.
func (h Host) Exec(ctx context.Context, id string, e Exec) (*ExecConn, error) {
	if err := e.validate(); err != nil {
		return nil, err
	}
	e = e.settle()
	c, err := h.follow(ctx, id, sessionRequest{Op: opExec, Exec: &e})
	if !gone(err) {
		return c, err
	}
	rec, loadErr := h.LoadExec(id, e.ID)
	if loadErr != nil || !sameExec(rec.Exec, e) || rec.Result == nil {
		return nil, err
	}
	if rec.Result.Reason == "" {
		return nil, rec.Result.Error
	}
	return h.ended(id, rec), nil
}

// Attach returns a connection with an exec that was started before, and may have ended.
func (h Host) Attach(ctx context.Context, id, exec string) (*ExecConn, error) {
	c, err := h.follow(ctx, id, sessionRequest{Op: opAttach, ID: exec})
	if !gone(err) {
		return c, err
	}
	rec, err := h.LoadExec(id, exec)
	if err != nil {
		return nil, err
	}
	return h.ended(id, rec), nil
}

// gone reports whether an error says that there is no session to ask.
func gone(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == "not_running"
}

// ended is a connection with an exec of which no more is to come.
func (h Host) ended(session string, rec ExecRecord) *ExecConn {
	c := &ExecConn{
		host: h, session: session, id: rec.ID, joined: true,
		changed: make(chan struct{}, 1), done: make(chan struct{}), result: rec.Result,
	}
	c.changed <- struct{}{}
	close(c.done)
	return c
}

// follow asks for an exec and keeps the connection.
func (h Host) follow(ctx context.Context, prefix string, q sessionRequest) (*ExecConn, error) {
	conn, id, err := h.dial(ctx, prefix)
	if err != nil {
		return nil, err
	}
	rights := &rightsReader{conn: conn}
	first, lines, err := converse(ctx, id, conn, rights, q)
	if err != nil {
		rights.discard()
		conn.Close()
		return nil, err
	}
	c := &ExecConn{
		host: h, session: id, id: first.ID, joined: first.Joined, conn: conn,
		changed: make(chan struct{}, 1), done: make(chan struct{}),
	}
	c.changed <- struct{}{} // what is there already
	if err := c.takeRaw(rights); err != nil {
		conn.Close()
		return nil, err
	}
	go c.listen(lines)
	return c, nil
}

// dial connects with the session's monitor.
func (h Host) dial(ctx context.Context, prefix string) (*net.UnixConn, string, error) {
	h = h.withDirs()
	id, err := h.find(prefix)
	if err != nil {
		return nil, "", err
	}
	conn, err := dialIn(h.runDir(id))
	if err == nil {
		return conn, id, nil
	}
	r, loadErr := h.load(id)
	switch {
	case loadErr != nil:
		return nil, id, Failed("no_record", "%w", loadErr)
	case !r.Created.IsZero() && r.Request.Session == nil:
		return nil, id, noSession(id)
	case r.Result != nil:
		return nil, id, sessionEnded(id, r)
	case !r.Alive:
		if err := h.gcOne(ctx, id); err != nil {
			return nil, id, err
		}
		return nil, id, Refused("not_running", "cannot use session=%s: its monitor died", id)
	case r.State != Running:
		return nil, id, Refused("not_ready", "cannot use session=%s: it is not ready", id).WithFix("wait for it first")
	}
	return nil, id, Failed("no_monitor", "cannot reach the monitor of session=%s: %w", id, err)
}

func dialIn(dir string) (*net.UnixConn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if _, err := os.Stat(filepath.Join(dir, sessionSocket)); err != nil {
		return nil, err
	}
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: socketIn(d), Net: "unix"})
}

// converse sends a request and reads its answer, for as long as ctx allows.
func converse(ctx context.Context, id string, conn *net.UnixConn, from io.Reader, q sessionRequest) (sessionEvent, lineReader, error) {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	lines := newLineReader(bufio.NewScanner(from))
	q.Version = sessionVersion
	line, err := encodeLine(q)
	if err == nil {
		_, err = conn.Write(line)
	}
	var e sessionEvent
	if err == nil {
		err = lines.next(&e)
	}
	switch {
	case ctx.Err() != nil:
		return e, lines, Failed("timeout", "cannot wait for session=%s: %w", id, ctx.Err())
	case err != nil:
		return e, lines, Refused("not_running", "cannot use session=%s: it ended meanwhile: %w", id, err)
	case e.Error != nil:
		return e, lines, e.Error
	}
	return e, lines, nil
}

// ask makes one request that has one answer.
func (h Host) ask(ctx context.Context, prefix string, q sessionRequest) (sessionEvent, error) {
	conn, id, err := h.dial(ctx, prefix)
	if err != nil {
		return sessionEvent{}, err
	}
	defer conn.Close()
	e, _, err := converse(ctx, id, conn, conn, q)
	return e, err
}

// listen takes in what the monitor tells.
func (c *ExecConn) listen(lines lineReader) {
	defer c.change() // the last of it
	defer close(c.done)
	for {
		var e sessionEvent
		if lines.next(&e) != nil {
			return
		}
		switch e.Event {
		case eventChanged:
			c.change()
		case eventExit:
			c.result = e.Result
			return
		}
	}
}

func (c *ExecConn) change() {
	select {
	case c.changed <- struct{}{}:
	default: // it was not looked at since the last time
	}
}

// ID is the exec's id.
func (c *ExecConn) ID() string { return c.id }

// Joined reports that the exec had been started before.
func (c *ExecConn) Joined() bool { return c.joined }

// Changed has an element when there may be more output on record than when one was
// taken from it last, and when the exec has ended.
func (c *ExecConn) Changed() <-chan struct{} { return c.changed }

// stdinPiece is how much of stdin goes into one message.
const stdinPiece = 64 << 10

// Write passes data on to the program's stdin. It waits while the program does not read,
// and fails once the exec has ended.
func (c *ExecConn) Write(data []byte) (int, error) {
	if c.raw[0] != nil {
		return c.raw[0].Write(data)
	}
	written := 0
	for len(data) > 0 {
		piece := data[:min(len(data), stdinPiece)]
		if err := c.send(sessionRequest{Op: opStdin, Data: piece}); err != nil {
			return written, err
		}
		written += len(piece)
		data = data[len(piece):]
	}
	return written, nil
}

// CloseStdin ends the program's stdin.
func (c *ExecConn) CloseStdin() error {
	if c.raw[0] != nil {
		return c.raw[0].Close()
	}
	return c.send(sessionRequest{Op: opCloseStdin})
}

// Deliver says that this connection writes nothing more, and returns once the program's
// stdin has taken what it wrote: what another connection writes after that comes behind it.
func (c *ExecConn) Deliver(ctx context.Context) error {
	if c.raw[0] != nil || c.conn == nil {
		return nil
	}
	c.writing.Lock()
	err := c.conn.CloseWrite()
	c.writing.Unlock()
	if err != nil {
		return c.overError()
	}
	// The monitor reads at the program's pace, to the end, and then ends the connection.
	select {
	case <-c.done:
	case <-ctx.Done():
		return Failed("timeout", "cannot wait until exec=%s reads its stdin: %w", c.id, ctx.Err())
	}
	if c.closed.Load() {
		return c.overError() // by us: nobody knows
	}
	return nil
}

// send writes one message on the exec's own connection.
func (c *ExecConn) send(q sessionRequest) error {
	select {
	case <-c.done:
		return c.overError()
	default:
	}
	q.Version = sessionVersion
	line, err := encodeLine(q)
	if err != nil {
		return Failed("internal", "cannot write a message: %w", err)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if _, err := c.conn.Write(line); err != nil {
		return c.overError()
	}
	return nil
}

func (c *ExecConn) overError() *Error {
	return Refused("not_running", "cannot reach exec=%s: it has ended, or the connection has", c.id)
}

// Read reads what a raw exec writes to stdout. It returns io.EOF for every other one:
// their output is on record.
func (c *ExecConn) Read(data []byte) (int, error) {
	if c.raw[1] == nil {
		return 0, io.EOF
	}
	return c.raw[1].Read(data)
}

// Resize gives the program's terminal another size.
func (c *ExecConn) Resize(size WindowSize) error {
	_, err := c.host.ask(context.Background(), c.session, sessionRequest{Op: opResize, ID: c.id, Size: &size})
	return err
}

// Signal sends a signal to the program's process group.
func (c *ExecConn) Signal(sig syscall.Signal) error {
	return c.host.SignalExec(context.Background(), c.session, c.id, int(sig))
}

// Wait returns the result of the exec once it is on record. An exec whose session dies
// without a word ends as lost.
func (c *ExecConn) Wait(ctx context.Context) (ExecResult, error) {
	select {
	case <-c.done:
	case <-ctx.Done():
		return ExecResult{}, Failed("timeout", "cannot wait for exec=%s: %w", c.id, ctx.Err())
	}
	if c.result != nil {
		return *c.result, nil
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		rec, err := c.host.LoadExec(c.session, c.id)
		if err != nil {
			return ExecResult{}, err
		}
		if rec.Result != nil {
			return *rec.Result, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ExecResult{}, Failed("timeout", "cannot wait for exec=%s: %w", c.id, ctx.Err())
		}
	}
}

// Close ends the connection. The exec goes on, but for a raw one of this caller's: its
// stdin and its stdout end.
func (c *ExecConn) Close() error {
	c.closed.Store(true)
	closeAll(c.raw[:]) // one was closed by CloseStdin, maybe
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}

// takeRaw keeps the descriptors that came with the answer, two or none.
func (c *ExecConn) takeRaw(rights *rightsReader) error {
	if len(rights.fds) == 0 {
		return nil
	}
	if len(rights.fds) != 2 {
		defer rights.discard()
		return Failed("no_descriptors", "cannot use exec=%s: %d descriptors came for it", c.id, len(rights.fds))
	}
	for i, fd := range rights.fds {
		if err := unix.SetNonblock(fd, true); err != nil {
			defer rights.discard()
			return Failed("no_descriptors", "cannot use the streams of exec=%s: %w", c.id, err)
		}
		c.raw[i] = os.NewFile(uintptr(fd), "exec")
	}
	return nil
}

// rightsReader reads a connection and keeps the descriptors that come with the bytes.
type rightsReader struct {
	conn *net.UnixConn
	fds  []int
}

func (r *rightsReader) Read(data []byte) (int, error) {
	var oob [64]byte
	n, oobn, _, _, err := r.conn.ReadMsgUnix(data, oob[:])
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	messages, parseErr := unix.ParseSocketControlMessage(oob[:oobn])
	for _, m := range messages {
		if fds, err := unix.ParseUnixRights(&m); err == nil {
			r.fds = append(r.fds, fds...)
		}
	}
	return n, errors.Join(err, parseErr)
}

// discard closes the descriptors, of which nobody will be given one.
func (r *rightsReader) discard() {
	for _, fd := range r.fds {
		unix.Close(fd)
	}
	r.fds = nil
}
