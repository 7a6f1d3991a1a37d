package intake

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

// archive finds files in a plain tar archive that can be read at any place. It holds
// their names and places only.
type archive struct {
	f     *os.File
	files map[string]extent
	links map[string]string
}

type extent struct{ start, size int64 }

const (
	maxMembers     = 100_000
	maxMemberNames = 16 << 20 // bytes
)

func indexArchive(f *os.File) (*archive, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	a := &archive{f: f, files: map[string]extent{}, links: map[string]string{}}
	r := tar.NewReader(f)
	names := 0
	for count := 0; ; count++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return nil, err
		}
		if names += len(h.Name) + len(h.Linkname); count >= maxMembers || names > maxMemberNames {
			return nil, &tree.LimitError{What: "files in an archive of layers", Limit: maxMembers}
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			start, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			if _, twice := a.files[name]; twice {
				return nil, &image.FormatError{What: "archive", Why: "it holds " + tree.Quote(name) + " twice"}
			}
			a.files[name] = extent{start, h.Size}
		case tar.TypeSymlink:
			a.links[name] = path.Join(path.Dir(name), h.Linkname) // Docker's, between layers
		case tar.TypeLink:
			a.links[name] = path.Clean(h.Linkname)
		}
	}
}

func (a *archive) has(name string) bool {
	_, ok := a.files[name]
	return ok
}

func (a *archive) open(name string) (io.ReadCloser, int64, error) {
	clean := path.Clean(name)
	for range 8 {
		if e, ok := a.files[clean]; ok {
			return io.NopCloser(io.NewSectionReader(a.f, e.start, e.size)), e.size, nil
		}
		next, ok := a.links[clean]
		if !ok {
			break
		}
		clean = next
	}
	return nil, 0, fmt.Errorf("the archive holds no %s: %w", tree.Quote(name), fs.ErrNotExist)
}

// holdsLayers tells by the first file's name in the start of a plain archive whether
// it is one of layers. No root file system begins with any of these.
func holdsLayers(start []byte) bool {
	r := tar.NewReader(bytes.NewReader(start))
	name := "."
	for name == "." {
		h, err := r.Next()
		if err != nil {
			return false
		}
		name = path.Clean(h.Name)
	}
	switch name {
	case "blobs", "blobs/sha256", "index.json", "oci-layout", "manifest.json", "repositories":
		return true
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(name, "blobs/sha256/"), "/")
	first = strings.TrimSuffix(strings.TrimSuffix(first, ".json"), ".tar")
	return image.ValidDigest("sha256:" + first)
}
