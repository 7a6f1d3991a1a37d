package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	lockFile   = "lock"
	tempPrefix = ".tmp-"
)

// work is a directory in which an image is made or taken apart. Whoever holds its
// lock lives: the kernel lets go of a dead process's.
type work struct {
	dir  string
	lock *os.File
}

// discard removes the directory. It may be called again.
func (w *work) discard() error {
	if err := os.RemoveAll(w.dir); err != nil {
		return fmt.Errorf("cannot remove unfinished image=%s: %w", w.dir, err)
	}
	return nil
}

// newWork makes the directory for an import, and removes those of dead ones.
func (s Store) newWork(name string) (*work, error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create image store=%s: %w", s.Dir, err)
	}
	store, err := s.lockStore()
	if err != nil {
		return nil, err
	}
	defer store.Close()
	if _, err := os.Lstat(s.path(name)); err == nil {
		return nil, &ExistsError{Name: name}
	}
	if err := s.sweep(); err != nil {
		return nil, err
	}
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

// lockStore serialises the appearance and removal of names.
func (s Store) lockStore() (*os.File, error) {
	return takeLock(filepath.Join(s.Dir, ".lock"), os.O_CREATE, unix.LOCK_EX)
}

func takeLock(path string, flags, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|flags, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// sweep removes what dead imports and removals left.
// Preconditions: the caller holds the store's lock, so no work is between being made
// and being locked.
func (s Store) sweep() error {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return fmt.Errorf("cannot list images=%s: %w", s.Dir, err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), tempPrefix) {
			continue
		}
		w := work{dir: filepath.Join(s.Dir, e.Name())}
		w.lock, err = takeLock(filepath.Join(w.dir, lockFile), os.O_CREATE, unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
			continue // alive, or just finished
		}
		if err != nil {
			return fmt.Errorf("cannot remove unfinished image=%s: %w", w.dir, err)
		}
		if err := errors.Join(w.discard(), w.lock.Close()); err != nil {
			return err
		}
	}
	return nil
}

// publish writes image.json and gives the finished work its name, all or nothing.
func (s Store) publish(w *work, img *Image) error {
	data, err := json.MarshalIndent(img, "", "  ")
	if err != nil {
		return fmt.Errorf("internal error: cannot encode image=%s: %w", img.Name, err)
	}
	if err := writeSynced(filepath.Join(w.dir, metadataFile), append(data, '\n')); err != nil {
		return fmt.Errorf("cannot write image=%s: %w", img.Name, err)
	}
	if err := syncDir(w.dir); err != nil {
		return fmt.Errorf("cannot write image=%s: %w", img.Name, err)
	}
	store, err := s.lockStore()
	if err != nil {
		return err
	}
	defer store.Close()
	path := s.path(img.Name)
	err = unix.Renameat2(unix.AT_FDCWD, w.dir, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		return &ExistsError{Name: img.Name}
	}
	if err != nil {
		return fmt.Errorf("cannot publish image=%s: %w", img.Name, err)
	}
	w.dir = path // what a failure from here on has to remove
	if err := syncDir(s.Dir); err != nil {
		return fmt.Errorf("cannot publish image=%s: %w", img.Name, err)
	}
	if img.Rootfs, err = filepath.Abs(filepath.Join(path, rootfsDir)); err != nil {
		return fmt.Errorf("cannot make store=%s absolute: %w", s.Dir, err)
	}
	return nil
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Hold keeps the image from being removed until the returned file, and every
// duplicate of it in a child, is closed. It returns *NotFoundError when the image is
// gone or going.
func (i Image) Hold() (*os.File, error) {
	path := filepath.Join(filepath.Dir(i.Rootfs), lockFile)
	f, err := takeLock(path, 0, unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EWOULDBLOCK) {
		return nil, &NotFoundError{Name: i.Name}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot hold image=%s: %w", i.Name, err)
	}
	// Removal renames the directory while it holds the lock: a lock that is no
	// longer under its name came too late.
	opened, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot hold image=%s: %w", i.Name, err), f.Close())
	}
	named, err := os.Lstat(path)
	if err != nil || !os.SameFile(opened, named) {
		return nil, errors.Join(&NotFoundError{Name: i.Name}, f.Close())
	}
	return f, nil
}

// Remove deletes the image of this name. It returns *NotFoundError when there is
// none, and *HeldError while a run holds it. The name is free as soon as the image
// is renamed away; when deleting its files fails then, the next import goes on.
func (s Store) Remove(name string) error {
	name, err := canonicalName(name) // and no more: what cannot be read can still be removed
	if err != nil {
		return err
	}
	w, err := s.retire(name)
	if err != nil {
		return err
	}
	return errors.Join(w.discard(), w.lock.Close())
}

// retire takes the image's name away and returns what is left to be deleted.
func (s Store) retire(name string) (*work, error) {
	path := s.path(name)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, &NotFoundError{Name: name} // without making a store for it
	}
	store, err := s.lockStore()
	if err != nil {
		return nil, err
	}
	defer store.Close()
	lock, err := takeLock(filepath.Join(path, lockFile), 0, unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, &HeldError{Name: name}
	case errors.Is(err, fs.ErrNotExist):
		return nil, &NotFoundError{Name: name}
	case err != nil:
		return nil, fmt.Errorf("cannot remove image=%s: %w", name, err)
	}
	temp, err := os.MkdirTemp(s.Dir, tempPrefix)
	if err == nil {
		err = unix.Rename(path, temp) // onto an empty directory
	}
	if err == nil {
		err = syncDir(s.Dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot remove image=%s: %w", name, err), lock.Close())
	}
	return &work{dir: temp, lock: lock}, nil
}
