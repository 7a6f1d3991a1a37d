package intake

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

// Export writes the image called name to the file out as a tar archive that is an OCI
// layout and one of docker save at once. It returns the digest of the manifest in it,
// which is another than the image's own: the store keeps trees, not the archives they
// came in, and what it leaves out on the way in is not in the export either. The same
// image always gives the same bytes. A file that is there is replaced, at the end.
func Export(ctx context.Context, s image.Store, name, out string) (digest string, err error) {
	img, err := s.Open(name)
	if err != nil {
		return "", err
	}
	hold, err := img.Hold()
	if err != nil {
		return "", err
	}
	defer hold.Close()
	dir := filepath.Dir(out)
	f, err := os.CreateTemp(dir, ".engine-export-")
	if err != nil {
		return "", fmt.Errorf("cannot create a file beside output=%s: %w", out, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	x := exporter{ctx: ctx, store: s, w: tar.NewWriter(f)}
	if digest, err = x.write(img); err != nil {
		return "", spaceError(dir, fmt.Errorf("cannot export image=%s: %w", img.Name, err))
	}
	if err := errors.Join(f.Chmod(0o644), f.Sync()); err != nil {
		return "", spaceError(dir, fmt.Errorf("cannot export image=%s: %w", img.Name, err))
	}
	if err := os.Rename(f.Name(), out); err != nil {
		return "", fmt.Errorf("cannot create output=%s: %w", out, err)
	}
	return digest, f.Close()
}

type exporter struct {
	ctx   context.Context
	store image.Store
	w     *tar.Writer
}

// ociImage is a configuration as other tools want it.
type ociImage struct {
	Created      time.Time     `json:"created"`
	Architecture string        `json:"architecture"`
	Variant      string        `json:"variant,omitempty"`
	OS           string        `json:"os"`
	Config       ociImageInner `json:"config"`
	RootFS       struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	History []history `json:"history"`
}

type ociImageInner struct {
	User       string   `json:"User,omitempty"`
	Env        []string `json:"Env,omitempty"`
	Entrypoint []string `json:"Entrypoint,omitempty"`
	Cmd        []string `json:"Cmd,omitempty"`
	WorkingDir string   `json:"WorkingDir,omitempty"`
}

type history struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        *Descriptor  `json:"config,omitempty"`
	Layers        []Descriptor `json:"layers,omitempty"`
	Manifests     []Descriptor `json:"manifests,omitempty"`
}

func (x exporter) write(img image.Image) (string, error) {
	epoch := time.Unix(0, 0).UTC()
	p := HostPlatform()
	if img.Platform != "" {
		var err error
		if p, err = ParsePlatform(img.Platform); err != nil {
			return "", err
		}
	}
	config := ociImage{Created: epoch, Architecture: p.Architecture, Variant: p.Variant, OS: p.OS}
	config.Config = ociImageInner{User: img.Config.User, Env: img.Config.Env, Entrypoint: img.Config.Entrypoint, Cmd: img.Config.Cmd, WorkingDir: img.Config.Workdir}
	config.RootFS.Type = "layers"
	m := manifest{SchemaVersion: 2, MediaType: ociManifest}
	if err := x.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return "", err
	}
	written := map[string]bool{}
	for _, l := range img.Layers {
		d, err := x.layer(l, written)
		if err != nil {
			return "", err
		}
		m.Layers = append(m.Layers, d)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, d.Digest)
		config.History = append(config.History, history{epoch, "engine image export"})
	}
	c, err := x.document(ociConfig, config)
	if err != nil {
		return "", err
	}
	m.Config = &c
	d, err := x.document(ociManifest, m)
	if err != nil {
		return "", err
	}
	if err := x.indexes(img.Name, p, d, m); err != nil {
		return "", err
	}
	return d.Digest, x.w.Close()
}

// indexes writes what leads to the manifest: OCI's and Docker's.
func (x exporter) indexes(name string, p Platform, d Descriptor, m manifest) error {
	_, tag, ok := strings.Cut(path.Base(name), ":")
	if !ok {
		tag = "latest"
	}
	d.Platform = &p
	d.Annotations = map[string]string{refName: tag}
	index, err := json.Marshal(manifest{SchemaVersion: 2, MediaType: ociIndex, Manifests: []Descriptor{d}})
	if err != nil {
		return err
	}
	repo, _, _ := strings.Cut(name, "@")
	if !ok {
		repo += ":latest"
	}
	list := []map[string]any{{"Config": blobPath(m.Config.Digest), "RepoTags": []string{repo}, "Layers": blobPaths(m.Layers)}}
	docker, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return errors.Join(x.file("index.json", index), x.file("manifest.json", docker))
}

