package service

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
)

// Event is one thing that a program wrote or that became of it. Cursor stands behind
// it: reading may be taken up there, by any Manager, for as long as the sandbox is on
// record.
type Event struct {
	Cursor   string             `json:"cursor"`
	Kind     EventKind          `json:"kind"`
	Stream   string             `json:"stream,omitempty"`   // stdout or stderr, of data, dropped and tail
	Sequence uint64             `json:"sequence,omitempty"` // of data and tail: over both streams
	Time     time.Time          `json:"time"`
	Data     []byte             `json:"data,omitempty"`
	Dropped  int64              `json:"dropped,omitempty"` // bytes of the stream that are missing here
	Result   *engine.ExecResult `json:"result,omitempty"`  // of exit
}

// EventKind tells what an Event says.
type EventKind string

// The kinds of events. Exit is the last one.
const (
	EventData    EventKind = "data"
	EventDropped EventKind = "dropped" // more was written than is kept
	EventTail    EventKind = "tail"    // the last of what was dropped, after all
	EventExit    EventKind = "exit"
)

// Events is a program's output record, read from a cursor. It is for one goroutine.
type Events struct {
	engine  Engine
	run     string
	exec    string
	file    *os.File // nil: the program has no output yet, or never will
	reader  *journal.OutputReader
	offset  int64 // where file is to be read from once it is there
	over    bool
	changed <-chan struct{} // nil: nobody tells
	conn    Conn

	started time.Time
	checked time.Time // when running was found out
	result  *engine.ExecResult
	dead    bool
}

// Events reads what a program of a sandbox wrote, from a cursor of an earlier Event or
// from its beginning.
func (m *Manager) Events(ctx context.Context, nameOrID, execID, cursor string) (*Events, error) {
	r, err := m.find(nameOrID)
	if err != nil {
		return nil, err
	}
	e := &Events{engine: m.engine, run: r.ID, exec: execID}
	if e.offset, e.over, err = readCursor(cursor, r.ID, execID); err != nil {
		return nil, err
	}
	rec, err := m.engine.LoadExec(r.ID, execID)
	if err != nil {
		return nil, err
	}
	e.started, e.result = rec.Started, rec.Result
	if rec.Result == nil && !e.over {
		// Only for being told at once: without it, reading looks now and then.
		if conn, err := m.engine.Attach(ctx, r.ID, execID); err == nil {
			e.conn, e.changed = conn, conn.Changed()
		}
	}
	if err := e.open(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Events) open() error {
	if e.file != nil {
		return nil
	}
	f, err := os.Open(e.engine.ExecOutputPath(e.run, e.exec))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return engine.Failed("no_output", "cannot read the output of exec=%s: %w", e.exec, err)
	}
	e.file, e.reader = f, journal.NewOutputReader(f, e.offset)
	return nil
}

// Close gives up reading. The program goes on.
func (e *Events) Close() error {
	var errs []error
	if e.conn != nil {
		errs = append(errs, e.conn.Close())
	}
	if e.file != nil {
		errs = append(errs, e.file.Close())
	}
	return errors.Join(errs...)
}

// ErrCaughtUp reports that nothing more is on record yet.
var ErrCaughtUp = errors.New("nothing more is on record yet")

// Poll returns the next event that is on record, ErrCaughtUp if there is none yet, or
// io.EOF after the exit. The event's data is its caller's until the next call.
func (e *Events) Poll() (Event, error) {
	if e.over {
		return Event{}, io.EOF
	}
	// Asked before the record is read: what was written before the end is then there.
	ended, err := e.ended()
	if err != nil {
		return Event{}, err
	}
	if err := e.open(); err != nil {
		return Event{}, err
	}
	for e.reader != nil {
		rec, err := e.reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Event{}, engine.Failed("no_output", "cannot read the output of exec=%s: %w", e.exec, err)
		}
		if ev, ok := e.event(rec); ok {
			return ev, nil
		}
	}
	if !ended {
		return Event{}, ErrCaughtUp
	}
	e.over = true
	return Event{Cursor: writeCursor(-1, e.run, e.exec), Kind: EventExit, Time: e.exitTime(), Result: e.result}, nil
}

