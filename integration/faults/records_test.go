package faults

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
)

// lost starts a run whose monitor dies while the program runs, and returns its id.
func (b *bed) lost() string {
	b.t.Helper()
	id := journal.NewID()
	detached := append([]string{"run", "--detach"}, b.start("embedded", id)[1:]...)
	if o := b.engine([]string{"ENGINE_FAILPOINT=after-note-started@monitor"}, detached...); o.status != 0 {
		b.t.Fatalf("%s", o)
	}
	b.quiet(id)
	return id
}

// edit changes a record of the run by hand.
func (b *bed) edit(id, record string, change func(text string) string) {
	b.t.Helper()
	path := b.path("state/runs", id, record+".json")
	data, err := os.ReadFile(path)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(change(string(data))), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// TestAnotherBoot proves that a run of an earlier boot is interrupted, not lost.
func TestAnotherBoot(t *testing.T) {
	scope(t)
	b := newFailpointBed(t)
	id := b.lost()
	boot, err := journal.BootID()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"intent", "created", "started"} {
		b.edit(id, name, func(text string) string {
			return strings.ReplaceAll(text, boot, "00000000-0000-0000-0000-000000000000")
		})
	}
	b.gc()
	b.clean()
	o := b.engine(nil, "wait", id)
	if r := b.record(id); *r.Result.Reason != engine.ReasonInterrupted || o.status != 125 || !strings.Contains(o.stderr, "started again") {
		t.Errorf("reason = %s, want interrupted\n%s", reason(r), o)
	}
}

// TestTornRecords damages each record of a run that was lost, and of one that is over.
// The damage is told, the run has an end, and nothing is left.
func TestTornRecords(t *testing.T) {
	scope(t)
	b := newFailpointBed(t)
	for _, name := range []string{"intent", "created", "started", "exit", "cleaned"} {
		t.Run(name, func(t *testing.T) {
			b := b.of(t)
			id := ""
			if name == "exit" || name == "cleaned" {
				id = journal.NewID()
				b.engine(nil, b.start("embedded", id)...)
				b.quiet(id)
			} else {
				id = b.lost()
			}
			b.edit(id, name, func(text string) string { return text[:len(text)/2] })
			problem := "cannot read record " + name + " of run " + id
			if err := os.WriteFile(b.path("state/runs", id, "moved.json"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			stranger := "cannot tell what file=\"moved.json\" of run " + id + " is for"
			if o := b.engine(nil, "ps"); o.status != 0 || !strings.Contains(o.stderr, stranger) {
				t.Errorf("engine ps does not tell of a file that is no record:\n%s", o)
			}
			if o := b.engine(nil, "ps"); !strings.Contains(o.stdout, id) || !strings.Contains(o.stderr, problem) {
				t.Errorf("engine ps does not tell of it:\n%s", o)
			}
			if o := b.engine(nil, "inspect", id); o.status != 0 || !strings.Contains(o.stdout, problem) {
				t.Errorf("engine inspect does not tell of it:\n%s", o)
			}
			b.gc()
			b.clean()
			want := engine.ReasonLost
			if name == "cleaned" {
				want = engine.ReasonExited
			}
			r := b.record(id)
			if r == nil || r.Result == nil || *r.Result.Reason != want {
				t.Fatalf("record = %+v, want one with reason %s", r, want)
			}
			if o := b.engine(nil, "wait", id); o.status != engine.ExitStatus(*r.Result) {
				t.Errorf("want status %d\n%s", engine.ExitStatus(*r.Result), o)
			}
			if o := b.engine(nil, "rm", id); o.status != 0 {
				t.Errorf("%s", o)
			}
		})
	}
}

// TestRecordsOfALaterVersion proves that gc frees the host of a run that a later engine
// recorded, and leaves its record alone.
func TestRecordsOfALaterVersion(t *testing.T) {
	scope(t)
	b := newFailpointBed(t)
	id := b.lost()
	for _, name := range []string{"intent", "created", "started"} {
		b.edit(id, name, func(text string) string { return strings.Replace(text, `"schema":1`, `"schema":2`, 1) })
	}
	before := b.list("state/runs/" + id)
	if actions := b.gc(); len(actions) != 1 || !strings.Contains(actions[0].Why, "schema 2") {
		t.Errorf("gc did %+v, want one thing", actions)
	}
	if after := b.list("state/runs/" + id); !slices.Equal(before, after) {
		t.Errorf("the record was %q, and is %q", before, after)
	}
	if slices.Contains(b.list("run"), id) {
		t.Errorf("the run's directory is still there")
	}
	if o := b.engine(nil, "rm", id); o.status != 0 {
		t.Errorf("%s", o)
	}
	b.clean()
}

// TestGCSpares proves that gc leaves a run alone that is alive, and directories that
// are not its own, and removes what crashes leave elsewhere.
func TestGCSpares(t *testing.T) {
	scope(t)
	b := newBed(t)
	id := journal.NewID()
	if o := b.engine(nil, append([]string{"run", "--detach"}, b.startJob("embedded", id, "echo up; sleep 300")[1:]...)...); o.status != 0 || o.stdout != id+"\n" {
		t.Fatalf("%s", o)
	}
	for b.engine(nil, "logs", id).stdout != "up\n" {
		time.Sleep(10 * time.Millisecond)
	}
	old := time.Now().Add(-time.Hour)
	for _, dir := range []string{"run/layer-00", "run/somebody", "state/images/.tmp-1", "state/images/debian", "state/runs/.new-x", "state/runs/.old-x", "state/runs/notes"} {
		if err := errors.Join(os.MkdirAll(b.path(dir), 0o755), os.Chtimes(b.path(dir), old, old)); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"run/version-runc-1-2-3-4.99", "run/layer-stamp-00.new", "state/receipts/new-1"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(b.path(file)), 0o700), os.WriteFile(b.path(file), nil, 0o600), os.Chtimes(b.path(file), old, old)); err != nil {
			t.Fatal(err)
		}
	}
	objects := func() []string {
		var names []string
		for _, a := range b.gc() {
			if a.Action != "remove" {
				t.Errorf("gc did %+v", a)
			}
			names = append(names, filepath.Base(a.Object))
		}
		slices.Sort(names)
		return names
	}
	if got, want := objects(), []string{".new-x", ".old-x", ".tmp-1", "layer-stamp-00.new", "new-1", "version-runc-1-2-3-4.99"}; !slices.Equal(got, want) {
		t.Errorf("gc removed %q, want %q: a layer stays while there is a run", got, want)
	}
	if o := b.engine(nil, "kill", id); o.status != 0 {
		t.Errorf("%s", o)
	}
	if o := b.engine(nil, "wait", id); o.status != 130 {
		t.Errorf("want status 130\n%s", o)
	}
	b.quiet(id)
	if got, want := objects(), []string{"layer-00"}; !slices.Equal(got, want) {
		t.Errorf("gc removed %q, want %q", got, want)
	}
	for _, dir := range []string{"run/somebody", "state/images/debian", "state/runs/notes"} {
		if _, err := os.Lstat(b.path(dir)); err != nil {
			t.Errorf("gc removed what is not its own: %v", err)
		}
	}
}

