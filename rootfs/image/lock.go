package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockStore serialises the appearance and removal of names, images and layers.
func (s Store) lockStore() (*os.File, error) {
	return takeLock(filepath.Join(s.Dir, ".lock"), os.O_CREATE, unix.LOCK_EX)
}

func takeLock(path string, flags, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, how); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// errStale is a lock whose file was removed or renamed while it was waited for.
var errStale = errors.New("its lock is gone")

// takeNamedLock takes the lock at path, of which it makes sure that path still names
// it: whoever removes or renames the file does so while holding it.
func takeNamedLock(path string, flags, how int) (*os.File, error) {
	f, err := takeLock(path, flags, how)
	if err != nil {
		return nil, err
	}
	if !isNamed(f, path) {
		return nil, errors.Join(errStale, f.Close())
	}
	return f, nil
}

// isNamed reports whether path still names the open file f.
func isNamed(f *os.File, path string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(path)
	return err == nil && os.SameFile(opened, named)
}

// Hold keeps the image and its layers from being removed until the returned file, and
// every duplicate of it in a child, is closed. It returns *NotFoundError when the
// image is gone or going.
func (i Image) Hold() (*os.File, error) {
	f, err := takeNamedLock(filepath.Join(i.store.imagePath(i.id), lockFile), 0, unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, errStale) {
		return nil, &NotFoundError{Name: i.Name}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot hold image=%s: %w", i.Name, err)
	}
	return f, nil
}

// work is a directory in which something is made or taken apart. Whoever holds its
// lock lives: the kernel lets go of a dead process's.
type work struct {
	dir  string
	lock *os.File
}

// newWork makes such a directory.
// Preconditions: the caller holds the store's lock, so that no work is ever seen
// between being made and being locked.
func (s Store) newWork() (*work, error) {
	dir, err := os.MkdirTemp(s.Dir, tempPrefix)
	if err != nil {
		return nil, fmt.Errorf("cannot create image directory: %w", err)
	}
	w := &work{dir: dir}
	if w.lock, err = takeLock(filepath.Join(dir, lockFile), os.O_CREATE|os.O_EXCL, unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, w.discard())
	}
	return w, nil
}

// discard removes the directory. It may be called again.
func (w *work) discard() error {
	err := os.RemoveAll(w.dir)
	if err != nil {
		err = fmt.Errorf("cannot remove unfinished image=%s: %w", w.dir, err)
	}
	if w.lock != nil {
		err = errors.Join(err, w.lock.Close())
		w.lock = nil
	}
	return err
}
