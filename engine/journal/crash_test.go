package journal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLockOfARemovedRun proves that the lock of a run that was removed, and whose id was
// given out again, is not taken for the new one's.
func TestLockOfARemovedRun(t *testing.T) {
	state := t.TempDir()
	create(t, state, idA).Close()
	path := filepath.Join(RunDir(state, idA), lockName)
	old, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := sameFile(old, path); err != nil {
		t.Errorf("sameFile of the run's own lock = %v", err)
	}
	if err := Remove(state, idA); err != nil {
		t.Fatal(err)
	}
	create(t, state, idA)
	if err := sameFile(old, path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("sameFile of the earlier run's lock = %v, want fs.ErrNotExist", err)
	}
}

// TestReserveIsGivenUpForTheResult fills a file system and wants the exit record, and no
// other, to find the room that was kept.
func TestReserveIsGivenUpForTheResult(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	state := t.TempDir()
	if err := unix.Mount("reserve", state, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	defer unix.Unmount(state, unix.MNT_DETACH)
	r := create(t, state, idA)
	defer r.Close()
	if err := errors.Join(r.Reserve(), r.Write(Intent, 1, false), r.Write(Ended, 1, false)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "filler"), make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	if err := r.Write(Started, 1, true); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Write(started) on a full disk = %v, want ENOSPC", err)
	}
	if err := errors.Join(r.Write(Exit, 1, true), r.Write(Cleaned, 1, false)); err != nil {
		t.Errorf("the last records on a full disk: %v", err)
	}
	if got, want := names(t, r.Dir()), []string{"cleaned.json", "exit.json", "intent.json", "lock"}; !slices.Equal(got, want) {
		t.Errorf("the run holds %q, want %q", got, want)
	}
}

// TestRecordOfALaterVersionIsTold tells a record that is whole from one that is torn.
func TestRecordOfALaterVersionIsTold(t *testing.T) {
	r := create(t, t.TempDir(), idA)
	for text, newer := range map[string]bool{
		`{"schema":2,"run":"` + idA + `","record":"intent","value":1}`: true,
		`{"schema":0,"run":"` + idA + `","record":"intent","value":1}`: false,
		`{"schema":2,"run":`: false,
	} {
		if err := os.WriteFile(filepath.Join(r.Dir(), "intent.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := r.Read(Intent, nil)
		var bad *RecordError
		if !errors.As(err, &bad) || bad.Newer != newer {
			t.Errorf("Read of %s = %v, want *RecordError with Newer = %t", text, err, newer)
		}
	}
}