// TestStuckIsQuarantined proves that gc reports what it cannot remove, does the rest, and
// keeps the uids of the one from others.
func TestStuckIsQuarantined(t *testing.T) {
	scope(t)
	b := newFailpointBed(t)
	stuck, other := b.lost(), b.lost()
	file := b.path("run", stuck, "held")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	immutable(t, file, true)
	defer immutable(t, file, false)
	o := b.engine(nil, "gc")
	if o.status != 125 || !strings.Contains(o.stdout, "stuck "+b.groups.Root) || !strings.Contains(o.stdout, stuck) || !strings.Contains(o.stderr, "cannot clean up everything") {
		t.Errorf("gc does not report what is stuck:\n%s", o)
	}
	if r := b.record(other); r == nil || r.State != engine.Removed {
		t.Errorf("the other run was not cleaned up: %+v", r)
	}
	if r := b.record(stuck); r == nil || r.State != engine.Stopped || *r.Result.Reason != engine.ReasonLost {
		t.Errorf("record = %+v, want one that is stopped, and lost", r)
	}
	id := journal.NewID()
	b.engine(nil, b.start("embedded", id)...)
	slots := 0
	for _, slot := range b.list("run/uids") {
		if owner, err := os.ReadFile(b.path("run/uids", slot)); err == nil && string(owner) == stuck {
			slots++
		}
	}
	if slots != 1 {
		t.Errorf("%d uid blocks belong to the run that is stuck, want 1", slots)
	}
	immutable(t, file, false)
	b.quiet(id)
	b.gc()
	b.clean()
}

// immutable makes a file one that nobody can remove, or takes that back.
func immutable(t *testing.T, path string, on bool) {
	t.Helper()
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const immutableFlag = 0x10
	flags := 0
	if on {
		flags = immutableFlag
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags); err != nil {
		if on {
			t.Skipf("this file system has no immutable files: %v", err)
		}
		t.Fatal(err)
	}
}
