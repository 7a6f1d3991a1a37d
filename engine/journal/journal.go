// Package journal keeps durable records of runs, and of what their programs
// wrote, in the state directory. It knows nothing of what a record says: its
// callers hand it values that encode to JSON.
//
// Each run has a directory runs/<id> of its own:
//
//	lock          held by flock for as long as somebody owns the run
//	intent.json   written before anything exists on the host
//	created.json  the sandbox exists
//	started.json  the program runs
//	ended.json    how the program ended, until the run is cleaned
//	exit.json     the result is known
//	cleaned.json  nothing of the run is left on the host
//	deadline.json when a session ends at the latest; replaced when that changes
//	exec          what ran in a session, a directory for each, see ExecRecord
//	output.log    what the program wrote, see OutputWriter
//	network.log   each decision about its network, a line of JSON
//	reserve       room for the last two records, while the run is not cleaned
//
// A run is as far as its furthest readable record. Records only get added, so
// a crash at any point leaves the run where it was or one step on. A directory
// appears under its final name together with its lock already held, and goes
// away under another name before its files do: no reader ever finds a run that
// is half made or half removed.
//
// Liveness is the lock, never a pid: the kernel drops it when its last holder
// dies, however that happens. It belongs to the open file description, so a
// child that inherits the descriptor holds it too, and stays the holder when
// the parent closes its own copy.
package journal

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Sentinels to test with errors.Is. A run or record that is not there is
// fs.ErrNotExist.
var (
	ErrExists = errors.New("run exists already")
	ErrAlive  = errors.New("run is alive")
	ErrBadID  = errors.New("not 16 lower-case letters and digits")
)

const (
	idLen      = 16
	lockName   = "lock"
	outputName = "output.log"
	auditName  = "network.log"
	execsName  = "exec"
	cgroupName = "cgroup"

	// reserveName is a file of reserveSize bytes that makes room for the last
	// records when the disk is full.
	reserveName = "reserve"
	reserveSize = 64 << 10

	// Directories under these names are not runs: one being made, one being
	// removed. Sweep finishes what a crash left of them.
	newPrefix = ".new-"
	oldPrefix = ".old-"

	// makersBound is how long Sweep waits for those who are between making a
	// directory and locking it, which takes microseconds.
	makersBound = 200 * time.Millisecond
)

// Run is one run's directory, and its lock if this process is an owner.
type Run struct {
	id   string
	dir  string
	lock *os.File // nil: opened for reading
}

// ValidID says whether id has the form of a run id.
func ValidID(id string) bool {
	if len(id) != idLen {
		return false
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// NewID returns a random run id.
func NewID() string {
	// 20 random bytes give 32 letters; half of them are 80 bits.
	return strings.ToLower(rand.Text()[:idLen])
}

// RunDir is the directory of the run id.
func RunDir(stateDir, id string) string { return filepath.Join(stateDir, "runs", id) }

// Create makes the directory of a new run and takes its lock. It returns
// ErrExists, wrapped, if a run of that id is on record. The caller passes Lock
// to the process that is to own the run and then closes the Run.
func Create(stateDir, id string) (*Run, error) {
	if !ValidID(id) {
		return nil, fmt.Errorf("cannot create run %q: %w", id, ErrBadID)
	}
	if err := makeRuns(stateDir); err != nil {
		return nil, fmt.Errorf("cannot create run %s: %w", id, err)
	}
	r := &Run{id: id, dir: RunDir(stateDir, id)}
	tmp, err := r.make()
	if err == nil {
		err = r.publish(tmp)
	}
	if err == nil {
		return r, nil
	}
	r.Close()
	if tmp != "" {
		err = errors.Join(err, os.RemoveAll(tmp))
	}
	return nil, fmt.Errorf("cannot create run %s: %w", id, err)
}

// make makes the run's directory under a name that hides it, and locks it. Until it is
// locked, runs itself is, so that Sweep does not take it for a dead maker's.
func (r *Run) make() (tmp string, err error) {
	runs, err := os.Open(filepath.Dir(r.dir))
	if err != nil {
		return "", err
	}
	defer runs.Close()
	if err := flock(runs, unix.LOCK_SH); err != nil {
		return "", err
	}
	tmp = filepath.Join(runs.Name(), newPrefix+r.id+"-"+NewID())
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return "", err
	}
	r.lock, err = os.OpenFile(filepath.Join(tmp, lockName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return tmp, err
	}
	return tmp, flock(r.lock, unix.LOCK_EX|unix.LOCK_NB)
}

// publish gives the run, which is hidden and locked, its name.
func (r *Run) publish(tmp string) error {
	// A run's directory is never empty, so plain rename refuses to replace it
	// as well, on a file system that does not know the flag.
	err := unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, r.dir, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		err = unix.Rename(tmp, r.dir)
	}
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
		return ErrExists
	}
	return err
}

