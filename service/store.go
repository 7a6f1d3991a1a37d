package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
)

const (
	recordSchema = 1
	maxRecord    = 4 << 20 // bytes; a request's environment is most of it
	recordName   = "sandbox.json"
	lockName     = "lock"

	// trash is what a directory is called while it is removed.
	trash = ".old-"
)

// record is what is on record of one sandbox, before it is started and until it is torn
// down. All else is the engine's to know.
type record struct {
	Schema    int            `json:"schema"`
	ID        string         `json:"id"` // of the run, chosen here: a start that is tried again starts no second one
	Name      string         `json:"name"`
	Owner     string         `json:"owner"`
	Tenant    string         `json:"tenant"`
	CreatedAt time.Time      `json:"createdAt"`
	Request   engine.Request `json:"request"`
	Clamped   []Clamped      `json:"clamped"`
	Estimate  *Estimated     `json:"estimate"`
	Callback  bool           `json:"callback"` // its events are sent, see callbacks.go
	Secrets   bool           `json:"secrets"`  // it has some, which are on no disk
	Admitted  bool           `json:"admitted"` // there was room; a start may have been tried
	Ending    bool           `json:"ending"`   // its teardown has begun
}

// store is the directory of records: one directory for each name, with a lock that its
// holder has while it creates or tears down. The kernel drops the lock of one that dies.
type store struct {
	dir  string
	seen *seen
}

// seen are records as they were read last, without their environments, which are most of
// them: all are looked at twice a second, and by whoever asks for an id that is not there.
type seen struct {
	mu sync.Mutex
	by map[string]seenRecord // by name
}

type seenRecord struct {
	stat unix.Stat_t // of its file; one that is written anew is another file
	r    record
}

func openStore(stateDir string) (store, error) {
	s := store{filepath.Join(stateDir, "sandboxes"), &seen{by: map[string]seenRecord{}}}
	for _, dir := range []string{stateDir, s.dir} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return s, engine.Failed("no_directory", "cannot make directory=%s: %w", dir, err)
		}
	}
	if err := os.Chmod(s.dir, 0o700); err != nil {
		return s, engine.Failed("no_directory", "cannot set the mode of directory=%s: %w", s.dir, err)
	}
	return s, syncDir(stateDir)
}

// maxKeptName is for a name with what the API puts before it, within what a directory may
// be called.
const maxKeptName = maxName + 101

const maxName = 128

// ValidName says whether somebody may call a sandbox that.
func ValidName(unsafeName string) bool {
	return len(unsafeName) <= maxName && validName(unsafeName)
}

// validName says whether a name may name a sandbox, and so a directory.
func validName(unsafeName string) bool {
	if unsafeName == "" || len(unsafeName) > maxKeptName {
		return false
	}
	for i, c := range []byte(unsafeName) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("._:-", rune(c))) {
			return false
		}
	}
	return true
}

func (s store) path(name string) string { return filepath.Join(s.dir, name) }

// entry is one name's directory, whose lock this process holds.
type entry struct {
	store store
	name  string
	lock  *os.File
	gone  bool // the directory was removed, and another may have its name
}

// open takes the lock of a name, and makes its directory where there is none. It waits
// for as long as ctx lets it.
func (s store) open(ctx context.Context, name string) (*entry, error) {
	wait := time.Millisecond
	for {
		e, err := s.tryOpen(name)
		if err == nil || !errors.Is(err, errHeld) {
			return e, err
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, 50*time.Millisecond)
		case <-ctx.Done():
			return nil, engine.Failed("busy", "cannot use sandbox=%s: it is being created or torn down, and %w", name, ctx.Err()).
				WithFix("try again")
		}
	}
}

var errHeld = errors.New("somebody else holds the lock")

// tryOpen is open without waiting: it returns errHeld where it would.
func (s store) tryOpen(name string) (*entry, error) {
	dir := s.path(name)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, engine.Failed("no_record", "cannot make the record of sandbox=%s: %w", name, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errHeld // removed since
	}
	if err != nil {
		return nil, engine.Failed("no_record", "cannot open the record of sandbox=%s: %w", name, err)
	}
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil && !sameFile(f, filepath.Join(dir, lockName)) {
		err = unix.EWOULDBLOCK // removed since, and perhaps made again
	}
	if err == nil {
		return &entry{store: s, name: name, lock: f}, nil
	}
	f.Close()
	if err == unix.EWOULDBLOCK {
		return nil, errHeld
	}
	return nil, engine.Failed("no_record", "cannot lock the record of sandbox=%s: %w", name, err)
}

func sameFile(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(mine, there)
}

// close gives the lock up. A directory without a record is nobody's.
func (e *entry) close() {
	if !e.gone {
		if _, err := os.Lstat(filepath.Join(e.store.path(e.name), recordName)); errors.Is(err, fs.ErrNotExist) {
			_ = e.remove() // what stays is swept at the next start
		}
	}
	e.lock.Close()
}

