package engine

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"

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
	case "direct":
		path, err := Program("engine-launch")
		return ociruntime.Info{Name: "direct", Version: Version, Path: path}, err
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
func openRuntime(info ociruntime.Info, linked func(ociruntime.Info) ociruntime.Runtime) (ociruntime.Runtime, error) {
	if rt := linked(info); rt != nil {
		return rt, nil
	}
	return ociruntime.New(info.Name, info.Path, info.Version)
}

// RuntimeSHA256 returns the SHA-256 of the program that a runtime of this name is, in
// hexadecimal: for the embedded one, of engine-monitor. The error is an *Error.
func (h Host) RuntimeSHA256(ctx context.Context, name string) (string, error) {
	h, err := h.resolved()
	if err != nil {
		return "", err
	}
	info, err := chooseRuntime(ctx, name, h.RunDir)
	if err != nil {
		return "", err
	}
	path := info.Path
	if info.Name == "embedded" {
		path = h.Monitor
	}
	sum, err := ociruntime.SHA256(path, h.RunDir)
	if err != nil {
		return "", Failed("bad_runtime", "%w", err)
	}
	return sum, nil
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
	info   ImageInfo
	lowers []string   // from top to bottom
	holds  []*os.File // keep the image and the layers from being removed
}

func (i imageRoot) release() error {
	var errs []error
	for _, f := range i.holds {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// openRoot finds what the request names, the layers over its image too, and holds on
// to it. After an error what is held already is in the root all the same.
func openRoot(h Host, req Request) (imageRoot, error) {
	root, err := openImage(h, req)
	if err == nil {
		err = root.addLayers(h, req.Layers)
	}
	return root, err
}

func openImage(h Host, req Request) (imageRoot, error) {
	if req.Rootfs != "" {
		info, err := os.Stat(req.Rootfs)
		if err != nil {
			return imageRoot{}, Refused("bad_root", "cannot use rootfs=%s: %w", req.Rootfs, err).
				WithFix("name the directory that holds the root file system, with its /bin and /etc")
		}
		if !info.IsDir() {
			return imageRoot{}, Refused("bad_root", "cannot use rootfs=%s: it is not a directory", req.Rootfs).
				WithFix("make an image of an archive with engine image import, and run that with --image")
		}
		return imageRoot{info: ImageInfo{Ref: req.Rootfs}, lowers: []string{req.Rootfs}}, nil
	}
	img, err := findImage(h, req)
	if err != nil {
		return imageRoot{}, err
	}
	hold, err := img.Hold()
	if err != nil {
		return imageRoot{}, Failed("no_image", "%w", err)
	}
	return imageRoot{info: ImageInfo{Ref: req.Image, Digest: &img.Digest}, lowers: img.Lowers, holds: []*os.File{hold}}, nil
}

// findImage opens the image that the request's name stands for; once that is settled,
// whatever the name comes to stand for later.
func findImage(h Host, req Request) (image.Image, error) {
	store := image.Store{Dir: h.imageDir()}
	var img image.Image
	var err error
	if req.ImageID == "" {
		img, err = store.Open(req.Image)
	} else {
		img, err = store.OpenID(req.Image, req.ImageID)
	}
	if err != nil {
		return img, Refused("no_image", "%w", err)
	}
	if req.ImageDigest != "" && req.ImageDigest != img.Digest {
		return img, Refused("other_image", "cannot use image=%s: it is %s, and %s was asked for", img.Name, img.Digest, req.ImageDigest)
	}
	if host := "linux/" + runtime.GOARCH; img.Platform != "" && img.Platform != host && !strings.HasPrefix(img.Platform, host+"/") {
		return img, Refused("no_image", "%w", &image.PlatformError{Image: img.Name, Has: []string{img.Platform}, Want: host})
	}
	return img, nil
}

// settle completes a request from its image: which one the name stands for now, and
// what the request leaves open. From then on it does not depend on the name.
func (r Request) settle(h Host) (Request, error) {
	var c image.Config
	if r.Image != "" {
		img, err := findImage(h, r)
		if err != nil {
			return r, err
		}
		r.Image, r.ImageID, c = img.Name, img.ID(), img.Config
	}
	if len(r.Command) == 0 && r.Session == nil {
		if r.Command = c.Command(); len(r.Command) == 0 {
			return r, Refused("bad_command", "cannot run nothing: image=%s names no default command", r.Image).
				WithFix("write the command after --")
		}
	}
	if r.UID == 0 && r.GID == 0 {
		r.UID, r.GID = DefaultUID, DefaultUID
		if uid, gid, ok := c.IDs(); ok {
			r.UID, r.GID = uid, gid
		}
	}
	if r.Workdir == "" && validateInside("workdir", c.Workdir) == nil {
		r.Workdir = c.Workdir
	}
	if len(c.Env) > 0 {
		r.Env = environ(c.Env, r.Env)
	}
	r.Limits = r.Limits.Sized()
	return r, r.Validate()
}
