package link

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/cmd/engine-runner/lock"
)

// outbox is what outlives this process: an intent for each invocation that was
// accepted, on disk before it begins; its result, until the plane has acknowledged it;
// and the memory of those that are over.
//
//	lock              held while the outbox is open
//	calls/KEY.call    the intent
//	calls/KEY.result  the body of its result
//	seen              a line for each invocation that was acknowledged
//
// An intent without result that is found when the outbox is opened is of a runner that
// died.
type outbox struct {
	dir  string
	lock *os.File
	seen *memory
}

// intent is the record of an invocation.
type intent struct {
	Request  wire.Request `json:"request"`
	Accepted time.Time    `json:"accepted"`
}

const (
	intentSuffix = ".call"
	resultSuffix = ".result"
)

// key names the files of an invocation, whose id may have any case and length.
func key(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16])
}

// openOutbox takes hold of the outbox in dir, and returns what is in it.
//
// SECURITY: one invocation is begun by one process, once.
// Two runners on one outbox would both begin what comes to both.
// Holds because: the outbox is locked, by a lock that ends with the process, and an intent is on disk,
// with its directory, before anything is begun; one that is found is never begun again.
// Not covered: a state directory that is set back to an earlier copy. Checked by: TestKilledFiftyTimes, TestTwoRunners.
func openOutbox(dir string, now time.Time) (*outbox, []entry, error) {
	if err := os.MkdirAll(filepath.Join(dir, "calls"), 0o700); err != nil {
		return nil, nil, err
	}
	held, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if err := lock.Hold(held); err != nil {
		held.Close()
		return nil, nil, err
	}
	o := &outbox{dir: dir, lock: held}
	entries, err := o.load()
	if err == nil {
		o.seen, err = openMemory(filepath.Join(dir, "seen"), now)
	}
	if err != nil {
		held.Close()
		return nil, nil, err
	}
	return o, entries, nil
}

// entry is one invocation as it lies in the outbox.
type entry struct {
	intent
	sum      string    // SHA-256 of the result, in hexadecimal; "": there is none
	answered time.Time // when the result was made
	size     int64     // of both files
}

func (o *outbox) load() ([]entry, error) {
	dir := filepath.Join(o.dir, "calls")
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var entries []entry
	for _, f := range files {
		name, isIntent := strings.CutSuffix(f.Name(), intentSuffix)
		if strings.HasPrefix(f.Name(), "new-") { // of a crash
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
				return nil, err
			}
		}
		if !isIntent {
			continue
		}
		e, err := o.read(name)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", filepath.Join(dir, f.Name()), err)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func (o *outbox) read(name string) (entry, error) {
	var e entry
	data, err := os.ReadFile(o.path(name, intentSuffix))
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(data, &e.intent); err != nil || key(e.Request.ID) != name {
		return e, errors.New("it is not the record of an invocation")
	}
	e.size = int64(len(data))
	result, err := os.ReadFile(o.path(name, resultSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil
	}
	if err != nil {
		return e, err
	}
	info, err := os.Stat(o.path(name, resultSuffix))
	if err != nil {
		return e, err
	}
	e.sum, e.answered = sum(result), info.ModTime()
	e.size += int64(len(result))
	return e, nil
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func (o *outbox) path(key, suffix string) string { return filepath.Join(o.dir, "calls", key+suffix) }

// begin puts an intent on disk, and returns how many bytes that takes.
func (o *outbox) begin(i intent) (int64, error) {
	data, err := json.Marshal(i)
	if err != nil {
		return 0, err
	}
	return int64(len(data)), o.write(key(i.Request.ID), intentSuffix, data)
}

// finish puts a result on disk.
func (o *outbox) finish(id string, body []byte) error { return o.write(key(id), resultSuffix, body) }

// result reads a result.
func (o *outbox) result(id string) ([]byte, error) { return os.ReadFile(o.path(key(id), resultSuffix)) }

// forget removes an invocation whose result was acknowledged. What is remembered of it
// is on disk before.
func (o *outbox) forget(r wire.Request, now time.Time) error {
	if err := o.seen.add(r, now); err != nil {
		return err
	}
	k := key(r.ID)
	return errors.Join(os.Remove(o.path(k, intentSuffix)), os.Remove(o.path(k, resultSuffix)))
}

// write puts a file into its place, whole or not at all, and on disk.
func (o *outbox) write(key, suffix string, data []byte) error {
	dir := filepath.Join(o.dir, "calls")
	tmp, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), o.path(key, suffix))
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return fsync(dir)
}

// fsync has a file, or the names in a directory, on disk.
func fsync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (o *outbox) close() error { return errors.Join(o.seen.file.Close(), o.lock.Close()) }