// makeRuns makes the state directory and runs below it, both for root alone.
func makeRuns(stateDir string) error {
	runs := filepath.Join(stateDir, "runs")
	err := os.Mkdir(runs, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(stateDir), 0o755); err != nil {
			return err
		}
		if err = os.Mkdir(stateDir, 0o700); err == nil {
			err = os.Chmod(stateDir, 0o700) // whatever the umask
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		err = os.Mkdir(runs, 0o700)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// Open opens a run for reading, whoever owns it. It returns fs.ErrNotExist,
// wrapped, if there is no such run.
func Open(stateDir, id string) (*Run, error) {
	if !ValidID(id) {
		return nil, fmt.Errorf("cannot open run %q: %w", id, ErrBadID)
	}
	r := &Run{id: id, dir: RunDir(stateDir, id)}
	info, err := os.Lstat(r.dir)
	if err == nil && !info.IsDir() {
		err = unix.ENOTDIR
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open run %s: %w", id, err)
	}
	return r, nil
}

// Adopt makes this process an owner of the run whose locked descriptor it has
// inherited. It fails if lock is another file than the run's, or if somebody
// else holds it. The Run closes lock.
func Adopt(stateDir, id string, lock *os.File) (*Run, error) {
	r, err := Open(stateDir, id)
	if err != nil {
		return nil, err
	}
	if err := sameFile(lock, filepath.Join(r.dir, lockName)); err != nil {
		return nil, fmt.Errorf("cannot adopt run %s: the inherited descriptor is not its lock: %w", id, err)
	}
	if err := flock(lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("cannot adopt run %s: %w", id, err)
	}
	unix.CloseOnExec(int(lock.Fd()))
	r.lock = lock
	return r, nil
}

// sameFile returns fs.ErrNotExist, wrapped, unless path leads to the open file f.
func sameFile(f *os.File, path string) error {
	got, err := f.Stat()
	if err != nil {
		return err
	}
	want, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(got, want) {
		return fmt.Errorf("%s is another file by now: %w", path, fs.ErrNotExist)
	}
	return nil
}

// Claim takes the lock of a run that nobody owns any more, so that one process
// alone cleans up behind it. It returns ErrAlive, wrapped, if there is an owner.
func Claim(stateDir, id string) (*Run, error) {
	r, err := Open(stateDir, id)
	if err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(r.dir, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot claim run %s: %w", id, err)
	}
	// Alive holds a shared lock for an instant. Being in its way is no sign of
	// life, so try again for longer than any probe takes.
	for deadline := time.Now().Add(100 * time.Millisecond); ; time.Sleep(time.Millisecond) {
		err = flock(lock, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			if err = sameFile(lock, lock.Name()); err != nil {
				break // the run was removed meanwhile, and another may have its name
			}
			r.lock = lock
			return r, nil
		}
		if !errors.Is(err, ErrAlive) || time.Now().After(deadline) {
			break
		}
	}
	return nil, errors.Join(fmt.Errorf("cannot claim run %s: %w", id, err), lock.Close())
}

// Alive says whether somebody owns the run: the process that started it, its
// monitor, or one that claimed it. A run that does not exist is not alive.
//
// It takes a shared lock on a descriptor of its own and drops it at once. Two
// probes do not see each other, since shared locks go together. No probe can
// take the lock from a starting monitor either: that lock was taken before the
// run had a name to probe, and is handed down without ever being released.
func Alive(stateDir, id string) (bool, error) {
	if !ValidID(id) {
		return false, fmt.Errorf("cannot probe run %q: %w", id, ErrBadID)
	}
	lock, err := os.OpenFile(filepath.Join(RunDir(stateDir, id), lockName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot probe run %s: %w", id, err)
	}
	err = flock(lock, unix.LOCK_SH|unix.LOCK_NB)
	if closeErr := lock.Close(); err == nil {
		err = closeErr
	}
	if errors.Is(err, ErrAlive) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot probe run %s: %w", id, err)
	}
	return false, nil
}

// Remove deletes everything on record about a run. It returns ErrAlive,
// wrapped, if somebody owns it, and fs.ErrNotExist if there is none. A crash
// on the way leaves the run whole, or leaves what Sweep removes.
func Remove(stateDir, id string) error {
	r, err := Claim(stateDir, id)
	if err != nil {
		return err
	}
	defer r.Close()
	return r.Remove()
}

// Remove deletes everything on record about the run, as the function Remove does.
//
// Preconditions: this process holds the lock.
func (r *Run) Remove() error {
	id := r.id
	old := filepath.Join(filepath.Dir(r.dir), oldPrefix+id+"-"+NewID())
	if err := os.Rename(r.dir, old); err != nil {
		return fmt.Errorf("cannot remove run %s: %w", id, err)
	}
	if err := os.RemoveAll(old); err != nil {
		return fmt.Errorf("cannot remove run %s: %w", id, err)
	}
	return nil
}

// Sweep deletes what a crash left of a run being created or removed, and
// returns the names of what it deleted, or would delete without dryRun.
func Sweep(stateDir string, dryRun bool) ([]string, error) {
	runs := filepath.Join(stateDir, "runs")
	left, err := abandoned(runs)
	if err != nil {
		return nil, fmt.Errorf("cannot sweep %s: %w", runs, err)
	}
	if dryRun {
		return left, nil
	}
	var swept []string
	var errs []error
	for _, name := range left {
		if err := os.RemoveAll(filepath.Join(runs, name)); err != nil {
			errs = append(errs, err)
			continue
		}
		swept = append(swept, name)
	}
	return swept, errors.Join(errs...)
}

// abandoned are the names in runs of what nobody is creating, and of what is being
// removed: that may be done twice.
func abandoned(runs string) ([]string, error) {
	dir, err := os.Open(runs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	for deadline := time.Now().Add(makersBound); ; time.Sleep(time.Millisecond) {
		err = flock(dir, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, ErrAlive) || time.Now().After(deadline) {
			break
		}
	}
	makers := errors.Is(err, ErrAlive) // one that was stopped there, say
	if err != nil && !makers {
		return nil, err
	}
	entries, err := os.ReadDir(runs)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		half := strings.HasPrefix(e.Name(), newPrefix) && !makers && unlocked(filepath.Join(runs, e.Name(), lockName))
		if half || strings.HasPrefix(e.Name(), oldPrefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// unlocked reports whether nobody holds the lock at path, or it was never made.
func unlocked(path string) bool {
	lock, err := os.Open(path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	err = flock(lock, unix.LOCK_SH|unix.LOCK_NB)
	return errors.Join(err, lock.Close()) == nil
}

// List returns the ids of all runs, in alphabetical order. What is not a run is passed
// over. A state directory that is not there has no runs.
func List(stateDir string) ([]string, error) {
	dirs, err := readDir(filepath.Join(stateDir, "runs"))
	if err != nil {
		return nil, fmt.Errorf("cannot list runs: %w", err)
	}
	var ids []string
	for _, d := range dirs {
		if d.IsDir() && ValidID(d.Name()) {
			ids = append(ids, d.Name())
		}
	}
	return ids, nil
}

func readDir(dir string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}

// ID is the run's id.
func (r *Run) ID() string { return r.id }

// Dir is the run's directory.
func (r *Run) Dir() string { return r.dir }

// OutputPath is where the run's output is recorded.
func (r *Run) OutputPath() string { return filepath.Join(r.dir, outputName) }

// OutputPath is where the output of the run id is recorded.
func OutputPath(stateDir, id string) string { return filepath.Join(RunDir(stateDir, id), outputName) }

// AuditPath is where the decisions about the run's network are recorded.
func (r *Run) AuditPath() string { return filepath.Join(r.dir, auditName) }

// SetCgroup notes where the run's cgroup is, for whoever ends the run and knows another
// root. It is a link, which is there or not.
func (r *Run) SetCgroup(dir string) error { return os.Symlink(dir, filepath.Join(r.dir, cgroupName)) }

// CgroupDir is what SetCgroup noted, and "" if that is nothing.
func CgroupDir(stateDir, id string) string {
	dir, err := os.Readlink(filepath.Join(RunDir(stateDir, id), cgroupName))
	if err != nil {
		return ""
	}
	return dir
}

// Lock is the locked file, to be inherited by the process that is to own the
// run; nil if the run was opened for reading.
func (r *Run) Lock() *os.File { return r.lock }

// Close gives up this process's share of the lock. A process that inherited
// the descriptor goes on holding it, which an explicit unlock would end.
func (r *Run) Close() {
	if r.lock != nil {
		// Nothing was written through it, and the descriptor is gone either way.
		_ = r.lock.Close()
	}
}

// flock takes the lock how says, and returns ErrAlive if that would block.
func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrAlive
		case err != nil:
			return fmt.Errorf("cannot lock %s: %w", f.Name(), err)
		}
		return nil
	}
}

// BootID names this boot of the host. Names of kernel objects on record under
// another one mean nothing any more.
var BootID = sync.OnceValues(func() (string, error) {
	const path = "/proc/sys/kernel/random/boot_id"
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("cannot read the boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
})
