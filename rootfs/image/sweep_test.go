package image

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSweepSparesTheLiving leaves an import that is under way alone, and removes what
// dead ones left, locked or not yet.
func TestSweepSparesTheLiving(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	for _, dir := range []string{".tmp-dead", ".tmp-unlocked", ".tmp-alive", "debian"} {
		if err := os.Mkdir(filepath.Join(s.Dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{".tmp-dead", ".tmp-alive"} {
		lock, err := takeLock(filepath.Join(s.Dir, dir, lockFile), os.O_CREATE, unix.LOCK_EX)
		if err != nil {
			t.Fatal(err)
		}
		if dir == ".tmp-alive" {
			defer lock.Close()
		} else {
			lock.Close()
		}
	}
	want := []string{".tmp-dead", ".tmp-unlocked"}
	for _, dryRun := range []bool{true, false} {
		if got, err := s.Sweep(dryRun); err != nil || !slices.Equal(got, want) {
			t.Errorf("Sweep(%t) = %q, %v, want %q", dryRun, got, err, want)
		}
	}
	if got, err := s.Sweep(false); err != nil || len(got) > 0 {
		t.Errorf("a second Sweep = %q, %v, want nothing", got, err)
	}
	for _, dir := range []string{".tmp-alive", "debian"} {
		if _, err := os.Lstat(filepath.Join(s.Dir, dir)); err != nil {
			t.Errorf("Sweep removed it: %v", err)
		}
	}
	if got, err := (Store{Dir: filepath.Join(s.Dir, "none")}).Sweep(false); err != nil || len(got) > 0 {
		t.Errorf("Sweep of a store that is not there = %q, %v", got, err)
	}
}
