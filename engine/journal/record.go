package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// The records of a run, in the order they are written.
const (
	Intent  = "intent"
	Created = "created"
	Started = "started"
	Exit    = "exit"
	Cleaned = "cleaned"
)

var order = []string{Intent, Created, Started, Exit, Cleaned}

// Deadline is written beside them, and again whenever it changes: it tells nothing of
// how far a run is.
const Deadline = "deadline"

// Ended is written beside them as well, once the program has ended. The exit record says
// all of it and more: this one is for whoever has to write that in a dead monitor's place.
const Ended = "ended"

// recordNames are those of all records.
var recordNames = append([]string{Deadline, Ended}, order...)

const (
	// schema is the version of the envelope and of what it holds. A record of
	// another version is not guessed at: it counts as absent.
	schema = 1

	// maxRecord is far above any request a program could be started with.
	maxRecord = 16 << 20
)

// Header is what the journal itself notes with every record.
type Header struct {
	Schema int       `json:"schema"`
	Run    string    `json:"run"`
	Record string    `json:"record"`
	BootID string    `json:"bootId"` // of the host when it was written
	Time   time.Time `json:"time"`
}

type envelope struct {
	Header
	Value json.RawMessage `json:"value"`
}

// RecordError reports a record that is there and cannot be used: torn by a
// crash, of an unknown version, or of absurd size.
type RecordError struct {
	Run    string
	Record string
	Why    string
	Newer  bool // whole, and of a version that this program does not know
}

func (e *RecordError) Error() string {
	return fmt.Sprintf("cannot read record %s of run %s: %s", e.Record, e.Run, e.Why)
}

// Write puts v on record under name, replacing an earlier record of that name.
// The record is seen whole or not at all. With sync it has reached the disk
// when Write returns, and so has the run itself; without, a power failure may
// take it back.
//
// Preconditions: only the run's owner writes, and one record at a time.
func (r *Run) Write(name string, v any, sync bool) error {
	if err := r.write(name, v, sync); err != nil {
		return fmt.Errorf("cannot write record %s of run %s: %w", name, r.id, err)
	}
	return nil
}

func (r *Run) write(name string, v any, sync bool) error {
	if !slices.Contains(recordNames, name) {
		return errors.New("internal error: no such record")
	}
	data, err := encodeRecord(r.id, name, v)
	if err != nil {
		return err
	}
	path := filepath.Join(r.dir, name+".json")
	if name == Cleaned {
		if err := r.tidy(); err != nil {
			return err
		}
	}
	err = writeFile(path+".tmp", data, sync)
	if name == Exit && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) && r.remove(reserveName) == nil {
		err = writeFile(path+".tmp", data, sync)
	}
	if err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	if !sync {
		return nil
	}
	if name != Intent {
		return syncFile(r.dir)
	}
	// The first record also puts the run's own name on disk, one directory up.
	return errors.Join(syncFile(r.dir), syncFile(filepath.Dir(r.dir)))
}

// encodeRecord is a record as it stands in its file.
func encodeRecord(run, name string, v any) ([]byte, error) {
	boot, err := BootID()
	if err != nil {
		return nil, err
	}
	value, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(envelope{Header{schema, run, name, boot, time.Now()}, value})
	if err != nil {
		return nil, err
	}
	if len(data) > maxRecord {
		return nil, fmt.Errorf("%d bytes are more than %d", len(data), maxRecord)
	}
	return append(data, '\n'), nil
}

// Sync brings a record that was written without sync, and its name, to the disk.
func (r *Run) Sync(name string) error {
	f, err := os.Open(filepath.Join(r.dir, name+".json"))
	if err == nil {
		err = errors.Join(f.Sync(), f.Close(), syncFile(r.dir))
	}
	if err != nil {
		return fmt.Errorf("cannot sync record %s of run %s: %w", name, r.id, err)
	}
	return nil
}

