package intake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

// importRoot makes an image of one layer out of a root file system: the directory
// source, or the plain archive that stream carries.
func importRoot(ctx context.Context, o Options, source *os.File, stream io.Reader, kind string) (image.Image, error) {
	stage, err := o.Store.Begin()
	if err != nil {
		return image.Image{}, err
	}
	img, err := rootImage(ctx, o, stage, source, stream)
	if err == nil {
		img.Kind = kind
		img, err = stage.Commit(img, "tree-"+strings.TrimPrefix(img.Digest, "sha256:"), false)
	}
	return img, errors.Join(err, stage.Close())
}

func rootImage(ctx context.Context, o Options, stage *image.Stage, source *os.File, stream io.Reader) (image.Image, error) {
	img := image.Image{Name: o.Name, Source: o.Origin}
	l, err := stage.New(ctx, func(dir string) (image.Layer, error) {
		root, err := os.Open(dir)
		if err != nil {
			return image.Layer{}, fmt.Errorf("cannot open image directory=%s: %w", dir, err)
		}
		defer root.Close()
		if stream == nil {
			img.Counts, err = copyRoot(ctx, o, root, source)
		} else {
			var rep report
			rep, err = o.Unpacker.Unpack(ctx, dir, o.Store.Limits, stage.Lock(), stream)
			img.Counts = rep.Counts
		}
		if err != nil {
			return image.Layer{}, err
		}
		return o.inspect(ctx, dir, root, &img)
	}, func(image.Layer) string { return "tree-" + strings.TrimPrefix(img.Digest, "sha256:") })
	img.Layers = []image.Layer{l}
	return img, err
}

// copyRoot copies the tree below source. A directory is the host's own, and no format
// has to be taken apart, so that this process does it.
func copyRoot(ctx context.Context, o Options, root, source *os.File) (tree.Counts, error) {
	inside, err := tree.Contains(source, root)
	if err != nil {
		return tree.Counts{}, fmt.Errorf("cannot compare src=%s with image store=%s: %w", source.Name(), o.Store.Dir, err)
	}
	if inside {
		return tree.Counts{}, &SourceError{Source: source.Name(), Why: "the image store " + o.Store.Dir + " is inside it"}
	}
	w, err := tree.NewWriter(ctx, root, o.Store.Limits)
	if err != nil {
		return tree.Counts{}, err
	}
	err = w.Finish(w.PutDir(source))
	return w.Counts, err
}

// inspect finds out what a finished root file system is.
func (o Options) inspect(ctx context.Context, dir string, root *os.File, img *image.Image) (image.Layer, error) {
	seen, err := tree.Inspect(ctx, root)
	if err != nil {
		return image.Layer{}, err
	}
	want := o.want()
	if seen.Arch != "" {
		is := Platform{OS: "linux", Architecture: seen.Arch}
		if !is.suits(want) {
			return image.Layer{}, platformError([]string{is.String()}, want, seen.Teller)
		}
		img.Platform = is.String()
	}
	if img.Digest = seen.Digest; seen.Top["oci-layout"] && seen.Top["index.json"] {
		return image.Layer{}, &SourceError{Source: o.Origin, Why: "it holds an OCI layout among other files", Fix: "import the layout by itself"}
	}
	var l image.Layer
	return l, settle(dir, &l)
}

// patchImplied makes a layer of directories, if one is needed. A layer may hold a file
// without saying how the directories above it look; overlayfs shows those as the
// layer's own, made up, ones where the layers below know better.
func patchImplied(ctx context.Context, stage *image.Stage, store image.Store, layers []image.Layer) ([]image.Layer, error) {
	m := merged{}
	defer m.close()
	for _, l := range layers {
		root, err := os.Open(store.Tree(l.Key))
		if err != nil {
			return nil, fmt.Errorf("cannot open layer=%s: %w", l.Key, err)
		}
		implied := map[string]bool{}
		for _, name := range l.Implied {
			implied[string(name)] = true
		}
		m = append(m, mergedLayer{root, implied, l.HidesAll})
	}
	wanted, err := m.differing(ctx)
	if err != nil || len(wanted) == 0 {
		return nil, err
	}
	digest := ""
	l, err := stage.New(ctx, func(dir string) (image.Layer, error) {
		root, err := os.Open(dir)
		if err != nil {
			return image.Layer{}, fmt.Errorf("cannot open layer: %w", err)
		}
		defer root.Close()
		w, err := tree.NewWriter(ctx, root, tree.Limits{})
		if err != nil {
			return image.Layer{}, err
		}
		for _, e := range wanted {
			if err := w.Put(e); err != nil {
				return image.Layer{}, errors.Join(err, w.Finish(nil))
			}
		}
		if err := w.Finish(nil); err != nil {
			return image.Layer{}, err
		}
		seen, err := tree.Inspect(ctx, root)
		digest = seen.Digest
		var l image.Layer
		return l, errors.Join(err, settle(dir, &l))
	}, func(image.Layer) string { return "tree-" + strings.TrimPrefix(digest, "sha256:") })
	return []image.Layer{l}, err
}
