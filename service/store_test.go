package service

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
)

// TestNameHasOneHolder takes, removes and gives up one name's lock as fast as it can.
// Nobody holds it together with somebody else, or loses the directory under it.
func TestNameHasOneHolder(t *testing.T) {
	s, err := openStore(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	var holders, taken atomic.Int64
	var wg sync.WaitGroup
	stop := time.Now().Add(time.Second)
	for i := range 8 {
		wg.Go(func() {
			for n := i; time.Now().Before(stop); n++ {
				e, err := s.open(t.Context(), "work")
				if err != nil {
					t.Error(err)
					return
				}
				if h := holders.Add(1); h != 1 {
					t.Errorf("%d hold the name", h)
				}
				taken.Add(1)
				path := filepath.Join(s.path("work"), recordName)
				if n%3 > 0 {
					err = os.WriteFile(path, []byte("{}"), 0o600)
				}
				holders.Add(-1)
				if err == nil && n%3 == 1 {
					err = e.remove() // which gives the name up
				}
				if err != nil {
					t.Errorf("a holder's directory was taken away: %v", err)
				}
				e.close()
			}
		})
	}
	wg.Wait()
	if taken.Load() < 100 {
		t.Errorf("the name was taken only %d times: nothing was proved", taken.Load())
	}
}

// TestLatecomersDoNotKeepTrash has others make locks in a directory while it is removed.
func TestLatecomersDoNotKeepTrash(t *testing.T) {
	for range 300 {
		dir := filepath.Join(t.TempDir(), "old")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 3 {
					if f, err := os.Create(filepath.Join(dir, lockName+string(rune('a'+i)))); err == nil {
						f.Close()
					}
				}
			})
		}
		if err := removeTrash(dir); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if _, err := os.Stat(dir); err == nil {
			t.Fatal("it is still there")
		}
	}
}

// TestRecordsAreReadOnce lists records again and again: one that has changed is read anew,
// one that has not is not, and environments are not kept.
func TestRecordsAreReadOnce(t *testing.T) {
	s, err := openStore(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.open(t.Context(), "work")
	if err != nil {
		t.Fatal(err)
	}
	id := journal.NewID()
	r := record{Schema: recordSchema, ID: id, Name: "work", Request: engine.Request{ID: id, Env: []string{"A=large"}, Session: &engine.Session{}}}
	all := func() []record {
		t.Helper()
		list, err := s.all(func(name string, err error) { t.Errorf("%s: %v", name, err) })
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	for _, ending := range []bool{false, true} {
		r.Ending = ending
		if err := e.write(r); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if list := all(); len(list) != 1 || list[0].Ending != ending || list[0].Request.Env != nil {
				t.Errorf("listed %+v, want one whose end is %v, without an environment", list, ending)
			}
		}
	}
	known := s.seen.by["work"]
	known.r.Owner = "of what was read before"
	s.seen.by["work"] = known
	if list := all(); list[0].Owner != known.r.Owner {
		t.Error("a record that has not changed was read again")
	}
	if whole, err := s.read("work"); err != nil || len(whole.Request.Env) != 1 {
		t.Errorf("the record is %+v, %v", whole, err)
	}
	if err := e.remove(); err != nil {
		t.Fatal(err)
	}
	if e.close(); len(all()) != 0 || len(s.seen.by) != 0 {
		t.Errorf("%d are known of nothing", len(s.seen.by))
	}
}
