package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Stage is one import under way: it collects layers, keeps them from being removed,
// and commits them as an image. Close it whatever happens.
type Stage struct {
	store Store
	work  *work

	mu    sync.Mutex
	holds []*os.File
	made  int
}

// Begin opens the store for an import, making it if need be, and removes what dead
// processes left.
func (s Store) Begin() (*Stage, error) {
	for _, dir := range []string{s.Dir, filepath.Join(s.Dir, imagesDir), filepath.Join(s.Dir, layersDir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("cannot create image store=%s: %w", s.Dir, err)
		}
	}
	lock, err := s.lockStore()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if _, err := s.sweep(); err != nil {
		return nil, err
	}
	w, err := s.newWork()
	if err != nil {
		return nil, err
	}
	return &Stage{store: s, work: w}, nil
}

// Close lets go of the layers and removes what was not committed.
func (st *Stage) Close() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	err := st.work.discard()
	for _, f := range st.holds {
		err = errors.Join(err, f.Close())
	}
	st.holds = nil
	return err
}

// Temp returns a file without a name, on the store's file system.
func (st *Stage) Temp() (*os.File, error) {
	fd, err := unix.Open(st.work.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), "temporary file"), nil
	}
	f, err := os.CreateTemp(st.work.dir, "file-")
	if err != nil {
		return nil, fmt.Errorf("cannot create temporary file: %w", err)
	}
	return f, os.Remove(f.Name())
}

// Lock is the lock that says that this import is alive. A child that writes into the
// stage has to inherit it.
func (st *Stage) Lock() *os.File { return st.work.lock }

// Layer returns the layer of this key. When the store lacks it, fill makes it: it
// gets an empty directory to fill, and says what it made. One process at a time makes
// a layer; the others wait, are told so, and take what came of it. The layer stays
// until the stage is closed.
//
// Nobody waits while making a layer, and who waits holds only layers that are
// finished, so that imports which need each other's layers never block each other.
func (st *Stage) Layer(ctx context.Context, key string, waiting func(), fill func(dir string) (Layer, error)) (Layer, error) {
	if !validKey(key) {
		return Layer{}, fmt.Errorf("internal error: layer key %q", key)
	}
	const pause = 20 * time.Millisecond
	for {
		l, err := st.find(key)
		if errors.Is(err, fs.ErrNotExist) {
			l, err = st.fill(key, fill)
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, errStale) {
			return l, err
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return Layer{}, ctx.Err()
		case <-time.After(pause): // a process that dies lets go of its locks, so this ends
		}
	}
}

// find takes a shared lock of a layer that is there. It returns EWOULDBLOCK while the
// layer is being made or removed.
func (st *Stage) find(key string) (Layer, error) {
	lock, err := takeNamedLock(st.store.layerPath(key)+lockSuffix, os.O_CREATE, unix.LOCK_SH|unix.LOCK_NB)
	if err != nil {
		return Layer{}, err
	}
	m, err := st.store.readLayer(key)
	if err != nil {
		return Layer{}, errors.Join(err, lock.Close())
	}
	st.hold(lock)
	return m.Layer, nil
}

func (st *Stage) hold(lock *os.File) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.holds = append(st.holds, lock)
}

// fill makes a layer under its exclusive lock, unless it has appeared meanwhile.
func (st *Stage) fill(key string, fill func(dir string) (Layer, error)) (Layer, error) {
	lock, err := takeNamedLock(st.store.layerPath(key)+lockSuffix, os.O_CREATE, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return Layer{}, err
	}
	if _, err := st.store.readLayer(key); !errors.Is(err, fs.ErrNotExist) {
		return Layer{}, errors.Join(err, errStale, lock.Close())
	}
	m, err := st.make(fill)
	if err == nil {
		err = st.put(key, m)
	}
	if err != nil {
		return Layer{}, errors.Join(err, lock.Close())
	}
	m.Key = key
	// The kernel lets go of the one lock before it takes the other, so a removal may
	// have come in between.
	if err := flock(lock, unix.LOCK_SH); err != nil {
		return Layer{}, errors.Join(err, lock.Close())
	}
	if !isNamed(lock, st.store.layerPath(key)+lockSuffix) {
		return Layer{}, errors.Join(errStale, lock.Close())
	}
	st.hold(lock)
	return m.Layer, nil
}

// New makes a layer whose key is known only afterwards, which key says.
func (st *Stage) New(ctx context.Context, fill func(dir string) (Layer, error), key func(Layer) string) (Layer, error) {
	m, err := st.make(fill)
	if err != nil {
		return Layer{}, err
	}
	l, err := st.Layer(ctx, key(m.Layer), nil, func(dir string) (Layer, error) {
		// What was made becomes the layer, in place of the empty directory.
		return m.Layer, unix.Rename(filepath.Join(m.dir, treeDir), dir)
	})
	return l, errors.Join(err, os.RemoveAll(m.dir))
}

// madeLayer is a layer together with the directory it was made in.
type madeLayer struct {
	Layer
	dir string
}

