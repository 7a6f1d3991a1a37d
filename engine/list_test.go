package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine/journal"
)

// put makes a run with these records and gives it back to nobody.
func put(t *testing.T, state, id string, records ...string) *journal.Run {
	t.Helper()
	run, err := journal.Create(state, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { run.Close() })
	for _, name := range records {
		if err := run.Write(name, struct{}{}, false); err != nil {
			t.Fatal(err)
		}
	}
	return run
}

func TestListIsNewestFirst(t *testing.T) {
	h := Host{StateDir: t.TempDir()}
	put(t, h.StateDir, "bbbbbbbbbbbbbbbb", journal.Intent).Close()
	put(t, h.StateDir, "cccccccccccccccc", journal.Intent)
	put(t, h.StateDir, "aaaaaaaaaaaaaaaa", journal.Intent)
	put(t, h.StateDir, "dddddddddddddddd").Close()
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(journal.RunDir(h.StateDir, "dddddddddddddddd"), old, old); err != nil {
		t.Fatal(err)
	}
	for want, list := range map[string]func() ([]Record, error){"acbd": h.List, "ac": h.Live} {
		records, err := list()
		got := ""
		for _, r := range records {
			got += r.ID[:1]
		}
		if got != want || err != nil {
			t.Errorf("the runs are %q, %v, want %q", got, err, want)
		}
	}
}

// TestOver finds what may be deleted by its age, and nothing that lives, is not cleaned up,
// has no result, cannot be read, or is a session.
func TestOver(t *testing.T) {
	h := Host{StateDir: t.TempDir()}
	const over, late, torn, session = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc", "dddddddddddddddd"
	put(t, h.StateDir, over, journal.Intent, journal.Exit, journal.Cleaned)
	put(t, h.StateDir, "eeeeeeeeeeeeeeee", journal.Intent, journal.Exit)
	put(t, h.StateDir, "ffffffffffffffff", journal.Intent, journal.Cleaned)
	put(t, h.StateDir, "gggggggggggggggg", journal.Intent)
	damaged := put(t, h.StateDir, torn, journal.Intent, journal.Exit, journal.Cleaned)
	stays := put(t, h.StateDir, session, journal.Exit, journal.Cleaned)
	err := errors.Join(
		os.WriteFile(filepath.Join(damaged.Dir(), "exit.json"), []byte("{"), 0o600),
		stays.Write(journal.Intent, Request{Session: &Session{}}, false),
	)
	if err != nil {
		t.Fatal(err)
	}
	between := time.Now()
	time.Sleep(2 * time.Millisecond)
	put(t, h.StateDir, late, journal.Intent, journal.Exit, journal.Cleaned)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, tt := range []struct {
		ctx    context.Context
		before time.Time
		want   []string
	}{
		{context.Background(), between, []string{over}},
		{context.Background(), time.Now(), []string{over, late}},
		{context.Background(), between.Add(-time.Hour), []string{}},
		{ended, time.Now(), []string{}},
	} {
		got, err := h.Over(tt.ctx, tt.before)
		if !slices.Equal(got, tt.want) || (err != nil) != (tt.ctx.Err() != nil) {
			t.Errorf("Over(%v) = %q, %v, want %q", tt.before, got, err, tt.want)
		}
	}
}

// TestCollectorKnows proves that a collector leaves out none that is not over, and that it
// does not look for ever: what has a cgroup or a directory it knows without a record.
func TestCollectorKnows(t *testing.T) {
	h := Host{StateDir: t.TempDir(), RunDir: t.TempDir()}
	hierarchy := cgroups.Hierarchy{Mount: h.RunDir, Root: filepath.Join(h.RunDir, "engine")}
	const over, torn, begun, loose, group = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc", "dddddddddddddddd", "eeeeeeeeeeeeeeee"
	put(t, h.StateDir, over, journal.Intent, journal.Exit, journal.Cleaned)
	damaged := put(t, h.StateDir, torn, journal.Intent, journal.Exit, journal.Cleaned)
	put(t, h.StateDir, begun, journal.Intent)
	err := errors.Join(
		os.WriteFile(filepath.Join(damaged.Dir(), "exit.json"), []byte("{"), 0o600),
		os.Mkdir(filepath.Join(h.RunDir, loose), 0o700),
		os.Mkdir(filepath.Join(h.RunDir, "layer-0"), 0o700),
		os.MkdirAll(hierarchy.Group(runGroup(group)).Dir, 0o700),
	)
	if err != nil {
		t.Fatal(err)
	}
	late, cancel := context.WithCancel(context.Background())
	cancel()
	for _, tt := range []struct {
		ctx  context.Context
		want []string
	}{
		{context.Background(), []string{torn, begun, loose, group}},
		{late, []string{loose, group}},
	} {
		if got, err := h.known(tt.ctx, hierarchy); !slices.Equal(got, tt.want) || !errors.Is(err, tt.ctx.Err()) {
			t.Errorf("known = %q, %v, want %q and %v", got, err, tt.want, tt.ctx.Err())
		}
	}
}
