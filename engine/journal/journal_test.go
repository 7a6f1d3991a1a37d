package journal

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	idA = "aaaaaaaaaaaaaaa1"
	idB = "bbbbbbbbbbbbbbb2"
	idC = "ccccccccccccccc3"
)

func create(t *testing.T, state, id string) *Run {
	t.Helper()
	r, err := Create(state, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func alive(t *testing.T, state, id string) bool {
	t.Helper()
	ok, err := Alive(state, id)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func TestNewIDIsValidAndFresh(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewID()
		if !ValidID(id) || seen[id] {
			t.Fatalf("NewID() = %q, want a fresh valid id", id)
		}
		seen[id] = true
	}
}

func TestBadIDsReachNoFile(t *testing.T) {
	state := t.TempDir()
	for _, id := range []string{"", "..", "../../etc/passwd1", "AAAAAAAAAAAAAAA1", "aaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaa1a", ".new-aaaaaaaaaaa"} {
		for name, f := range map[string]func() error{
			"Create": func() error { _, err := Create(state, id); return err },
			"Open":   func() error { _, err := Open(state, id); return err },
			"Claim":  func() error { _, err := Claim(state, id); return err },
			"Alive":  func() error { _, err := Alive(state, id); return err },
			"Remove": func() error { return Remove(state, id) },
		} {
			if err := f(); !errors.Is(err, ErrBadID) {
				t.Errorf("%s(%q) = %v, want ErrBadID", name, id, err)
			}
		}
	}
}

func TestCreateIsExclusive(t *testing.T) {
	state := t.TempDir()
	create(t, state, idA)
	if _, err := Create(state, idA); !errors.Is(err, ErrExists) {
		t.Errorf("second Create = %v, want ErrExists", err)
	}
	if got := names(t, filepath.Join(state, "runs")); !slices.Equal(got, []string{idA}) {
		t.Errorf("runs holds %q, want the run alone", got)
	}
}

func TestCreateRaceHasOneWinner(t *testing.T) {
	state := t.TempDir()
	const racers = 16
	won := make(chan *Run, racers)
	for range racers {
		go func() {
			r, err := Create(state, idA)
			if err != nil && !errors.Is(err, ErrExists) {
				t.Errorf("Create = %v, want a run or ErrExists", err)
			}
			won <- r
		}()
	}
	winners := 0
	for range racers {
		if r := <-won; r != nil {
			winners++
			defer r.Close()
		}
	}
	if winners != 1 {
		t.Errorf("%d racers created the run, want 1", winners)
	}
}

func TestModes(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	state := filepath.Join(t.TempDir(), "lib", "engine")
	r := create(t, state, idA)
	if err := r.Write(Intent, 1, true); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{
		state: 0o700, filepath.Join(state, "runs"): 0o700, r.Dir(): 0o700,
		filepath.Join(r.Dir(), "intent.json"): 0o600, filepath.Join(r.Dir(), "lock"): 0o600,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("mode of %s = %o, want %o", path, got, want)
		}
	}
}

func TestAliveFollowsTheLock(t *testing.T) {
	state := t.TempDir()
	if alive(t, state, idA) {
		t.Error("a run that does not exist is alive")
	}
	r := create(t, state, idA)
	for range 2 { // looking changes nothing
		if !alive(t, state, idA) {
			t.Error("a created run is not alive")
		}
	}
	r.Close()
	if alive(t, state, idA) {
		t.Error("a run whose owner has gone is alive")
	}
}

// TestProbesNeverDisturbCreate lets probes run against runs as they are made.
func TestProbesNeverDisturbCreate(t *testing.T) {
	state := t.TempDir()
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			ids, err := List(state)
			if err != nil {
				t.Error(err)
			}
			for _, id := range ids {
				if ok, err := Alive(state, id); err != nil || !ok {
					t.Errorf("run %s that was just made: alive = %v, %v, want true", id, ok, err)
				}
			}
		}
	}()
	for range 200 {
		create(t, state, NewID())
	}
	close(stop)
	<-done
}

func TestClaimSurvivesProbes(t *testing.T) {
	state := t.TempDir()
	create(t, state, idA).Close()
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := Alive(state, idA); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	for range 100 {
		r, err := Claim(state, idA)
		if err != nil {
			t.Fatalf("Claim of a dead run = %v", err)
		}
		r.Close()
	}
	close(stop)
	<-done
}