func (st *Stage) make(fill func(dir string) (Layer, error)) (madeLayer, error) {
	st.mu.Lock()
	st.made++
	dir := filepath.Join(st.work.dir, fmt.Sprintf("layer-%d", st.made))
	st.mu.Unlock()
	target := filepath.Join(dir, treeDir)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return madeLayer{}, fmt.Errorf("cannot create image directory=%s: %w", dir, err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return madeLayer{}, fmt.Errorf("cannot set mode of image directory=%s: %w", dir, err)
	}
	l, err := fill(target)
	if err != nil {
		return madeLayer{}, errors.Join(err, os.RemoveAll(dir))
	}
	return madeLayer{l, dir}, nil
}

// put gives a finished layer its name, all or nothing.
// Preconditions: the caller holds the layer's lock exclusively.
func (st *Stage) put(key string, m madeLayer) error {
	if err := writeJSON(filepath.Join(m.dir, layerFile), m.Layer); err != nil {
		return err
	}
	if err := syncDir(m.dir); err != nil {
		return fmt.Errorf("cannot write layer=%s: %w", key, err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, m.dir, unix.AT_FDCWD, st.store.layerPath(key), unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("cannot publish layer=%s: %w", key, err)
	}
	return nil
}

func (s Store) readLayer(key string) (madeLayer, error) {
	dir := s.layerPath(key)
	m := madeLayer{dir: dir}
	if err := readJSON(filepath.Join(dir, layerFile), &m.Layer); err != nil {
		return m, fmt.Errorf("cannot read layer=%s: %w", key, err)
	}
	m.Key = key
	return m, nil
}

// Commit makes an image of the stage's layers, or finds it there, and gives it its
// name. img needs everything but Size and Lowers. When the name is taken, replace
// decides between *ExistsError and letting go of the image it had.
func (st *Stage) Commit(img Image, id string, replace bool) (Image, error) {
	name, err := CanonicalName(img.Name)
	if err != nil {
		return Image{}, err
	}
	if !validKey(id) {
		return Image{}, fmt.Errorf("internal error: image id %q", id)
	}
	dir := filepath.Join(st.work.dir, "image")
	if err := st.writeImage(dir, img); err != nil {
		return Image{}, err
	}
	if err := syncDir(filepath.Join(st.store.Dir, layersDir)); err != nil {
		return Image{}, fmt.Errorf("cannot write image=%s: %w", name, err)
	}
	lock, err := st.store.lockStore()
	if err != nil {
		return Image{}, err
	}
	defer lock.Close()
	if _, err := os.Lstat(st.store.refPath(name)); err == nil && !replace {
		return Image{}, &ExistsError{Name: name}
	}
	err = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, st.store.imagePath(id), unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		err = nil // another name's
	}
	if err == nil {
		err = st.store.writeRef(st.work.dir, name, reference{
			ID: id, Index: img.Index, Kind: img.Kind, Source: img.Source,
			Created: time.Now().UTC().Truncate(time.Second), Counts: img.Counts,
		})
	}
	if err != nil {
		return Image{}, fmt.Errorf("cannot publish image=%s: %w", name, err)
	}
	return st.store.open(name)
}

func (st *Stage) writeImage(dir string, img Image) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("cannot create image directory=%s: %w", dir, err)
	}
	rec := record{Digest: img.Digest, Platform: img.Platform, Layers: img.Layers, Config: img.Config}
	if err := writeJSON(filepath.Join(dir, recordFile), rec); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(f.Close(), syncDir(dir))
	}
	if err != nil {
		return fmt.Errorf("cannot write image: %w", err)
	}
	return nil
}

// writeRef lets a name stand for an image, whatever it stood for before.
// Preconditions: the caller holds the store's lock.
func (s Store) writeRef(temp, name string, ref reference) error {
	path := filepath.Join(temp, "reference")
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeJSON(path, ref); err != nil {
		return err
	}
	if err := os.Rename(path, s.refPath(name)); err != nil {
		return err
	}
	return errors.Join(syncDir(filepath.Join(s.Dir, imagesDir)), syncDir(s.Dir))
}

// Retag gives the image of an index or manifest that the store has already another
// reference, or the same one again. It reports false when the store lacks it.
func (st *Stage) Retag(name, id string, like Image) (Image, bool, error) {
	name, err := CanonicalName(name)
	if err != nil {
		return Image{}, false, err
	}
	lock, err := st.store.lockStore()
	if err != nil {
		return Image{}, false, err
	}
	defer lock.Close()
	if _, err := st.store.openID(id); errors.Is(err, fs.ErrNotExist) {
		return Image{}, false, nil
	} else if err != nil {
		return Image{}, false, err
	}
	if old, err := st.store.open(name); err == nil && old.id == id && old.Index == like.Index && old.Source == like.Source {
		return old, true, nil
	}
	err = st.store.writeRef(st.work.dir, name, reference{
		ID: id, Index: like.Index, Kind: like.Kind, Source: like.Source, Created: time.Now().UTC().Truncate(time.Second),
	})
	if err != nil {
		return Image{}, false, fmt.Errorf("cannot publish image=%s: %w", name, err)
	}
	img, err := st.store.open(name)
	return img, true, err
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("internal error: cannot encode %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
