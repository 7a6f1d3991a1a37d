package intake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

// sealedKind is the kind of an image that is one sealed layer.
const sealedKind = "sealed"

// TakeSealed makes an image of one layer out of the plain archive that stream carries,
// whoever wrote that. It holds the directory top and nothing beside it, which hides one
// of the same name in images below. What is in it is made root's and read-only; devices,
// fifos and links that lead out refuse the whole. The image's digest is that of its
// tree. A name that is taken is given to the new image.
//
// The stream is read to its end before the image gets its name; whoever writes it must
// not end it before it is known to be whole. Source is what errors call it: o.Origin.
func TakeSealed(ctx context.Context, o Options, stream io.Reader, top string) (image.Image, error) {
	stage, err := o.Store.Begin()
	if err != nil {
		return image.Image{}, spaceError(o.Store.Dir, err)
	}
	img, err := o.sealed(ctx, stage, stream, top)
	if err == nil {
		img, err = stage.Commit(img, "tree-"+strings.TrimPrefix(img.Digest, "sha256:"), true)
	}
	return img, spaceError(o.Store.Dir, errors.Join(err, stage.Close()))
}

func (o Options) sealed(ctx context.Context, stage *image.Stage, stream io.Reader, top string) (image.Image, error) {
	img := image.Image{Name: o.Name, Kind: sealedKind, Source: o.Origin}
	l, err := stage.New(ctx, func(dir string) (image.Layer, error) {
		limits := o.Store.Limits
		limits.Sealed = true
		rep, err := o.Unpacker.Unpack(ctx, dir, limits, stage.Lock(), stream)
		if img.Counts = rep.Counts; err != nil {
			return image.Layer{}, err
		}
		if n := rep.Counts.Devices + rep.Counts.Pipes; n > 0 {
			return image.Layer{}, &SourceError{Source: o.Origin, Why: fmt.Sprintf("it holds %d devices, fifos or sockets", n)}
		}
		root, err := os.Open(dir)
		if err != nil {
			return image.Layer{}, fmt.Errorf("cannot open layer: %w", err)
		}
		defer root.Close()
		seen, err := tree.Inspect(ctx, root)
		if img.Digest = seen.Digest; err != nil {
			return image.Layer{}, err
		}
		if info, err := os.Lstat(filepath.Join(dir, top)); err != nil || !info.IsDir() || len(seen.Top) != 1 {
			return image.Layer{}, &SourceError{Source: o.Origin, Why: "it is not the directory " + top + " alone"}
		}
		if _, err := tree.SetMarks(root, tree.Marks{Opaque: map[string]bool{top: true}}); err != nil {
			return image.Layer{}, err
		}
		var l image.Layer
		return l, settle(dir, &l)
	}, func(image.Layer) string { return "tree-" + strings.TrimPrefix(img.Digest, "sha256:") })
	img.Layers = []image.Layer{l}
	return img, err
}
