// Package image keeps root file systems for sandboxes in a directory, without a
// daemon. An image comes from a directory or an archive that nobody vouches for,
// is imported once, and is never changed: runs put an overlay over it.
//
//	Store.Dir/<name>/rootfs/     the tree
//	Store.Dir/<name>/image.json  what Open returns
//	Store.Dir/<name>/lock        shared: a run holds the image; exclusive: it is being removed
//	Store.Dir/.tmp-*/            an import or removal under way, or left by a dead one
//	Store.Dir/.lock              held for the moment in which names appear and vanish
//
// Importing needs root (CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER). An import that is
// killed leaves nothing that Open or List see, and the next one removes its rest.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Store is a directory of images. It is made by the first import.
type Store struct {
	Dir        string // required
	MaxBytes   int64  // of file content in one image; 0: 64 GiB, or less where the disk is fuller
	MaxEntries int64  // files, directories and links in one image; 0: a million
}

const (
	defaultMaxBytes   = 64 << 30
	defaultMaxEntries = 1_000_000
	// An import leaves this much of the disk free by default: a twentieth, and no
	// more than reserve bytes.
	reserve, reservePart = 1 << 30, 20
	metadataFile         = "image.json"
	rootfsDir            = "rootfs"
)

// Image describes one image. It is what image.json holds.
type Image struct {
	Name    string    `json:"name"`
	Digest  string    `json:"digest"` // of the tree, "sha256:…"
	Kind    string    `json:"kind"`   // directory, tar, tar+gzip, tar+zstd or tar+xz
	Source  string    `json:"source"` // where it was imported from
	Arch    string    `json:"arch"`   // as Go calls it; empty: no program to tell by
	Size    int64     `json:"size"`   // bytes on disk
	Created time.Time `json:"created"`
	Counts  Counts    `json:"counts"`
	Rootfs  string    `json:"-"` // absolute path of the tree
}

// Import makes an image called name of src, a directory or a tar archive (plain,
// gzip, zstd or xz). It returns *NameError, *ExistsError, *SourceError, *EntryError,
// *LimitError or *ArchError for what the caller can change. Concurrent imports of one
// name end in one image, and *ExistsError for the others.
func (s Store) Import(ctx context.Context, src, name string) (Image, error) {
	name, err := canonicalName(name)
	if err != nil {
		return Image{}, err
	}
	source, err := openSource(src)
	if err != nil {
		return Image{}, err
	}
	defer source.Close()
	w, err := s.newWork(name)
	if err != nil {
		return Image{}, err
	}
	defer w.lock.Close()
	img, err := s.fill(ctx, w, source, src)
	if err == nil {
		img.Name = name
		err = s.publish(w, &img)
	}
	if err != nil {
		return Image{}, errors.Join(err, w.discard())
	}
	return img, nil
}

func openSource(src string) (*os.File, error) {
	f, err := os.OpenFile(src, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &SourceError{Source: src, Why: "it does not exist", cause: err}
	}
	if err != nil {
		return nil, &SourceError{Source: src, Why: err.Error(), cause: err}
	}
	st, err := f.Stat()
	if err == nil && !st.IsDir() && !st.Mode().IsRegular() {
		err = errors.New("it is neither a directory nor a file")
	}
	if err != nil {
		return nil, errors.Join(&SourceError{Source: src, Why: err.Error(), cause: err}, f.Close())
	}
	return f, nil
}

// fill writes the tree into w and everything but the name into the image.
func (s Store) fill(ctx context.Context, w *work, source *os.File, src string) (Image, error) {
	path := filepath.Join(w.dir, rootfsDir)
	if err := os.Mkdir(path, 0o755); err != nil {
		return Image{}, fmt.Errorf("cannot create image directory=%s: %w", path, err)
	}
	root, err := os.Open(path)
	if err != nil {
		return Image{}, fmt.Errorf("cannot open image directory=%s: %w", path, err)
	}
	defer root.Close()
	t := &tree{ctx: ctx, root: root, maxEntries: s.MaxEntries, maxBytes: s.MaxBytes, buf: make([]byte, 1<<20)}
	if err := t.limit(); err != nil {
		return Image{}, err
	}
	if err := finishRoot(root); err != nil {
		return Image{}, err
	}
	kind, err := s.unpack(t, source, src)
	if err != nil {
		return Image{}, err
	}
	seen, err := inspectTree(ctx, root)
	if err != nil {
		return Image{}, err
	}
	if seen.top["oci-layout"] || (seen.top["manifest.json"] && !seen.top["bin"] && !seen.top["usr"]) {
		return Image{}, &SourceError{
			Source: src, Why: "it is an archive of image layers, not a root file system",
			Fix: "Unpack it with umoci or skopeo first, or write it with docker export in place of docker save.",
		}
	}
	if err := unix.Syncfs(int(root.Fd())); err != nil {
		return Image{}, fmt.Errorf("cannot sync image directory=%s: %w", path, err)
	}
	abs, err := filepath.Abs(src)
	if err != nil {
		return Image{}, fmt.Errorf("cannot make src=%s absolute: %w", src, err)
	}
	return Image{
		Digest: seen.digest, Kind: kind, Source: abs, Arch: seen.arch,
		Size: seen.disk, Created: time.Now().UTC().Truncate(time.Second), Counts: t.counts,
	}, nil
}

