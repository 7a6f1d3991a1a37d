package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"time"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
)

// stream is an answer of server-sent events.
type stream struct {
	x     *exchange
	dirty bool // something has not been flushed
}

// beat is how often a stream that has nothing to say says so, and finds out whether
// anybody is still there.
const beat = 15 * time.Second

// stream begins to answer with events.
func (x *exchange) stream() *stream {
	h := x.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // a proxy between that keeps events back
	x.w.WriteHeader(x.route.status)
	s := &stream{x: x, dirty: true}
	s.flush()
	return s
}

// send writes one event. An id is what a client gives as Last-Event-ID.
func (s *stream) send(id, name string, v any) error {
	data, err := encode(v)
	if err != nil {
		return err
	}
	if id != "" {
		id = "id: " + id + "\n"
	}
	s.dirty = true
	_, err = fmt.Fprintf(s.x.w, "%sevent: %s\ndata: %s\n", id, name, data) // data ends its line
	return err
}

// flush lets the client see what was sent.
func (s *stream) flush() error {
	if !s.dirty {
		return nil
	}
	s.dirty = false
	return s.x.w.control.Flush()
}

// comment keeps a silent connection alive.
func (s *stream) comment() error {
	if _, err := io.WriteString(s.x.w, ": still here\n\n"); err != nil {
		return err
	}
	s.dirty = true
	return s.flush()
}

// fail ends a stream with the reason.
func (s *stream) fail(err error) error {
	f, _ := failure(err)
	s.x.w.kind = f.Error.Kind
	if s.send("", "error", f) != nil || s.flush() != nil {
		return nil // the client is gone
	}
	return nil
}

// done ends a stream to which nothing will be added. One that ends without it was cut, and
// can be taken up again.
func (s *stream) done(v any) error {
	if s.send("", "done", v) != nil || s.flush() != nil {
		return nil // the client is gone
	}
	return nil
}

// maxCursor bounds offsets: output.log is far smaller.
const maxCursor = 1 << 50

// cursor is where the client wants to go on: behind the last event that it has seen, or
// at the offset that it names.
func (x *exchange) cursor() (int64, error) {
	if text := x.r.Header.Get("Last-Event-ID"); text != "" && x.wantsEvents() {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > maxCursor {
			return 0, engine.Refused("bad_parameter", "cannot accept Last-Event-ID=%q: want a cursor of this stream", clip(text))
		}
		return n, nil
	}
	return x.number("offset", 0, maxCursor)
}

func (s *Server) runLogs(x *exchange) error {
	at, err := x.cursor()
	if err != nil {
		return err
	}
	limit, err := x.number("limit", 1<<20, 4<<20)
	if err != nil {
		return err
	}
	record, err := x.load()
	if err != nil {
		return err
	}
	source := output{path: s.host.OutputPath(record.ID), at: at, alive: func() bool {
		alive, err := s.host.Alive(record.ID)
		return err == nil && alive
	}}
	if x.wantsEvents() {
		return s.followOutput(x, &source)
	}
	if err := x.roomForOutput(source.path, at, limit); err != nil {
		return err
	}
	page, err := source.page(limit)
	if err != nil {
		return err
	}
	return x.reply(page)
}

// output is a record of output, from a cursor on.
type output struct {
	path  string
	at    int64
	alive func() bool // there is a writer
}

// open opens the record; a writer may not have made it yet, then there is none.
func (o *output) open() (*journal.OutputReader, error) {
	r, err := journal.OpenOutputAt(o.path, o.at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, engine.Failed("no_output", "%w", err)
	}
	return r, nil
}

// outputError tells a cursor that no reader has given out from a record that is broken.
func (o *output) outputError(err error) error {
	var corrupt *journal.CorruptError
	if errors.As(err, &corrupt) && corrupt.Offset == o.at && o.at > 0 {
		return engine.Refused("bad_parameter", "cannot read output from offset=%d: no record begins there", o.at).
			WithFix("begin at 0, or at a cursor of this output")
	}
	return engine.Failed("no_output", "%w", err)
}