// Reserve sets room aside for the last records of the run, exit and cleaned: a disk
// that is full by then must not take the result with it. The room is given up for the
// first of them, or before the last.
func (r *Run) Reserve() error {
	f, err := os.OpenFile(filepath.Join(r.dir, reserveName), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("cannot reserve room for run %s: %w", r.id, err)
	}
	for {
		err = unix.Fallocate(int(f.Fd()), 0, 0, reserveSize)
		if err != unix.EINTR {
			break
		}
	}
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS {
		_, err = f.Write(make([]byte, reserveSize))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cannot reserve room for run %s: %w", r.id, err)
	}
	return nil
}

// tidy removes what the run's directory need not hold any more: the reserved room, what
// the exit record says better, and halves of records that a crash left.
func (r *Run) tidy() error {
	errs := []error{r.remove(reserveName), r.remove(Ended + ".json")}
	for _, name := range recordNames {
		errs = append(errs, r.remove(name+".json.tmp"))
	}
	return errors.Join(errs...)
}

// remove deletes one file of the run, if it is there.
func (r *Run) remove(name string) error {
	if err := os.Remove(filepath.Join(r.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func writeFile(path string, data []byte, sync bool) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncFile brings a file, or the names in a directory, to the disk.
func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Read reads the record name into v, which may be nil. A record that was never
// written is fs.ErrNotExist, one that cannot be used is *RecordError; a caller
// that only wants to know how far a run got treats both alike.
func (r *Run) Read(name string, v any) (Header, error) { return readRecord(r.dir, r.id, name, v) }

func readRecord(dir, run, name string, v any) (Header, error) {
	// A stray fifo or link under a record's name must not stop a listing.
	f, err := os.OpenFile(filepath.Join(dir, name+".json"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Header{}, err
	}
	if err != nil {
		return Header{}, &RecordError{Run: run, Record: name, Why: err.Error()}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return Header{}, &RecordError{Run: run, Record: name, Why: err.Error()}
	}
	e, err := parseRecord(run, name, data)
	if err != nil {
		return Header{}, err
	}
	if v != nil {
		if err := json.Unmarshal(e.Value, v); err != nil {
			return Header{}, &RecordError{Run: run, Record: name, Why: err.Error()}
		}
	}
	return e.Header, nil
}

func parseRecord(run, name string, data []byte) (envelope, error) {
	fail := func(format string, args ...any) (envelope, error) {
		return envelope{}, &RecordError{Run: run, Record: name, Why: fmt.Sprintf(format, args...)}
	}
	if len(data) > maxRecord {
		return fail("larger than %d bytes", maxRecord)
	}
	var e envelope
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&e); err != nil {
		return fail("torn or not a record: %v", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return fail("something follows it")
	}
	switch {
	case e.Schema > schema:
		return envelope{}, &RecordError{Run: run, Record: name, Why: fmt.Sprintf("schema %d is not %d", e.Schema, schema), Newer: true}
	case e.Schema != schema:
		return fail("schema %d is not %d", e.Schema, schema)
	case e.Run != run || e.Record != name:
		return fail("it is record %q of run %q", e.Record, e.Run)
	case len(e.Value) == 0:
		return fail("it has no value")
	}
	return e, nil
}

// Last returns the furthest record that can be read, "" if none can, and what
// is wrong with those that cannot.
func (r *Run) Last() (name string, problems []error) {
	for _, n := range order {
		_, err := r.Read(n, nil)
		if err == nil {
			name = n
		} else if !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, err)
		}
	}
	return name, problems
}

// Strangers are the names in the run's directory that this version of the journal does
// not give: a later version's, or somebody's. Nothing is made of them.
func (r *Run) Strangers() ([]string, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, err
	}
	known := []string{lockName, outputName, auditName, reserveName, execsName, cgroupName}
	for _, name := range recordNames {
		known = append(known, name+".json", name+".json.tmp")
	}
	var strangers []string
	for _, e := range entries {
		if !slices.Contains(known, e.Name()) {
			strangers = append(strangers, e.Name())
		}
	}
	return strangers, nil
}
