package engine

import (
	"context"
	"errors"
	"os"

	"github.com/direct-oci/engine/engine/ociruntime"
	"github.com/direct-oci/engine/rootfs/image"
)

// chooseRuntime finds the runtime that a request names. auto is runsc where it is
// installed and usable, otherwise the embedded one; the result says which it was.
func chooseRuntime(ctx context.Context, name string, cacheDir string) (ociruntime.Info, error) {
	embedded := ociruntime.Info{Name: "embedded"} // the monitor knows its version
	switch name {
	case "embedded":
		return embedded, nil
	case "auto":
		rt, err := ociruntime.Find(ctx, "runsc", toolDirs(), cacheDir)
		if err != nil {
			return embedded, nil
		}
		return rt.Info(), nil
	}
	rt, err := ociruntime.Find(ctx, name, toolDirs(), cacheDir)
	var unsupported *ociruntime.UnsupportedError
	if errors.As(err, &unsupported) {
		return ociruntime.Info{}, Refused("bad_runtime", "cannot use runtime=%s: %w", name, err)
	}
	if err != nil {
		return ociruntime.Info{}, Failed("bad_runtime", "%w", err)
	}
	return rt.Info(), nil
}

// openRuntime is the runtime that the caller chose, in the monitor.
func openRuntime(info ociruntime.Info, embedded ociruntime.Runtime) (ociruntime.Runtime, error) {
	if info.Name == "embedded" {
		return embedded, nil
	}
	return ociruntime.New(info.Name, info.Path, info.Version)
}

// ImageDigest returns the digest of an imported image, which a request may name in
// ImageDigest. The error is an *Error.
func (h Host) ImageDigest(name string) (string, error) {
	img, err := image.Store{Dir: h.withDirs().imageDir()}.Open(name)
	if err != nil {
		return "", Refused("no_image", "%w", err)
	}
	return img.Digest, nil
}

// imageRoot is the file system that a run starts from.
type imageRoot struct {
	info  ImageInfo
	lower string
	hold  *os.File // keeps an image from being removed; nil for a directory
}

func (i imageRoot) release() error {
	if i.hold == nil {
		return nil
	}
	return i.hold.Close()
}

// openImage finds what the request names and holds on to it.
func openImage(h Host, req Request) (imageRoot, error) {
	if req.Rootfs != "" {
		info, err := os.Stat(req.Rootfs)
		if err != nil {
			return imageRoot{}, Refused("bad_root", "cannot use rootfs=%s: %w", req.Rootfs, err)
		}
		if !info.IsDir() {
			return imageRoot{}, Refused("bad_root", "cannot use rootfs=%s: it is not a directory", req.Rootfs)
		}
		return imageRoot{info: ImageInfo{Ref: req.Rootfs}, lower: req.Rootfs}, nil
	}
	img, err := image.Store{Dir: h.imageDir()}.Open(req.Image)
	if err != nil {
		return imageRoot{}, Refused("no_image", "%w", err)
	}
	hold, err := img.Hold()
	if err != nil {
		return imageRoot{}, Failed("no_image", "%w", err)
	}
	if req.ImageDigest != "" && req.ImageDigest != img.Digest {
		hold.Close()
		return imageRoot{}, Refused("other_image", "cannot use image=%s: it is %s, and %s was asked for", img.Name, img.Digest, req.ImageDigest)
	}
	return imageRoot{info: ImageInfo{Ref: img.Name, Digest: &img.Digest}, lower: img.Rootfs, hold: hold}, nil
}