// read returns the record of a name, and fs.ErrNotExist where there is none.
func (s store) read(name string) (record, error) {
	var r record
	f, err := os.OpenFile(filepath.Join(s.path(name), recordName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return r, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return r, err
	}
	return parseRecord(name, data)
}

func parseRecord(name string, data []byte) (record, error) {
	var r record
	if len(data) > maxRecord {
		return r, fmt.Errorf("it is larger than %d bytes", maxRecord)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, err
	}
	switch {
	case r.Schema != recordSchema:
		return r, fmt.Errorf("its schema is %d, not %d", r.Schema, recordSchema)
	case r.Name != name:
		return r, fmt.Errorf("it is of the name %q", r.Name)
	case !journal.ValidID(r.ID) || r.Request.ID != r.ID:
		return r, fmt.Errorf("its id is %q", r.ID)
	case r.Request.Session == nil:
		return r, errors.New("it is of no session")
	}
	return r, nil
}

// write puts the record on disk. It is seen whole or not at all.
func (e *entry) write(r record) error {
	data, err := json.Marshal(r)
	if err == nil && len(data) > maxRecord {
		return engine.Refused("bad_env", "cannot put sandbox=%s on record: %d bytes are more than %d", e.name, len(data), maxRecord)
	}
	if err == nil {
		err = e.writeFile(recordName, append(data, '\n'))
	}
	if err == nil {
		err = syncDir(e.store.dir) // the name itself
	}
	if err != nil {
		return engine.Failed("no_record", "cannot write the record of sandbox=%s: %w", e.name, err)
	}
	return nil
}

func (e *entry) writeFile(name string, data []byte) error {
	return writeFile(e.store.path(e.name), name, data)
}

// writeFile puts a file into a directory, whole and for root alone, and on the disk.
func writeFile(dir, name string, data []byte) error {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, bytes.NewReader(data))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	return syncDir(dir)
}

// remove takes the name off the record. A crash on the way leaves it whole, or under a
// name that is swept.
func (e *entry) remove() error {
	old := filepath.Join(e.store.dir, trash+e.name+"-"+journal.NewID())
	if err := os.Rename(e.store.path(e.name), old); err != nil {
		return engine.Failed("no_record", "cannot remove the record of sandbox=%s: %w", e.name, err)
	}
	e.gone = true
	if err := errors.Join(syncDir(e.store.dir), removeTrash(old)); err != nil {
		return engine.Failed("no_record", "cannot remove the record of sandbox=%s: %w", e.name, err)
	}
	return nil
}

// removeTrash removes a directory that has its name no more. Somebody who found it by the
// old one may still make a lock in it, once, before they see that it is gone.
func removeTrash(dir string) error {
	var err error
	for range removeTries {
		if err = os.RemoveAll(dir); !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return err
}

// removeTries is for as many as may be on their way to the lock at once.
const removeTries = 100

// names are those that have a directory.
func (s store) names() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, engine.Failed("no_record", "cannot list sandboxes: %w", err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.IsDir() && validName(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// all are the records that can be read, without their environments. The others are given
// to report. What they hold is not to be changed.
func (s store) all(report func(name string, err error)) ([]record, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	records := make([]record, 0, len(names))
	s.forget(names)
	for _, name := range names {
		r, err := s.glance(name)
		switch {
		case err == nil:
			records = append(records, r)
		case !errors.Is(err, fs.ErrNotExist):
			report(name, err)
		}
	}
	return records, nil
}

// glance is read for all: a record that has not changed is not read again.
func (s store) glance(name string) (record, error) {
	var now unix.Stat_t
	if err := unix.Lstat(filepath.Join(s.path(name), recordName), &now); err != nil {
		return record{}, err
	}
	s.seen.mu.Lock()
	was, known := s.seen.by[name]
	s.seen.mu.Unlock()
	if known && was.stat.Ino == now.Ino && was.stat.Size == now.Size && was.stat.Mtim == now.Mtim && was.stat.Ctim == now.Ctim {
		return was.r, nil
	}
	r, err := s.read(name)
	if err != nil {
		return r, err
	}
	r.Request.Env = nil
	s.seen.mu.Lock()
	s.seen.by[name] = seenRecord{now, r}
	s.seen.mu.Unlock()
	return r, nil
}

// forget drops what is known of others than these.
func (s store) forget(names []string) {
	there := make(map[string]bool, len(names))
	for _, name := range names {
		there[name] = true
	}
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	maps.DeleteFunc(s.seen.by, func(name string, _ seenRecord) bool { return !there[name] })
}

// sweep removes what a crash left of a removal, or of a creation before its record.
func (s store) sweep() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return engine.Failed("no_record", "cannot list sandboxes: %w", err)
	}
	var errs []error
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), trash):
			errs = append(errs, removeTrash(filepath.Join(s.dir, e.Name())))
		case validName(e.Name()):
			if _, err := os.Lstat(filepath.Join(s.path(e.Name()), recordName)); errors.Is(err, fs.ErrNotExist) {
				if held, err := s.tryOpen(e.Name()); err == nil {
					held.close()
				}
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return engine.Failed("no_record", "cannot sweep the records of sandboxes: %w", err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