// exitTime is when the program ended, the same to all who read it. Where nobody knows it
// is now.
func (e *Events) exitTime() time.Time {
	if e.result == nil {
		return time.Now()
	}
	return e.started.Add(time.Duration(e.result.DurationMs * float64(time.Millisecond)))
}

func (e *Events) event(rec journal.OutputRecord) (Event, bool) {
	ev := Event{
		Cursor: writeCursor(e.reader.Offset(), e.run, e.exec), Stream: rec.Stream.String(),
		Sequence: rec.Sequence, Time: rec.Time, Data: rec.Data, Dropped: rec.Dropped,
	}
	switch rec.Kind {
	case journal.KindData:
		ev.Kind = EventData
	case journal.KindDropped:
		ev.Kind = EventDropped
	case journal.KindTail:
		ev.Kind = EventTail
	default:
		return Event{}, false // the end: what became of the program is told by its result
	}
	return ev, true
}

const (
	// checkEvery is how often a reader finds out whether the program still runs.
	checkEvery = 100 * time.Millisecond
	// pollEvery is how often one looks for more that nobody tells of it, and toldEvery
	// how often one that is told looks all the same: a thousand readers of silent
	// programs must cost nothing to speak of.
	pollEvery = 20 * time.Millisecond
	toldEvery = 500 * time.Millisecond
)

// ended says whether the program's result is known, or never will be.
func (e *Events) ended() (bool, error) {
	if e.result != nil || e.dead {
		return true, nil
	}
	if time.Since(e.checked) < checkEvery {
		return false, nil
	}
	e.checked = time.Now()
	// Asked first: a run seen as dead has written its last.
	alive, err := e.engine.Alive(e.run)
	if err != nil {
		return false, err
	}
	rec, err := e.engine.LoadExec(e.run, e.exec)
	if err != nil {
		return false, err
	}
	e.result, e.dead = rec.Result, !alive
	return e.result != nil || e.dead, nil
}

// Next is Poll that waits for more, until ctx ends.
func (e *Events) Next(ctx context.Context) (Event, error) {
	every := pollEvery
	if e.changed != nil {
		every = toldEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		ev, err := e.Poll()
		if !errors.Is(err, ErrCaughtUp) {
			return ev, err
		}
		select {
		case <-e.changed:
			e.checked = time.Time{} // its exit, perhaps
		case <-tick.C:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// A cursor is an offset in the output record, and a sum by which one of another program
// is told apart from one of this. It is a place, not a permission.
const cursorBytes = 13

func writeCursor(offset int64, run, exec string) string {
	b := []byte{1}
	b = binary.BigEndian.AppendUint64(b, uint64(offset))
	b = binary.BigEndian.AppendUint32(b, cursorSum(b, run, exec))
	return base64.RawURLEncoding.EncodeToString(b)
}

func cursorSum(b []byte, run, exec string) uint32 {
	return crc32.ChecksumIEEE(append(append([]byte(run+"/"+exec+"/"), b...), 0))
}

// readCursor returns the offset, or over for a cursor behind the exit.
func readCursor(cursor, run, exec string) (offset int64, over bool, err error) {
	if cursor == "" {
		return 0, false, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(b) != cursorBytes || b[0] != 1 || cursorSum(b[:9], run, exec) != binary.BigEndian.Uint32(b[9:]) {
		return 0, false, engine.Refused("bad_cursor", "cannot read from cursor=%q: it is none of exec=%s in run=%s", cursor, exec, run).
			WithFix("use a cursor that came with one of its events, or none")
	}
	offset = int64(binary.BigEndian.Uint64(b[1:]))
	if offset < -1 {
		return 0, false, engine.Refused("bad_cursor", "cannot read from cursor=%q: it is before the beginning", cursor).
			WithFix("use a cursor that came with one of its events, or none")
	}
	return max(offset, 0), offset == -1, nil
}
