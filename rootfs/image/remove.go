package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image/tree"
)

// Freed is what a removal gave back.
type Freed struct {
	Names  []string `json:"names"`  // references; never null
	Images int      `json:"images"` // images without a name that no run held
	Layers int      `json:"layers"` // layers of no image
	Rests  int      `json:"rests"`  // of dead imports and removals
	Bytes  int64    `json:"bytes"`  // on disk
}

// Remove takes a name away and deletes what nothing needs any more. It returns
// *NotFoundError when there is no such name, and *HeldError while a run holds the
// image and the name is its last one. The name is free at once; when deleting the
// files fails then, the next import or removal goes on.
func (s Store) Remove(name string) (Freed, error) {
	name, err := CanonicalName(name) // and no more: what cannot be read can still be removed
	if err != nil {
		return Freed{}, err
	}
	return s.collect(func() ([]string, error) {
		if err := s.unname(name); err != nil {
			return nil, err
		}
		return []string{name}, nil
	})
}

// Prune deletes what dead processes left, images without a name and layers of no
// image; with all set also every image that no run holds.
func (s Store) Prune(all bool) (Freed, error) {
	return s.collect(func() ([]string, error) {
		if !all {
			return nil, nil
		}
		names, err := s.names()
		if err != nil {
			return nil, err
		}
		var gone []string
		for _, name := range names {
			err := s.unname(name)
			var held *HeldError
			if errors.As(err, &held) {
				continue
			}
			if err != nil {
				return gone, err
			}
			gone = append(gone, name)
		}
		return gone, nil
	})
}

// unname removes a reference, unless a run would be left with an image of no name.
// Preconditions: the caller holds the store's lock.
func (s Store) unname(name string) error {
	path := s.refPath(name)
	var ref reference
	err := readJSON(path, &ref)
	if errors.Is(err, fs.ErrNotExist) {
		return &NotFoundError{Name: name}
	}
	if err == nil && validKey(ref.ID) {
		users, err := s.users()
		if err != nil {
			return err
		}
		lock, err := takeLock(filepath.Join(s.imagePath(ref.ID), lockFile), 0, unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EWOULDBLOCK) && users[ref.ID] == 1:
			return &HeldError{Name: name}
		case err == nil:
			defer lock.Close()
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("cannot remove image=%s: %w", name, err)
		}
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("cannot remove image=%s: %w", name, err)
	}
	return syncDir(s.Dir)
}

// users counts the names of each image.
func (s Store) users() (map[string]int, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	users := map[string]int{}
	for _, name := range names {
		var ref reference
		if err := readJSON(s.refPath(name), &ref); err == nil {
			users[ref.ID]++
		}
	}
	return users, nil
}

// collect lets drop take names away and then removes what nothing refers to. Files
// are deleted after the store's lock was let go: they may be many.
func (s Store) collect(drop func() ([]string, error)) (Freed, error) {
	if _, err := os.Lstat(s.Dir); errors.Is(err, fs.ErrNotExist) {
		_, err := drop() // without making a store for it
		return Freed{Names: []string{}}, err
	}
	lock, err := s.lockStore()
	if err != nil {
		return Freed{}, err
	}
	freed, trash, err := func() (Freed, *work, error) {
		defer lock.Close()
		names, err := drop()
		if err != nil {
			return Freed{}, nil, err
		}
		rests, err := s.sweep()
		freed := Freed{Names: append([]string{}, names...), Rests: rests}
		if err != nil {
			return freed, nil, err
		}
		trash, err := s.newWork()
		if err != nil {
			return freed, nil, err
		}
		return freed, trash, s.retire(trash, &freed)
	}()
	if trash != nil {
		err = errors.Join(err, trash.discard())
	}
	return freed, err
}

// retire moves images without a name and layers of no image into trash.
// Preconditions: the caller holds the store's lock.
//
// SECURITY: no layer is removed that a run stands on or an import is about to use.
// The run's files would vanish under it, or an image would be published that lacks a layer.
// Holds because: an image goes only while its lock can be had exclusively, a layer only while its
// own can and no image that is left has it; both are looked at under the store's lock.
// Not covered: a removal by other means than this package. Checked by: TestHoldOrRemove, TestPruneKeepsWhatIsNeeded.
func (s Store) retire(trash *work, freed *Freed) error {
	users, err := s.users()
	if err != nil {
		return err
	}
	needed := map[string]bool{}
	ids, err := dirNames(filepath.Join(s.Dir, imagesDir))
	if err != nil {
		return err
	}
	for _, id := range ids {
		gone := false
		if users[id] == 0 {
			if gone, err = retireLocked(s.imagePath(id), filepath.Join(s.imagePath(id), lockFile), filepath.Join(trash.dir, "image-"+id)); err != nil {
				return err
			}
		}
		if gone {
			freed.Images++
			continue
		}
		var rec record
		if err := readJSON(filepath.Join(s.imagePath(id), recordFile), &rec); err != nil {
			return fmt.Errorf("cannot read image=%s: %w", id, err) // and so not know its layers
		}
		for _, l := range rec.Layers {
			needed[l.Key] = true
		}
	}
	return s.retireLayers(trash, needed, freed)
}

func (s Store) retireLayers(trash *work, needed map[string]bool, freed *Freed) error {
	entries, err := dirNames(filepath.Join(s.Dir, layersDir))
	if err != nil {
		return err
	}
	for _, name := range entries {
		key := strings.TrimSuffix(name, lockSuffix)
		if needed[key] || name == key {
			continue // a layer is looked at once, by its lock
		}
		path := s.layerPath(key)
		size := int64(0)
		if m, err := s.readLayer(key); err == nil {
			size = m.Size
		}
		gone, err := retireLocked(path, path+lockSuffix, filepath.Join(trash.dir, "layer-"+key))
		if err != nil {
			return err
		}
		if gone && size > 0 {
			freed.Layers++
			freed.Bytes += size
		}
	}
	return nil
}

// retireLocked renames what stands at path away, and its lock with it, unless somebody
// has the lock.
func retireLocked(path, lockPath, to string) (bool, error) {
	lock, err := takeLock(lockPath, 0, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("cannot remove %s: %w", path, err)
	}
	if lock != nil {
		defer lock.Close()
	}
	if err := os.Rename(path, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("cannot remove %s: %w", path, err)
	}
	if err := os.Remove(lockPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("cannot remove %s: %w", lockPath, err)
	}
	return true, nil
}

func dirNames(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot list %s: %w", path, err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// sweep removes what dead imports and removals left, and returns how much it was.
// Preconditions: the caller holds the store's lock, so no work is between being made
// and being locked.
func (s Store) sweep() (int, error) {
	names, err := dirNames(s.Dir)
	if err != nil {
		return 0, err
	}
	swept := 0
	for _, name := range names {
		if !strings.HasPrefix(name, tempPrefix) {
			continue
		}
		w := work{dir: filepath.Join(s.Dir, name)}
		w.lock, err = takeLock(filepath.Join(w.dir, lockFile), os.O_CREATE, unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
			continue // alive, or just finished
		}
		if err != nil {
			return swept, fmt.Errorf("cannot remove unfinished image=%s: %w", tree.Quote(w.dir), err)
		}
		if err := w.discard(); err != nil {
			return swept, err
		}
		swept++
	}
	return swept, nil
}