// TestHelperHoldsLock is the child of the tests below, not a test.
func TestHelperHoldsLock(t *testing.T) {
	state := os.Getenv("JOURNAL_TEST_STATE")
	if state == "" {
		t.Skip("runs as the child of another test")
	}
	r, err := Adopt(state, idA, os.NewFile(3, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Write(Created, "child", false); err != nil {
		t.Fatal(err)
	}
	os.Stdin.Read(make([]byte, 1)) //nolint:errcheck // waits for its parent to close it
}

func TestLockIsHandedDown(t *testing.T) {
	state := t.TempDir()
	r := create(t, state, idA)
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperHoldsLock$")
	cmd.Env = append(os.Environ(), "JOURNAL_TEST_STATE="+state)
	cmd.ExtraFiles = []*os.File{r.Lock()}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if !alive(t, state, idA) {
		t.Error("the run is not alive while its child holds the lock")
	}
	if _, err := Claim(state, idA); !errors.Is(err, ErrAlive) {
		t.Errorf("Claim of a live run = %v, want ErrAlive", err)
	}
	if err := Remove(state, idA); !errors.Is(err, ErrAlive) {
		t.Errorf("Remove of a live run = %v, want ErrAlive", err)
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("child: %v", err)
	}
	if alive(t, state, idA) {
		t.Error("the run is alive after its last holder has gone")
	}
	if got, _ := r.Last(); got != Created {
		t.Errorf("Last() = %q, want %q", got, Created)
	}
}

func TestAdoptRefusesAnotherLock(t *testing.T) {
	state := t.TempDir()
	create(t, state, idA)
	b := create(t, state, idB)
	if _, err := Adopt(state, idA, b.Lock()); err == nil {
		t.Error("Adopt took the lock of another run")
	}
	fresh, err := os.Open(filepath.Join(RunDir(state, idA), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	if _, err := Adopt(state, idA, fresh); !errors.Is(err, ErrAlive) {
		t.Errorf("Adopt with a descriptor of its own = %v, want ErrAlive", err)
	}
}

func TestListToleratesJunk(t *testing.T) {
	state := t.TempDir()
	if got, err := List(filepath.Join(state, "nowhere")); err != nil || len(got) != 0 {
		t.Fatalf("List of nothing = %v, %v", got, err)
	}
	for _, id := range []string{idB, idA} {
		create(t, state, id)
	}
	junk := create(t, state, idC)
	runs := filepath.Join(state, "runs")
	for _, err := range []error{
		os.WriteFile(filepath.Join(runs, "ddddddddddddddd4"), nil, 0o600),
		os.Mkdir(filepath.Join(runs, "lost+found"), 0o700),
		os.Mkdir(filepath.Join(runs, ".old-"+idC), 0o700),
		unix.Mkfifo(filepath.Join(runs, idC, "intent.json"), 0o600),
		os.Symlink("/dev/zero", filepath.Join(runs, idC, "exit.json")),
		os.Mkdir(filepath.Join(runs, idC, "created.json"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := List(state)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{idA, idB, idC}; !slices.Equal(got, want) {
		t.Errorf("List = %q, want %q", got, want)
	}
	if last, problems := junk.Last(); last != "" || len(problems) != 3 {
		t.Errorf("Last of the run full of junk = %q, %v, want nothing and 3 problems", last, problems)
	}
}

func TestRemove(t *testing.T) {
	state := t.TempDir()
	r := create(t, state, idA)
	if err := r.Write(Exit, 1, false); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if err := Remove(state, idA); err != nil {
		t.Fatal(err)
	}
	if got := names(t, filepath.Join(state, "runs")); len(got) != 0 {
		t.Errorf("after Remove runs holds %q", got)
	}
	if err := Remove(state, idA); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("second Remove = %v, want fs.ErrNotExist", err)
	}
	create(t, state, idA) // the id is free again
}

func TestSweepFinishesWhatCrashed(t *testing.T) {
	state := t.TempDir()
	runs := filepath.Join(state, "runs")
	create(t, state, idA)
	for _, name := range []string{".old-x/deep", ".new-dead", ".new-unlocked", ".new-held", "other"} {
		if err := os.MkdirAll(filepath.Join(runs, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if name != ".new-dead" && name != ".new-held" {
			continue
		}
		f, err := os.Create(filepath.Join(runs, name, "lock"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if name == ".new-held" {
			if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
				t.Fatal(err)
			}
		}
	}
	maker, err := os.Open(runs) // between its two steps
	if err != nil {
		t.Fatal(err)
	}
	defer maker.Close()
	if err := flock(maker, unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	sweep(t, state, true, ".old-x")
	maker.Close()
	sweep(t, state, true, ".new-dead", ".new-unlocked", ".old-x")
	sweep(t, state, false, ".new-dead", ".new-unlocked", ".old-x")
	if got, want := names(t, runs), []string{".new-held", idA, "other"}; !slices.Equal(got, want) {
		t.Errorf("after Sweep runs holds %q, want %q", got, want)
	}
	sweep(t, state, false)
}

func sweep(t *testing.T, state string, dryRun bool, want ...string) {
	t.Helper()
	if got, err := Sweep(state, dryRun); err != nil || !slices.Equal(got, want) {
		t.Errorf("Sweep(%t) = %q, %v, want %q", dryRun, got, err, want)
	}
}

func TestBootID(t *testing.T) {
	id, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	if len(id) != 36 || strings.TrimSpace(id) != id {
		t.Errorf("BootID() = %q, want 36 characters", id)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}
