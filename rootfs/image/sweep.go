package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Sweep removes what dead imports and removals left, and returns the names of it,
// which dryRun keeps. Whoever is at work meanwhile is not disturbed.
func (s Store) Sweep(dryRun bool) ([]string, error) {
	if _, err := os.Lstat(s.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	store, err := s.lockStore()
	if err != nil {
		return nil, err
	}
	defer store.Close()
	left, err := s.abandoned()
	if err != nil || dryRun {
		return left, err
	}
	_, err = s.sweep()
	return left, err
}

// abandoned are the names of unfinished images that nobody holds.
// Preconditions: the caller holds the store's lock.
func (s Store) abandoned() ([]string, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list images=%s: %w", s.Dir, err)
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), tempPrefix) {
			continue
		}
		lock, err := takeLock(filepath.Join(s.Dir, e.Name(), lockFile), 0, unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue
		}
		if err == nil {
			err = lock.Close()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return names, fmt.Errorf("cannot look at unfinished image=%s: %w", e.Name(), err)
		}
		names = append(names, e.Name())
	}
	return names, nil
}
