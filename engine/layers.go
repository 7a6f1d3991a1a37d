package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/direct-oci/engine/rootfs/image"
)

// Layer is a sealed tree that lies over the image. The run holds it, so that nobody
// removes it meanwhile.
type Layer struct {
	Store  string `json:"store"`  // which of the stores of layers has it, see Host.LayerStore
	Name   string `json:"name"`   // in that store
	Digest string `json:"digest"` // what it has to be, or the run fails
}

const (
	maxLayers = 8
	layersDir = "deps"
)

var layerStoreForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)

// LayerStore is the directory of a store of layers. Stores are apart so that whoever
// may write to one can do nothing to what others run.
func (h Host) LayerStore(name string) string {
	return filepath.Join(h.withDirs().StateDir, layersDir, name)
}

// LayerStores are the names of those there are.
func (h Host) LayerStores() ([]string, error) {
	entries, err := os.ReadDir(h.LayerStore(""))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && layerStoreForm.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// validateLayers checks how layers are named.
func (r Request) validateLayers() error {
	if len(r.Layers) > maxLayers {
		return Refused("bad_layer", "cannot accept %d layers: the limit is %d", len(r.Layers), maxLayers)
	}
	for _, l := range r.Layers {
		name, err := image.CanonicalName(l.Name)
		if err != nil || name != l.Name || !layerStoreForm.MatchString(l.Store) || !image.ValidDigest(l.Digest) {
			return Refused("bad_layer", "cannot accept layer=%q of store=%q with digest=%q: want two names and a digest", l.Name, l.Store, l.Digest)
		}
	}
	return nil
}

// addLayers puts the layers of the request over the image, the first one topmost, and
// holds each.
func (i *imageRoot) addLayers(h Host, layers []Layer) error {
	var lowers []string
	for _, l := range layers {
		img, err := image.Store{Dir: h.LayerStore(l.Store)}.Open(l.Name)
		if err == nil && img.Digest != l.Digest {
			return Failed("no_layer", "cannot use layer=%s of store=%s: it is %s, and %s was asked for", l.Name, l.Store, img.Digest, l.Digest)
		}
		if err != nil {
			return Failed("no_layer", "cannot use layer=%s of store=%s: %w", l.Name, l.Store, err).WithFix("make the same call again")
		}
		hold, err := img.Hold()
		if err != nil {
			return Failed("no_layer", "cannot hold layer=%s of store=%s: %w", l.Name, l.Store, err).WithFix("make the same call again")
		}
		i.holds = append(i.holds, hold)
		lowers = append(lowers, img.Lowers...)
	}
	i.lowers = append(lowers, i.lowers...)
	return nil
}
