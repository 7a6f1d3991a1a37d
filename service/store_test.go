package service

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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
