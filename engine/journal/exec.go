package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ExecRecord is one program that was started in a session, by the id its caller chose:
// a directory exec/<id> of the session's with
//
//	intent.json   written before the program is started, on the disk before that is told
//	exit.json     its result is known
//	output.log    what it wrote
//
// One without a readable intent never began.
type ExecRecord struct {
	id     string // "<run>/<exec>": what its records say whose they are
	dir    string
	synced chan struct{} // closed once the intent has reached the disk, or could not
	failed error         // why it could not; read after synced
}

// ValidExecID says whether id may name an exec: it begins with a letter or a digit and
// has at most 128 of those and of "._:-", so it is a file's name as it stands.
func ValidExecID(id string) bool {
	for i, c := range []byte(id) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("._:-", rune(c))) {
			return false
		}
	}
	return id != "" && len(id) <= 128
}

func execsDir(stateDir, run string) string { return filepath.Join(RunDir(stateDir, run), execsName) }

// ExecOutputPath is where the output of an exec of the run is recorded. Neither need
// exist; an id that is none names no file.
func ExecOutputPath(stateDir, run, exec string) string {
	if !ValidID(run) || !ValidExecID(exec) {
		return ""
	}
	return filepath.Join(execsDir(stateDir, run), exec, outputName)
}

// CreateExec puts the intent of a new exec on record, and begins to bring it to the disk,
// which Synced waits for. Whatever dies but the host, the intent stays. It returns
// ErrExists, wrapped, where the id is taken.
//
// Preconditions: only the run's owner creates execs.
func (r *Run) CreateExec(id string, intent any) (*ExecRecord, error) {
	if !ValidExecID(id) {
		return nil, fmt.Errorf("cannot create exec %q: not an id", id)
	}
	e, err := r.createExec(id, intent)
	if err != nil {
		return nil, fmt.Errorf("cannot create exec %s of run %s: %w", id, r.id, err)
	}
	return e, nil
}

func (r *Run) createExec(id string, intent any) (*ExecRecord, error) {
	e := &ExecRecord{id: r.id + "/" + id, dir: filepath.Join(r.dir, execsName, id), synced: make(chan struct{})}
	data, err := encodeRecord(e.id, Intent, intent)
	if err != nil {
		return nil, err
	}
	err = os.Mkdir(e.dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.Mkdir(filepath.Dir(e.dir), 0o700); err == nil || errors.Is(err, fs.ErrExist) {
			err = errors.Join(syncFile(r.dir), os.Mkdir(e.dir, 0o700))
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil, ErrExists
	}
	if err != nil {
		return nil, err
	}
	// In place and not by renaming: an exec with a torn intent is one that never began.
	if err = writeFile(filepath.Join(e.dir, Intent+".json"), data, false); err != nil {
		return nil, errors.Join(err, os.RemoveAll(e.dir))
	}
	go func() {
		defer close(e.synced)
		e.failed = errors.Join(syncFile(filepath.Join(e.dir, Intent+".json")), syncFile(e.dir), syncFile(filepath.Dir(e.dir)))
	}()
	return e, nil
}

// Synced returns once the intent has reached the disk, or with the reason why it did not.
//
// Preconditions: CreateExec made e.
func (e *ExecRecord) Synced() error {
	<-e.synced
	if e.failed != nil {
		return fmt.Errorf("cannot record exec %s: %w", e.id, e.failed)
	}
	return nil
}

// OpenExec opens the record of an exec for reading. It returns fs.ErrNotExist, wrapped,
// if there is none.
func OpenExec(stateDir, run, exec string) (*ExecRecord, error) {
	if !ValidID(run) || !ValidExecID(exec) {
		return nil, fmt.Errorf("cannot open exec %q of run %q: %w", exec, run, ErrBadID)
	}
	e := &ExecRecord{id: run + "/" + exec, dir: filepath.Join(execsDir(stateDir, run), exec)}
	if _, err := os.Lstat(e.dir); err != nil {
		return nil, fmt.Errorf("cannot open exec %s of run %s: %w", exec, run, err)
	}
	return e, nil
}

// OutputPath is where the exec's output is recorded.
func (e *ExecRecord) OutputPath() string { return filepath.Join(e.dir, outputName) }

// Stage writes the result of the exec to the disk, where nobody sees it yet. A second
// call replaces the first.
func (e *ExecRecord) Stage(result any) error {
	data, err := encodeRecord(e.id, Exit, result)
	if err == nil {
		err = writeFile(e.staged(), data, true)
	}
	if err != nil {
		return fmt.Errorf("cannot record the end of exec %s: %w", e.id, err)
	}
	return nil
}

// Publish puts the staged result on record; when it returns, that has reached the disk.
func (e *ExecRecord) Publish() error {
	err := os.Rename(e.staged(), filepath.Join(e.dir, Exit+".json"))
	if err == nil {
		err = syncFile(e.dir)
	}
	if err != nil {
		return fmt.Errorf("cannot record the end of exec %s: %w", e.id, err)
	}
	return nil
}

func (e *ExecRecord) staged() string { return filepath.Join(e.dir, Exit+".json.tmp") }

// Read reads the record name, intent or exit, as Run.Read does.
func (e *ExecRecord) Read(name string, v any) (Header, error) {
	return readRecord(e.dir, e.id, name, v)
}

// Remove deletes all that is on record of the exec.
func (e *ExecRecord) Remove() error {
	if err := os.RemoveAll(e.dir); err != nil {
		return fmt.Errorf("cannot remove exec %s: %w", e.id, err)
	}
	return nil
}

// Execs are the ids of all execs of a run that have a directory, in alphabetical order.
func Execs(stateDir, run string) ([]string, error) {
	if !ValidID(run) {
		return nil, fmt.Errorf("cannot list execs of run %q: %w", run, ErrBadID)
	}
	entries, err := readDir(execsDir(stateDir, run))
	if err != nil {
		return nil, fmt.Errorf("cannot list execs of run %s: %w", run, err)
	}
	ids := make([]string, 0, len(entries))
	for _, entry := range entries {
		if entry.IsDir() && ValidExecID(entry.Name()) {
			ids = append(ids, entry.Name())
		}
	}
	slices.Sort(ids)
	return ids, nil
}
