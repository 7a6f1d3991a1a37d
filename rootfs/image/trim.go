package image

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
)

// Touch notes that a name is in use now, for Trim.
func (s Store) Touch(name string) error {
	name, err := CanonicalName(name)
	if err != nil {
		return err
	}
	now := time.Now()
	if err := os.Chtimes(s.refPath(name), now, now); err != nil {
		return fmt.Errorf("cannot note that image=%s is used: %w", name, err)
	}
	return nil
}

// Trim takes names away that were neither made nor touched since before, and of the
// rest those longest unused that are beyond maxBytes on disk together. It then deletes
// what nothing needs any more. What a run holds stays. A name is counted with all its
// layers, also with those that others have too.
func (s Store) Trim(before time.Time, maxBytes int64) (Freed, error) {
	return s.collect(func() ([]string, error) {
		names, err := s.names()
		if err != nil {
			return nil, err
		}
		type used struct {
			name string
			at   time.Time
			size int64
		}
		var all []used
		for _, name := range names {
			info, err := os.Stat(s.refPath(name))
			if err != nil {
				return nil, fmt.Errorf("cannot look at image=%s: %w", name, err)
			}
			u := used{name: name, at: info.ModTime()}
			if img, err := s.open(name); err == nil { // what cannot be read can still be removed
				u.size = img.Size
			}
			all = append(all, u)
		}
		slices.SortFunc(all, func(a, b used) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.name, b.name)) })
		var gone []string
		var total int64
		for _, u := range all {
			if total += u.size; total <= maxBytes && !u.at.Before(before) {
				continue
			}
			err := s.unname(u.name)
			var held *HeldError
			if errors.As(err, &held) {
				continue
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return gone, err
			}
			total -= u.size
			gone = append(gone, u.name)
		}
		return gone, nil
	})
}
