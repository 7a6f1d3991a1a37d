package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/service/admission"
)

// fake is an engine without sandboxes. All it knows is in a directory, so that several
// processes see the same runs, as they do with the real one. A run lives for as long as
// the file "alive" is there.
type fake struct {
	dir string

	mu     sync.Mutex
	refuse error                     // of the next Start
	notUp  error                     // of the next AwaitReady
	onExec func(engine.Exec) []piece // what a program writes

	execLoads atomic.Int64 // calls of LoadExec
}

type piece struct {
	stream journal.Stream
	text   string
}

func (f *fake) run(id string, rest ...string) string {
	return filepath.Join(append([]string{f.dir, "runs", id}, rest...)...)
}

// note adds a line to the log of what was done.
func (f *fake) note(format string, args ...any) {
	log, err := os.OpenFile(filepath.Join(f.dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(log, format+"\n", args...)
	log.Close()
}

// count is how often something was done.
func (f *fake) count(what string) int {
	data, _ := os.ReadFile(filepath.Join(f.dir, "log"))
	n := 0
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, what+" ") {
			n++
		}
	}
	return n
}

// tidiesFor is longer than a monitor is alive that has told its result.
const tidiesFor = 5 * time.Second

// living are the ids of live runs.
func (f *fake) living() []string {
	found, _ := filepath.Glob(f.run("*", "alive"))
	ids := []string{}
	for _, path := range found {
		if id := filepath.Base(filepath.Dir(path)); journal.ValidID(id) {
			if alive, _ := f.Alive(id); alive {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

func notFound(id string) error { return engine.Refused("not_found", "cannot find run=%s", id) }

func put(path string, v any) {
	data, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(path+".tmp", data, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		panic(err)
	}
}

func get(path string, v any) bool {
	data, err := os.ReadFile(path)
	return err == nil && json.Unmarshal(data, v) == nil
}

func (f *fake) Start(ctx context.Context, req engine.Request, secrets []engine.Secret) error {
	f.mu.Lock()
	refuse := f.refuse
	f.refuse = nil
	f.mu.Unlock()
	if refuse != nil {
		return refuse
	}
	tmp := f.run(".new-" + journal.NewID())
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return err
	}
	put(filepath.Join(tmp, "request"), req)
	put(filepath.Join(tmp, "alive"), time.Now())
	if err := os.Rename(tmp, f.run(req.ID)); err != nil {
		os.RemoveAll(tmp)
		return nil // joined
	}
	f.note("start %s", req.ID)
	return nil
}

func (f *fake) Load(id string) (engine.Record, error) {
	r := engine.Record{ID: id, State: engine.Running}
	if !get(f.run(id, "request"), &r.Request) {
		return r, notFound(id)
	}
	info, err := os.Stat(f.run(id, "request"))
	if err != nil {
		return r, notFound(id)
	}
	started := info.ModTime()
	r.Created, r.Started = started, &started
	_, err = os.Stat(f.run(id, "alive"))
	r.Alive = err == nil
	// Whoever wrote the result may have been killed before it took the other file away.
	if told, err := os.Stat(f.run(id, "result")); err == nil && time.Since(told.ModTime()) > tidiesFor {
		r.Alive = false
	}
	var result engine.Result
	if get(f.run(id, "result"), &result) {
		r.Result, r.State = &result, engine.Removed
	}
	return r, nil
}

func (f *fake) AwaitReady(ctx context.Context, id string) (engine.Record, error) {
	f.mu.Lock()
	notUp := f.notUp
	f.notUp = nil
	f.mu.Unlock()
	if notUp != nil {
		return engine.Record{}, notUp
	}
	r, err := f.Load(id)
	if err == nil && r.Result != nil {
		err = engine.Refused("not_running", "cannot wait for run=%s: it has ended", id)
	}
	return r, err
}

func (f *fake) Alive(id string) (bool, error) {
	_, err := os.Stat(f.run(id, "alive"))
	_, over := os.Stat(f.run(id, "result"))
	return err == nil && over != nil, nil
}

func (f *fake) Live() (live []engine.Record, err error) {
	ids, err := os.ReadDir(filepath.Join(f.dir, "runs"))
	for _, e := range ids {
		if alive, _ := f.Alive(e.Name()); alive {
			if r, err := f.Load(e.Name()); err == nil { // otherwise it was removed meanwhile
				live = append(live, r)
			}
		}
	}
	return live, err
}

// end is what a monitor does when a run is over; with lost it is what remains of one.
func (f *fake) end(id string, reason engine.Reason) {
	f.tell(id, reason)
	os.Remove(f.run(id, "alive"))
}

// tell is the first half of end: the result is known, and the monitor still tidies up.
func (f *fake) tell(id string, reason engine.Reason) {
	put(f.run(id, "result"), engine.Result{ID: id, Reason: &reason, OOMKilled: reason == engine.ReasonOOM})
}

func (f *fake) lose(id string) { os.Remove(f.run(id, "alive")) }

func (f *fake) Await(ctx context.Context, id string) (engine.Record, error) {
	if alive, _ := f.Alive(id); !alive {
		f.end(id, engine.ReasonLost)
	}
	return f.Load(id)
}

func (f *fake) Kill(ctx context.Context, id string) error {
	r, err := f.Load(id)
	if err != nil {
		return err
	}
	if r.Result != nil {
		return engine.Refused("not_running", "cannot kill run=%s: it has ended", id)
	}
	f.note("kill %s", id)
	f.end(id, engine.ReasonCancelled)
	return nil
}

func (f *fake) Remove(id string) error {
	r, err := f.Load(id)
	if err != nil {
		return err
	}
	if r.Alive {
		f.note("keep %s", id)
		return engine.Refused("running", "cannot remove run=%s: it is alive", id)
	}
	if err := os.Rename(f.run(id), f.run(".old-"+journal.NewID())); err != nil {
		return notFound(id)
	}
	f.note("remove %s", id)
	return nil
}

// Exec writes what onExec says and exits with 0.
func (f *fake) Exec(ctx context.Context, id string, e engine.Exec) (Conn, error) {
	if alive, _ := f.Alive(id); !alive {
		return nil, engine.Refused("not_running", "cannot start exec=%s: run=%s has ended", e.ID, id)
	}
	os.MkdirAll(f.run(id, "exec"), 0o700)
	rec := engine.ExecRecord{ID: e.ID, Exec: e, Started: time.Now()}
	put(f.run(id, "exec", e.ID+".rec"), rec)
	out, err := journal.CreateOutput(f.ExecOutputPath(id, e.ID), 1<<20)
	if err != nil {
		return nil, err
	}
	for _, p := range f.onExec(e) {
		if err := out.Append(p.stream, []byte(p.text)); err != nil {
			return nil, err
		}
	}
	if err := out.Close(false); err != nil {
		return nil, err
	}
	code := 0
	rec.Result = &engine.ExecResult{Reason: engine.ReasonExited, ExitCode: &code}
	put(f.run(id, "exec", e.ID+".rec"), rec)
	return nil, nil
}

func (f *fake) Attach(ctx context.Context, id, execID string) (Conn, error) {
	return nil, engine.Refused("not_running", "cannot attach to exec=%s", execID)
}

func (f *fake) LoadExec(id, execID string) (engine.ExecRecord, error) {
	f.execLoads.Add(1)
	var r engine.ExecRecord
	if !get(f.run(id, "exec", execID+".rec"), &r) {
		return r, notFound(execID)
	}
	return r, nil
}

func (f *fake) ExecIDs(id string) ([]string, error) {
	found, _ := filepath.Glob(f.run(id, "exec", "*.rec"))
	var ids []string
	for _, path := range found {
		ids = append(ids, strings.TrimSuffix(filepath.Base(path), ".rec"))
	}
	return ids, nil
}

func (f *fake) Execs(id string) ([]engine.ExecRecord, error) {
	ids, _ := f.ExecIDs(id)
	var all []engine.ExecRecord
	for _, exec := range ids {
		if r, err := f.LoadExec(id, exec); err == nil {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b engine.ExecRecord) int { return a.Started.Compare(b.Started) })
	return all, nil
}

func (f *fake) ExecOutputPath(id, execID string) string { return f.run(id, "exec", execID+".out") }

func (f *fake) Pause(ctx context.Context, id string) error {
	put(f.run(id, "paused"), true)
	return nil
}

func (f *fake) Resume(ctx context.Context, id string) error { return os.Remove(f.run(id, "paused")) }

func (f *fake) Renew(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
	return time.Now().Add(ttl), nil
}

func (f *fake) Usage(id string) (engine.LiveUsage, error) {
	_, err := os.Stat(f.run(id, "paused"))
	return engine.LiveUsage{Paused: err == nil}, nil
}

// world is a state directory with a fake engine.
type world struct {
	dir string
	*fake
	config Config
}

func newWorld(t testing.TB) *world {
	dir := t.TempDir()
	return worldIn(dir)
}

func worldIn(dir string) *world {
	w := &world{dir: dir, fake: &fake{dir: filepath.Join(dir, "fake")}}
	os.MkdirAll(filepath.Join(w.fake.dir, "runs"), 0o700)
	w.config = Config{StateDir: filepath.Join(dir, "state"), Image: "box", Admission: admission.Config{Total: admission.Limits{Sandboxes: 300}}}
	return w
}

func (w *world) manager(t testing.TB) *Manager {
	t.Helper()
	m, err := New(w.config, w.fake)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func spec(name, owner string) Spec {
	return Spec{Name: name, Owner: owner, CPUs: 1, MemoryMB: 256, Labels: map[string]string{"name": name}}
}

func mustCreate(t testing.TB, m *Manager, s Spec) Sandbox {
	t.Helper()
	sb, _, err := m.Create(t.Context(), s)
	if err != nil {
		t.Fatalf("Create(%s) = %v", s.Name, err)
	}
	return sb
}

// until waits for a condition, with a bound.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never came true that %s", what)
		}
	}
}

// wantNothingLeft compares what is on disk and held with nothing at all.
func (w *world) wantNothingLeft(t testing.TB, m *Manager) {
	t.Helper()
	if ids := w.living(); len(ids) > 0 {
		t.Errorf("runs that live: %v", ids)
	}
	for _, dir := range []string{"sandboxes", "callbacks"} {
		var entries []os.DirEntry
		for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			// Another process, or this one's background, may be at the last step.
			var err error
			if entries, err = os.ReadDir(filepath.Join(w.config.StateDir, dir)); err == nil && len(entries) == 0 {
				break
			}
		}
		if len(entries) > 0 {
			t.Errorf("left in %s: %v", dir, entries)
		}
	}
	if s := m.Gate().Snapshot(); s.Used != (admission.Limits{}) || s.Waiting != 0 {
		t.Errorf("still held: %+v", s)
	}
}
