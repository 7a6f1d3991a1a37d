package service

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/service/outbox"
)

// callbackEvent is what is sent of a sandbox. The order is the one in which things went
// on record: created, ready, for each exec started, output and exit, ended.
type callbackEvent struct {
	Type    string             `json:"type"` // created, ready, exec.started, exec.output, exec.exit, ended, dropped
	Time    time.Time          `json:"time"`
	Name    string             `json:"name,omitempty"`
	Owner   string             `json:"owner,omitempty"`
	ExecID  string             `json:"execId,omitempty"`
	Output  []outputPiece      `json:"output,omitempty"`
	Exec    *engine.ExecResult `json:"result,omitempty"`  // of exec.exit; missing if its session was lost
	Sandbox *engine.Result     `json:"sandbox,omitempty"` // of ended, without output
	Events  int                `json:"events,omitempty"`  // of dropped: how many
	Bytes   int64              `json:"bytes,omitempty"`   // of dropped: output that was in them
	Why     string             `json:"why,omitempty"`
}

// outputPiece is an Event of a program's output.
type outputPiece struct {
	Stream   string    `json:"stream"`
	Sequence uint64    `json:"sequence,omitempty"`
	Time     time.Time `json:"time"`
	Data     []byte    `json:"data,omitempty"` // base64
	Dropped  int64     `json:"dropped,omitempty"`
}

func encode(e callbackEvent) []byte {
	data, err := json.Marshal(e)
	if err != nil {
		panic("internal error: an event that has no JSON: " + err.Error())
	}
	return data
}

