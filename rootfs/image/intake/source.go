package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

// Source is where the documents and blobs of one image come from. What it returns is
// checked by its user.
type Source interface {
	// Root is what the reference stands for. Its bytes are those of the descriptor; a
	// source that knows no digest of its own leaves it empty.
	Root(ctx context.Context) (Descriptor, []byte, error)
	// Blob opens a manifest, a configuration or a layer.
	Blob(ctx context.Context, d Descriptor) (io.ReadCloser, error)
}

const refName = "org.opencontainers.image.ref.name"

// blobs opens files of a layout by their names.
type blobs interface {
	open(name string) (io.ReadCloser, int64, error)
}

// layout is an OCI layout, of which ref names one image.
type layout struct {
	files blobs
	ref   string
}

func (l layout) Blob(_ context.Context, d Descriptor) (io.ReadCloser, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	r, _, err := l.files.open("blobs/sha256/" + strings.TrimPrefix(d.Digest, "sha256:"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &BlobError{d.Digest, "the layout lacks it"}
	}
	return r, err
}

// Root is the one manifest or index that index.json leads to.
func (l layout) Root(ctx context.Context) (Descriptor, []byte, error) {
	none := Descriptor{}
	raw, err := readFile(l.files, "index.json")
	if err != nil {
		return none, nil, err
	}
	top, err := parseDocument(raw, "")
	if err != nil {
		return none, nil, err
	}
	if !top.isIndex() {
		return none, nil, &image.FormatError{What: "index", Why: "index.json is none"}
	}
	found, err := l.named(top.Manifests)
	if err != nil {
		return none, nil, err
	}
	if len(found) > 1 {
		// Several platforms of one image: index.json itself is the choice.
		return Descriptor{MediaType: ociIndex}, raw, nil
	}
	if err := found[0].check(); err != nil {
		return none, nil, err
	}
	raw, err = readDocument(ctx, l, found[0])
	return found[0], raw, err
}

// named returns the entries of index.json that are the image asked for.
func (l layout) named(all []Descriptor) ([]Descriptor, error) {
	var found []Descriptor
	names := map[string]bool{}
	for _, d := range all {
		name := d.Annotations[refName]
		names[name] = true
		if l.ref == "" || name == l.ref {
			found = append(found, d)
		}
	}
	var list []string
	for name := range names {
		if name != "" && len(list) < 16 {
			list = append(list, tree.Quote(name))
		}
	}
	switch {
	case len(found) == 0 && l.ref != "":
		return nil, &image.FormatError{What: "index", Why: "it has no image called " + tree.Quote(l.ref), Fix: "name one of these with --ref: " + strings.Join(list, ", ")}
	case len(found) == 0:
		return nil, &image.FormatError{What: "index", Why: "it lists no image"}
	case l.ref == "" && len(names) > 1:
		return nil, &image.FormatError{What: "index", Why: fmt.Sprintf("it has %d images", len(names)), Fix: "name one of these with --ref: " + strings.Join(list, ", ")}
	}
	return found, nil
}

func readFile(files blobs, name string) ([]byte, error) {
	r, size, err := files.open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", name, err)
	}
	if size > MaxDocument {
		return nil, errors.Join(fmt.Errorf("%s is longer than %d bytes", name, MaxDocument), r.Close())
	}
	data, err := io.ReadAll(io.LimitReader(r, MaxDocument))
	return data, errors.Join(err, r.Close())
}

// directory is a layout on disk. Names are opened below it, following no link.
type directory struct{ *os.File }

func (d directory) open(name string) (io.ReadCloser, int64, error) {
	fd, err := unix.Openat2(int(d.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, 0, err
	}
	f := os.NewFile(uintptr(fd), name)
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, st.Size(), nil
}

// dockerArchive is what docker save writes: a list of images, each a configuration and
// the plain archives of its layers.
type dockerArchive struct {
	files  blobs
	config []byte
	paths  map[string]string // of a layer's archive, by its digest
	doc    document
}

// openDocker reads manifest.json and finds the image that ref names.
func openDocker(files blobs, ref string) (*dockerArchive, error) {
	raw, err := readFile(files, "manifest.json")
	if err != nil {
		return nil, err
	}
	bad := func(why, fix string) error { return &image.FormatError{What: "manifest", Why: why, Fix: fix} }
	if err := checkKeys(raw); err != nil {
		return nil, bad(err.Error(), "")
	}
	var list []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, bad(err.Error(), "")
	}
	var tags []string
	found := -1
	for i, m := range list {
		for _, tag := range m.RepoTags {
			tags = append(tags, tree.Quote(tag))
			if sameReference(tag, ref) {
				found = i
			}
		}
	}
	if ref == "" && len(list) == 1 {
		found = 0
	}
	if found < 0 {
		return nil, bad(fmt.Sprintf("it lists %d images, and none that is called %s", len(list), tree.Quote(ref)), "name one of these with --ref: "+strings.Join(tags[:min(len(tags), 16)], ", "))
	}
	m := list[found]
	a := &dockerArchive{files: files, paths: map[string]string{}}
	if a.config, err = readFile(files, m.Config); err != nil {
		return nil, err
	}
	return a, a.describe(m.Config, m.Layers)
}

func sameReference(tag, ref string) bool {
	a, aerr := image.CanonicalName(tag)
	b, berr := image.CanonicalName(ref)
	return aerr == nil && berr == nil && a == b
}

// describe checks the configuration against its name, where that is a digest, and
// makes the manifest that the archive lacks.
func (a *dockerArchive) describe(name string, layers []string) error {
	config := Descriptor{MediaType: dockerConfig, Digest: digestOf(a.config), Size: int64(len(a.config))}
	hex := strings.TrimSuffix(strings.TrimPrefix(name, "blobs/sha256/"), ".json")
	if image.ValidDigest("sha256:"+hex) && "sha256:"+hex != config.Digest {
		return &BlobError{"sha256:" + hex, "its digest is " + config.Digest}
	}
	c, _, err := parseConfig(a.config, len(layers))
	if err != nil {
		return err
	}
	a.doc = document{MediaType: dockerManifest, Config: &config}
	for i, path := range layers {
		id := c.RootFS.DiffIDs[i]
		r, size, err := a.files.open(path)
		if err != nil {
			return fmt.Errorf("cannot open layer=%s: %w", tree.Quote(path), err)
		}
		if err := r.Close(); err != nil {
			return err
		}
		a.paths[id] = path
		a.doc.Layers = append(a.doc.Layers, Descriptor{MediaType: dockerLayer, Digest: id, Size: size})
	}
	return a.doc.check("manifest")
}

func (a *dockerArchive) layer(d Descriptor) (io.ReadCloser, error) {
	r, _, err := a.files.open(a.paths[d.Digest])
	return r, err
}
