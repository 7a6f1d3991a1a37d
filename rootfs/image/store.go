// Package image keeps the images that sandboxes start from in a directory, without a
// daemon. An image is a list of layers; each layer is one directory, shared by all
// images that have it, and never changed: runs put an overlay over them.
//
//	Store.Dir/<name>                    what a name stands for now (JSON)
//	Store.Dir/.images/<id>/image.json   an image: its layers, its defaults
//	Store.Dir/.images/<id>/lock         shared: a run holds the image; exclusive: it is being removed
//	Store.Dir/.layers/<key>/tree/       a layer, as one directory of an overlay
//	Store.Dir/.layers/<key>/layer.json  what is known of it
//	Store.Dir/.layers/<key>.lock        exclusive: it is being made or removed; shared: an import needs it
//	Store.Dir/.tmp-*/                   work under way, or left by a dead process
//	Store.Dir/.lock                     held for the moment in which any of them appears or vanishes
//
// A layer's key is the digest of its uncompressed archive, or for a root file system
// that of its tree. Names, images and layers appear by rename, complete or not at
// all. A process that is killed leaves nothing behind but temporary directories,
// which the next import or removal deletes. All of it needs root.
//
// This package reads, holds and removes, and gives importers a Stage to write
// through. It parses nothing that comes from outside.
package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/direct-oci/engine/rootfs/image/tree"
)

// Store is a directory of images. It is made by the first import.
type Store struct {
	Dir    string // required
	Limits tree.Limits
}

// Image describes one image under one name.
type Image struct {
	Name     string      `json:"name"`
	Digest   string      `json:"digest"`          // of the manifest; of the tree where there is none
	Index    string      `json:"index,omitempty"` // digest of what the reference named, when it was a choice of several
	Kind     string      `json:"kind"`            // registry, oci, docker, directory, tar, tar+gzip, tar+zstd or tar+xz
	Source   string      `json:"source"`          // where it came from
	Platform string      `json:"platform"`        // "linux/amd64"; empty: no program to tell by
	Size     int64       `json:"size"`            // bytes of its layers on disk
	Shared   int64       `json:"shared"`          // of which other images have too; List fills it in
	Created  time.Time   `json:"created"`         // in this store, under this name
	Counts   tree.Counts `json:"counts"`          // of what was unpacked for it
	Layers   []Layer     `json:"layers"`          // from bottom to top
	Config   Config      `json:"config"`
	Lowers   []string    `json:"-"` // absolute paths of the layers' trees, from top to bottom

	id    string
	store Store
}

// Layer is one directory of an image.
type Layer struct {
	Key      string      `json:"key"`              // "sha256-…" or "tree-…": its name in the store
	Digest   string      `json:"digest,omitempty"` // of the blob it came in
	DiffID   string      `json:"diffId,omitempty"` // of the uncompressed archive
	Size     int64       `json:"size"`             // bytes on disk
	HidesAll bool        `json:"hidesAll,omitempty"`
	Implied  [][]byte    `json:"implied,omitempty"` // directories whose looks are those of the layers below
	Counts   tree.Counts `json:"-"`
}

// reference is what the file of a name holds.
type reference struct {
	ID      string      `json:"id"`
	Index   string      `json:"index,omitempty"`
	Kind    string      `json:"kind"`
	Source  string      `json:"source"`
	Created time.Time   `json:"created"`
	Counts  tree.Counts `json:"counts"`
}

// record is what image.json holds.
type record struct {
	Digest   string  `json:"digest"`
	Platform string  `json:"platform"`
	Layers   []Layer `json:"layers"`
	Config   Config  `json:"config"`
}

const (
	imagesDir  = ".images"
	layersDir  = ".layers"
	recordFile = "image.json"
	layerFile  = "layer.json"
	treeDir    = "tree"
	lockFile   = "lock"
	lockSuffix = ".lock"
	tempPrefix = ".tmp-"
)

func (s Store) refPath(canonical string) string {
	return filepath.Join(s.Dir, toFile.Replace(canonical))
}
func (s Store) imagePath(id string) string  { return filepath.Join(s.Dir, imagesDir, id) }
func (s Store) layerPath(key string) string { return filepath.Join(s.Dir, layersDir, key) }