func levelOf(repeated bool) slog.Level {
	if repeated {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

const (
	feedEvery = 100 * time.Millisecond
	// feedIdle is how often it looks while nothing runs.
	feedIdle = 250 * time.Millisecond
	// feedBatch is how much output goes into one event.
	feedBatch = 256 << 10
	// feedPause is for how long a full outbox is left alone.
	feedPause = 200 * time.Millisecond
)

// mark is how far the events of one thing got: of the sandbox itself, or of an exec. It
// is written together with each event, so each is made once, whatever dies.
type mark struct {
	Stage  string `json:"stage"`            // the last event's type
	Cursor string `json:"cursor,omitempty"` // of an exec's output
}

// feeder makes events of what is on record of a sandbox.
type feeder struct {
	m     *Manager
	r     record
	box   *outbox.Box
	marks map[string]mark
	raw   map[string]bool // programs that have no events
	// lost counts what found no room once there was no time left to wait for it.
	lost struct {
		events int
		bytes  int64
	}
}

func newFeeder(m *Manager, r record, box *outbox.Box) *feeder {
	f := &feeder{m: m, r: r, box: box, marks: map[string]mark{}, raw: map[string]bool{}}
	for key, data := range box.Marks() {
		var k mark
		if json.Unmarshal(data, &k) == nil {
			f.marks[key] = k
		}
	}
	return f
}

// run feeds until the sandbox's last event is in the outbox.
func (f *feeder) run(ctx context.Context) error {
	for {
		over, busy, err := f.pass(ctx)
		if err != nil || over {
			return err
		}
		wait := feedIdle
		if busy {
			wait = feedEvery
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pass makes the events that are due.
func (f *feeder) pass(ctx context.Context) (over, busy bool, err error) {
	// Read before the execs are: those of a run that has ended are all on record.
	run, err := f.m.engine.Load(f.r.ID)
	gone := isKind(err, "not_found")
	if err != nil && !gone {
		return false, false, err
	}
	now, err := f.m.store.read(f.r.Name)
	torn := err != nil || now.ID != f.r.ID || now.Ending
	if f.marks[""].Stage == "" {
		if err := f.add(ctx, "", mark{Stage: "created"}, callbackEvent{Type: "created", Time: f.r.CreatedAt, Name: f.r.Name, Owner: f.r.Owner}); err != nil {
			return false, false, err
		}
	}
	if gone && !torn {
		return false, false, nil // about to be started, or just torn down: then there is an end soon
	}
	if f.marks[""].Stage == "created" && run.Started != nil {
		if err := f.add(ctx, "", mark{Stage: "ready"}, callbackEvent{Type: "ready", Time: *run.Started}); err != nil {
			return false, false, err
		}
	}
	if !gone {
		if busy, err = f.execs(ctx, run); err != nil {
			return false, false, err
		}
	}
	if run.Result == nil && !gone {
		return false, busy, nil
	}
	return true, false, f.finish(ctx, run)
}

// finish makes the last event, and says that there will be no more.
func (f *feeder) finish(ctx context.Context, run engine.Record) error {
	if f.lost.events > 0 {
		err := f.add(ctx, "", f.marks[""], callbackEvent{Type: "dropped", Time: time.Now(), Events: f.lost.events, Bytes: f.lost.bytes, Why: "the outbox was full"})
		if err != nil {
			return err
		}
	}
	if f.marks[""].Stage != "ended" {
		ended := callbackEvent{Type: "ended", Time: time.Now(), Sandbox: run.Result}
		if run.Result != nil {
			ended.Time = endedAt(run)
		}
		if err := f.add(ctx, "", mark{Stage: "ended"}, ended); err != nil {
			return err
		}
	}
	return writeFile(f.m.callbacks.path(f.r.ID), completeName, nil)
}

// execs makes the events of all programs.
func (f *feeder) execs(ctx context.Context, run engine.Record) (busy bool, err error) {
	ids, err := f.m.engine.ExecIDs(f.r.ID)
	if isKind(err, "not_found") {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	due, err := f.due(ids)
	if err != nil {
		return false, err
	}
	for _, x := range due {
		busy = busy || x.Result == nil
		if err := f.exec(ctx, x, run.Result != nil); err != nil {
			return busy, err
		}
	}
	return busy, f.forget(ctx, ids)
}

// due are the programs of which events are to be made, in the order in which they went on
// record. Those that are done with are not read again: a sandbox may keep a thousand.
func (f *feeder) due(ids []string) ([]engine.ExecRecord, error) {
	var list []engine.ExecRecord
	for _, id := range ids {
		if f.raw[id] || f.marks[id].Stage == "exec.exit" {
			continue
		}
		x, err := f.m.engine.LoadExec(f.r.ID, id)
		switch {
		case isKind(err, "not_found"): // removed since, or never begun
		case err != nil:
			return nil, err
		case x.Exec.Raw:
			f.raw[id] = true
		default:
			list = append(list, x)
		}
	}
	slices.SortStableFunc(list, func(a, b engine.ExecRecord) int { return a.Started.Compare(b.Started) })
	return list, nil
}

// forget drops the marks of programs that the engine keeps no record of any more. One
// whose exit was not seen by then has one without a result.
func (f *feeder) forget(ctx context.Context, ids []string) error {
	onRecord := map[string]bool{"": true}
	for _, id := range ids {
		onRecord[id] = true
	}
	maps.DeleteFunc(f.raw, func(id string, _ bool) bool { return !onRecord[id] })
	for id, k := range f.marks {
		if onRecord[id] {
			continue
		}
		if k.Stage != "exec.exit" {
			if err := f.add(ctx, id, mark{Stage: "exec.exit"}, callbackEvent{Type: "exec.exit", Time: time.Now(), ExecID: id}); err != nil {
				return err
			}
		}
		delete(f.marks, id)
		if err := f.box.Mark(id, nil); err != nil {
			return err
		}
	}
	return nil
}

// exec makes the events of one program, as far as they are due. over says that its
// sandbox has ended, and so the program.
func (f *feeder) exec(ctx context.Context, x engine.ExecRecord, over bool) error {
	k := f.marks[x.ID]
	if k.Stage == "" {
		k.Stage = "exec.started"
		if err := f.add(ctx, x.ID, k, callbackEvent{Type: "exec.started", Time: x.Started, ExecID: x.ID}); err != nil {
			return err
		}
	}
	events := &Events{engine: f.m.engine, run: f.r.ID, exec: x.ID, result: x.Result, dead: over}
	var err error
	if events.offset, events.over, err = readCursor(k.Cursor, f.r.ID, x.ID); err != nil {
		return err
	}
	defer events.Close()
	for {
		batch := callbackEvent{Type: "exec.output", ExecID: x.ID}
		size, exited, err := gather(events, &batch, &k)
		if err != nil {
			return err
		}
		if len(batch.Output) > 0 {
			batch.Time = batch.Output[len(batch.Output)-1].Time
			if err := f.add(ctx, x.ID, k, batch); err != nil {
				return err
			}
		}
		if exited {
			exit := callbackEvent{Type: "exec.exit", Time: time.Now(), ExecID: x.ID, Exec: x.Result}
			return f.add(ctx, x.ID, mark{Stage: "exec.exit"}, exit)
		}
		if size == 0 {
			return nil
		}
	}
}

// gather fills an event with output, and says whether the program's exit follows.
func gather(events *Events, batch *callbackEvent, k *mark) (size int, exited bool, err error) {
	for size < feedBatch {
		ev, err := events.Poll()
		switch {
		case errors.Is(err, ErrCaughtUp), errors.Is(err, io.EOF):
			return size, false, nil
		case err != nil:
			return size, false, err
		case ev.Kind == EventExit:
			return size, true, nil
		}
		batch.Output = append(batch.Output, outputPiece{ev.Stream, ev.Sequence, ev.Time, slices.Clone(ev.Data), ev.Dropped})
		k.Cursor = ev.Cursor
		size += len(ev.Data) + 64
	}
	return size, false, nil
}

// add puts one event into the outbox. While the sandbox lives it waits for room: what is
// not taken stays on record. Once it is being torn down only the order of its life has
// room kept for it, and output is counted as lost.
func (f *feeder) add(ctx context.Context, key string, k mark, e callbackEvent) error {
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	body := encode(e)
	for {
		ending := f.ending()
		_, err := f.box.Append(body, key, data, e.Type != "exec.output" && (key == "" || ending))
		if err == nil {
			f.marks[key] = k
			return nil
		}
		if !errors.Is(err, outbox.ErrFull) {
			return err
		}
		if ending {
			f.lost.events++
			for _, p := range e.Output {
				f.lost.bytes += int64(len(p.Data))
			}
			f.marks[key] = k
			return f.box.Mark(key, data)
		}
		select {
		case <-time.After(feedPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ending says whether what events are made from is about to be removed.
func (f *feeder) ending() bool {
	r, err := f.m.store.read(f.r.Name)
	return err != nil || r.ID != f.r.ID || r.Ending
}