func blobPath(digest string) string { return "blobs/sha256/" + strings.TrimPrefix(digest, "sha256:") }

func blobPaths(all []Descriptor) []string {
	paths := make([]string, len(all))
	for i, d := range all {
		paths[i] = blobPath(d.Digest)
	}
	return paths
}

func (x exporter) document(mediaType string, v any) (Descriptor, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return Descriptor{}, err
	}
	d := Descriptor{MediaType: mediaType, Digest: digestOf(data), Size: int64(len(data))}
	return d, x.file(blobPath(d.Digest), data)
}

func (x exporter) file(name string, data []byte) error {
	if err := x.header(name, int64(len(data))); err != nil {
		return err
	}
	_, err := x.w.Write(data)
	return err
}

func (x exporter) header(name string, size int64) error {
	return x.w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
}

// layer writes a layer's archive, which is read twice: an archive's name is its digest,
// and comes first.
func (x exporter) layer(l image.Layer, written map[string]bool) (Descriptor, error) {
	h := sha256.New()
	count := &counter{w: h}
	if err := x.archive(l, count); err != nil {
		return Descriptor{}, err
	}
	d := Descriptor{MediaType: ociLayer, Digest: "sha256:" + hex.EncodeToString(h.Sum(nil)), Size: count.n}
	if written[d.Digest] {
		return d, nil
	}
	written[d.Digest] = true
	if err := x.header(blobPath(d.Digest), d.Size); err != nil {
		return d, err
	}
	return d, x.archive(l, x.w)
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

func (x exporter) archive(l image.Layer, out io.Writer) error {
	root, err := os.Open(x.store.Tree(l.Key))
	if err != nil {
		return fmt.Errorf("cannot open layer=%s: %w", l.Key, err)
	}
	defer root.Close()
	a := packer{ctx: x.ctx, w: tar.NewWriter(out), linked: map[uint64]string{}}
	if l.HidesAll {
		if err := a.mark(".wh..wh..opq"); err != nil {
			return err
		}
	}
	if _, err := tree.Walk(root, a.visit); err != nil {
		return err
	}
	return a.w.Close()
}

// packer makes a layer's archive out of its tree.
type packer struct {
	ctx    context.Context
	w      *tar.Writer
	linked map[uint64]string // first name of each file that has several, by its inode
}

// mark writes an entry that only says something by its name.
func (a packer) mark(name string) error {
	return a.w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
}

func (a packer) visit(f tree.Found) error {
	if err := a.ctx.Err(); err != nil {
		return err
	}
	if f.IsWhiteout() {
		return a.mark(path.Join(path.Dir(f.Path), ".wh."+f.Name))
	}
	h := &tar.Header{
		Name: f.Path, Mode: int64(f.Stat.Mode & 0o7777), Uid: int(f.Stat.Uid), Gid: int(f.Stat.Gid),
		ModTime: time.Unix(f.Stat.Mtim.Sec, f.Stat.Mtim.Nsec), Format: tar.FormatPAX, PAXRecords: map[string]string{},
	}
	switch f.Kind() {
	case unix.S_IFDIR:
		return a.directory(f, h)
	case unix.S_IFLNK:
		target, err := f.Readlink()
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return a.w.WriteHeader(h)
	case unix.S_IFREG:
		return a.regular(f, h)
	}
	return fmt.Errorf("cannot export file=%s of mode %o", tree.Quote(f.Path), f.Stat.Mode)
}

func (a packer) directory(f tree.Found, h *tar.Header) error {
	fd, err := unix.Openat(int(f.Dir.Fd()), f.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), f.Path)
	defer dir.Close()
	if err := attributes(dir, h); err != nil {
		return err
	}
	h.Typeflag, h.Name = tar.TypeDir, f.Path+"/"
	if err := a.w.WriteHeader(h); err != nil || !tree.IsOpaque(dir) {
		return err
	}
	return a.mark(path.Join(f.Path, ".wh..wh..opq"))
}

func (a packer) regular(f tree.Found, h *tar.Header) error {
	h.Typeflag, h.Size = tar.TypeReg, f.Stat.Size
	if f.Stat.Nlink > 1 {
		if first, ok := a.linked[f.Stat.Ino]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return a.w.WriteHeader(h)
		}
		a.linked[f.Stat.Ino] = f.Path
	}
	src, err := f.Open()
	if err != nil {
		return err
	}
	defer src.Close()
	if err := attributes(src, h); err != nil {
		return err
	}
	if err := a.w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(a.w, src)
	return err
}

func attributes(f *os.File, h *tar.Header) error {
	return tree.Xattrs(f, func(name string, value []byte) error {
		if tree.KeepXattr(name) {
			h.PAXRecords[xattrRecord+name] = string(value)
		}
		return nil
	})
}