// page reads what is there, up to about limit bytes.
func (o *output) page(limit int64) (wire.Output, error) {
	page := wire.Output{Records: []wire.OutputRecord{}, Next: o.at}
	alive := o.alive() // before it is read: a dead writer has written its last
	r, err := o.open()
	if err != nil {
		return page, err
	}
	if r == nil {
		page.Done = !alive
		return page, nil
	}
	defer r.Close()
	for size := int64(0); size < limit; {
		rec, err := r.Next()
		if err == io.EOF {
			page.Done = r.Done() || !alive
			break
		}
		if err != nil {
			return page, o.outputError(err)
		}
		size += int64(len(rec.Data)) + recordSize
		page.Records = append(page.Records, recordOf(rec, r.Offset()))
	}
	page.Next = r.Offset()
	page.Done = page.Done || r.Done()
	return page, nil
}

// recordSize is what a record takes in an answer beside its data: a program decides how
// many there are.
const recordSize = 256

func recordOf(rec journal.OutputRecord, next int64) wire.OutputRecord {
	w := wire.OutputRecord{Seq: rec.Sequence, Time: rec.Time.UTC(), Dropped: rec.Dropped, Next: next}
	w.Data = append(w.Data, rec.Data...) // the reader uses its buffer again
	w.Kind = map[journal.Kind]string{journal.KindData: "data", journal.KindDropped: "dropped", journal.KindTail: "tail", journal.KindEnd: "end"}[rec.Kind]
	w.Stream = rec.Stream.String()
	if rec.Kind == journal.KindEnd {
		w.Stdout = &wire.OutputSum{Written: rec.Totals[0].Written, Kept: rec.Totals[0].Kept}
		w.Stderr = &wire.OutputSum{Written: rec.Totals[1].Written, Kept: rec.Totals[1].Kept}
	}
	return w
}

// A stream that has read all there is waits for more, after a while longer: thousands of
// streams of silent runs must cost little.
const (
	outputPause  = 20 * time.Millisecond
	longestPause = 250 * time.Millisecond
)

// followOutput sends the output as it comes, until its end.
func (s *Server) followOutput(x *exchange, o *output) error {
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	r, err := o.open()
	if err != nil {
		return err
	}
	defer func() {
		if r != nil {
			r.Close() // it was only read
		}
	}()
	events := x.stream()
	quiet, pause := time.Now(), outputPause
	for last := false; ctx.Err() == nil; {
		if r == nil {
			if r, err = o.open(); err != nil {
				return events.fail(err)
			}
		}
		sent, err := o.sendAll(ctx, r, events)
		switch {
		case errors.Is(err, errGone):
			return nil
		case err != nil:
			return events.fail(o.outputError(err))
		case last || r != nil && r.Done():
			return events.done(wire.OutputDone{Next: o.at})
		case sent:
			quiet, pause = time.Now(), outputPause
		case time.Since(quiet) > beat:
			quiet = time.Now()
			if events.comment() != nil {
				cancel()
			}
		}
		// A writer may have added something and died since: look once more after it was
		// found dead.
		if last = !o.alive(); !last {
			wait(ctx, pause)
			if time.Since(quiet) > time.Second {
				pause = min(2*pause, longestPause)
			}
		}
	}
	return nil
}

// errGone is a client that does not read any more.
var errGone = errors.New("the client is gone")

// sendAll sends all that is there now.
func (o *output) sendAll(ctx context.Context, r *journal.OutputReader, events *stream) (sent bool, err error) {
	for r != nil && ctx.Err() == nil {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return sent, err
		}
		sent = true
		o.at = r.Offset()
		if events.send(strconv.FormatInt(o.at, 10), "output", recordOf(rec, o.at)) != nil {
			return sent, errGone
		}
	}
	if events.flush() != nil {
		return sent, errGone
	}
	return sent, nil
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