// finishRoot gives the top directory what it has unless the source names it.
func finishRoot(root *os.File) error {
	if err := root.Chmod(0o755); err != nil {
		return fmt.Errorf("cannot set mode of image root: %w", err)
	}
	return setTime(root, unix.Timespec{})
}

// limit replaces zero limits by the default ones.
func (t *tree) limit() error {
	if t.maxEntries == 0 {
		t.maxEntries = defaultMaxEntries
	}
	if t.maxBytes != 0 {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(t.root.Fd()), &st); err != nil {
		return fmt.Errorf("cannot read free space: %w", err)
	}
	kept := min(reserve, int64(st.Blocks)*st.Bsize/reservePart)
	t.maxBytes = max(0, min(defaultMaxBytes, int64(st.Bavail)*st.Bsize-kept))
	return nil
}

func (s Store) unpack(t *tree, source *os.File, src string) (string, error) {
	st, err := source.Stat()
	if err != nil {
		return "", &SourceError{Source: src, Why: err.Error(), cause: err}
	}
	if !st.IsDir() {
		kind, err := importTar(t, source)
		return kind, sourceError(src, err)
	}
	inside, err := contains(source, t.root)
	if err != nil {
		return "", fmt.Errorf("cannot compare src=%s with image store=%s: %w", src, s.Dir, err)
	}
	if inside {
		return "", &SourceError{Source: src, Why: "the image store " + s.Dir + " is inside it"}
	}
	return "directory", sourceError(src, importDir(t, source))
}

// sourceError adds the source's name to errors that name nothing yet.
func sourceError(src string, err error) error {
	var entry *EntryError
	var limit *LimitError
	if err == nil || errors.As(err, &entry) || errors.As(err, &limit) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	why := err.Error()
	if errors.Is(err, io.ErrUnexpectedEOF) {
		why = "it is cut off"
	}
	return &SourceError{Source: src, Why: why, cause: err}
}

// Open returns the image of this name, or *NotFoundError or *NameError.
func (s Store) Open(name string) (Image, error) {
	name, err := canonicalName(name)
	if err != nil {
		return Image{}, err
	}
	dir, err := filepath.Abs(s.path(name))
	if err != nil {
		return Image{}, fmt.Errorf("cannot make store=%s absolute: %w", s.Dir, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, metadataFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, &NotFoundError{Name: name}
	}
	if err != nil {
		return Image{}, fmt.Errorf("cannot read image=%s: %w", name, err)
	}
	var img Image
	if err := json.Unmarshal(data, &img); err != nil {
		return Image{}, fmt.Errorf("cannot read image=%s: %w", name, err)
	}
	img.Name = name
	img.Rootfs = filepath.Join(dir, rootfsDir)
	return img, nil
}

// List returns the images in the order of their names. Those that can be read are
// returned even when the error, which then names the others, is not nil.
func (s Store) List() ([]Image, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot list images=%s: %w", s.Dir, err)
	}
	var images []Image
	var failed []error
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		img, err := s.Open(fromDir.Replace(e.Name()))
		var gone *NotFoundError // removed meanwhile
		switch {
		case err == nil:
			images = append(images, img)
		case !errors.As(err, &gone):
			failed = append(failed, err)
		}
	}
	slices.SortFunc(images, func(a, b Image) int { return strings.Compare(a.Name, b.Name) })
	return images, errors.Join(failed...)
}

func (s Store) path(canonical string) string { return filepath.Join(s.Dir, toDir.Replace(canonical)) }