// Tree is the directory of a layer's tree.
func (s Store) Tree(key string) string { return filepath.Join(s.layerPath(key), treeDir) }

// Open returns the image of this name, or *NotFoundError or *NameError.
func (s Store) Open(name string) (Image, error) {
	name, err := CanonicalName(name)
	if err != nil {
		return Image{}, err
	}
	return s.open(name)
}

func (s Store) open(name string) (Image, error) {
	var ref reference
	if err := readJSON(s.refPath(name), &ref); errors.Is(err, fs.ErrNotExist) {
		return Image{}, &NotFoundError{Name: name}
	} else if err != nil {
		return Image{}, fmt.Errorf("cannot read image=%s: %w", name, err)
	}
	img, err := s.openID(ref.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, &NotFoundError{Name: name} // removed between the two
	}
	if err != nil {
		return Image{}, fmt.Errorf("cannot read image=%s: %w", name, err)
	}
	img.Name, img.Index, img.Kind, img.Source = name, ref.Index, ref.Kind, ref.Source
	img.Created, img.Counts = ref.Created, ref.Counts
	return img, nil
}

// ID is the image's name in the store, which never stands for another.
func (i Image) ID() string { return i.id }

// OpenID returns the image of an ID that Open gave out, under the name it had then,
// or *NotFoundError.
func (s Store) OpenID(name, id string) (Image, error) {
	img, err := s.openID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, &NotFoundError{Name: name}
	}
	if err != nil {
		return Image{}, fmt.Errorf("cannot read image=%s: %w", name, err)
	}
	img.Name = name
	return img, nil
}

// openID reads what is known of an image apart from its names.
func (s Store) openID(id string) (Image, error) {
	if !validKey(id) {
		return Image{}, fmt.Errorf("its record names %s", tree.Quote(id))
	}
	var rec record
	if err := readJSON(filepath.Join(s.imagePath(id), recordFile), &rec); err != nil {
		return Image{}, err
	}
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return Image{}, fmt.Errorf("cannot make store=%s absolute: %w", s.Dir, err)
	}
	abs := Store{Dir: dir, Limits: s.Limits}
	img := Image{Digest: rec.Digest, Platform: rec.Platform, Layers: rec.Layers, Config: rec.Config, id: id, store: abs}
	seen := map[string]bool{}
	for _, l := range slices.Backward(rec.Layers) {
		if !validKey(l.Key) {
			return Image{}, fmt.Errorf("its record names %s", tree.Quote(l.Key))
		}
		if seen[l.Key] {
			continue // whatever it holds, the same layer above it holds too
		}
		seen[l.Key] = true
		img.Size += l.Size
		img.Lowers = append(img.Lowers, abs.Tree(l.Key))
		if l.HidesAll {
			break
		}
	}
	return img, nil
}

// validKey accepts the names that the store gives to layers and images.
func validKey(key string) bool {
	kind, hex, ok := strings.Cut(key, "-")
	return ok && (kind == "sha256" || kind == "tree" || kind == "config") && ValidDigest("sha256:"+hex)
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// names returns the canonical names in the store.
func (s Store) names() ([]string, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot list images=%s: %w", s.Dir, err)
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, fromFile.Replace(e.Name()))
		}
	}
	slices.Sort(names)
	return names, nil
}

// List returns the images in the order of their names. Those that can be read are
// returned even when the error, which then names the others, is not nil.
func (s Store) List() ([]Image, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var images []Image
	var failed []error
	users := map[string]map[string]bool{} // of a layer: images
	for _, name := range names {
		img, err := s.Open(name)
		var gone *NotFoundError // removed meanwhile
		switch {
		case err == nil:
			images = append(images, img)
		case !errors.As(err, &gone):
			failed = append(failed, err)
		}
		for _, l := range img.Layers {
			if users[l.Key] == nil {
				users[l.Key] = map[string]bool{}
			}
			users[l.Key][img.id] = true
		}
	}
	for i := range images {
		for _, l := range images[i].Layers {
			if len(users[l.Key]) > 1 {
				images[i].Shared += l.Size
			}
		}
	}
	return images, errors.Join(failed...)
}
