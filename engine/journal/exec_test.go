package journal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestExecRecords takes an exec from its intent to its removal.
func TestExecRecords(t *testing.T) {
	state := t.TempDir()
	run, err := Create(state, NewID())
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	if ids, err := Execs(state, run.ID()); err != nil || len(ids) != 0 {
		t.Fatalf("execs = %q, %v, want none", ids, err)
	}
	type intent struct{ Command string }
	e, err := run.CreateExec("a.b:c-1", intent{"x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run.CreateExec("a.b:c-1", intent{"y"}); !errors.Is(err, ErrExists) {
		t.Errorf("error = %v, want ErrExists", err)
	}
	if _, err := run.CreateExec("b", intent{"y"}); err != nil {
		t.Fatal(err)
	}
	if ids, err := Execs(state, run.ID()); err != nil || !slices.Equal(ids, []string{"a.b:c-1", "b"}) {
		t.Errorf("execs = %q, %v", ids, err)
	}
	for _, code := range []int{1, 2} { // the second replaces the first
		if err := e.Stage(code); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Read(Exit, nil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a staged result is seen: %v", err)
		}
	}
	if err := e.Publish(); err != nil {
		t.Fatal(err)
	}
	open, err := OpenExec(state, run.ID(), "a.b:c-1")
	if err != nil {
		t.Fatal(err)
	}
	var in intent
	var code int
	_, errIn := open.Read(Intent, &in)
	_, errExit := open.Read(Exit, &code)
	if errIn != nil || errExit != nil || in.Command != "x" || code != 2 {
		t.Errorf("read back = %+v, %d: %v, %v", in, code, errIn, errExit)
	}
	if got := ExecOutputPath(state, run.ID(), "b"); got != filepath.Join(run.Dir(), "exec", "b", "output.log") {
		t.Errorf("output path = %s", got)
	}
	if err := e.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenExec(state, run.ID(), "a.b:c-1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error = %v after removal", err)
	}
	if last, problems := run.Last(); last != "" || len(problems) > 0 {
		t.Errorf("execs count as the run's records: %q, %v", last, problems)
	}
	if err := run.Remove(); err != nil {
		t.Error(err)
	}
}

// TestTornExecNeverBegan cuts an intent at every byte.
func TestTornExecNeverBegan(t *testing.T) {
	state := t.TempDir()
	run, err := Create(state, NewID())
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	e, err := run.CreateExec("x", "intent")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(e.dir, "intent.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) - 1 { // without the last newline it is whole
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		var torn *RecordError
		if _, err := e.Read(Intent, nil); !errors.As(err, &torn) || torn.Newer {
			t.Fatalf("cut at byte %d: error = %v", n, err)
		}
	}
}

// TestExecIDsAreFileNames refuses whatever leads elsewhere.
func TestExecIDsAreFileNames(t *testing.T) {
	state := t.TempDir()
	run, err := Create(state, NewID())
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	for _, id := range []string{"", ".", "..", ".x", "-x", "_x", ":x", "a/b", "a\x00", "a b", "é", "../lock", strings.Repeat("a", 129)} {
		if _, err := run.CreateExec(id, 1); err == nil {
			t.Errorf("id %q was taken", id)
		}
		if _, err := OpenExec(state, run.ID(), id); err == nil {
			t.Errorf("id %q was opened", id)
		}
		if path := ExecOutputPath(state, run.ID(), id); path != "" {
			t.Errorf("id %q has output at %s", id, path)
		}
	}
}
