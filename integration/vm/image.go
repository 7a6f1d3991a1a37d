package vm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// keep is how long an image that nobody uses stays in the cache.
const keep = 2 * time.Hour

// entry is one file of an image to be.
type entry struct {
	name   string // in the image, without a leading slash
	mode   fs.FileMode
	source string // file of the host; otherwise
	text   string // the content, or a symbolic link's target
}

// cachedImage returns the image of the given entries, making it if it is not in
// the cache. Images of the same kind that were not used for long are removed.
func cachedImage(cache, kind string, entries []entry, free int64) (string, error) {
	key, err := keyOf(entries)
	if err != nil {
		return "", err
	}
	image := filepath.Join(cache, fmt.Sprintf("%s-%s.ext4", kind, key))
	now := time.Now()
	if err := os.Chtimes(image, now, now); err == nil {
		return image, nil
	}
	if err := prune(cache, kind); err != nil {
		return "", err
	}
	tmp, err := newImage(cache, entries, free)
	if err != nil {
		return "", err
	}
	return image, os.Rename(tmp, image)
}

// newImage makes an image of a name of its own, for one use or to be renamed.
func newImage(cache string, entries []entry, free int64) (image string, err error) {
	tree, err := os.MkdirTemp(cache, "tmp-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tree)) }()
	for _, e := range entries {
		if err := e.write(tree); err != nil {
			return "", err
		}
	}
	if err := os.Chmod(tree, 0o755); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(cache, "scrap-*.ext4")
	if err != nil {
		return "", err
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	return f.Name(), makeExt4(tree, f.Name(), free)
}

// keyOf hashes all that makes an image what it is.
func keyOf(entries []entry) (string, error) {
	sum := sha256.New()
	for _, e := range entries {
		fmt.Fprintf(sum, "%q %o %q\n", e.name, e.mode, e.text)
		if e.source == "" {
			continue
		}
		f, err := os.Open(e.source)
		if err != nil {
			return "", err
		}
		n, err := io.Copy(sum, f)
		f.Close()
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "\n%d\n", n)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

// write puts the entry below tree.
func (e entry) write(tree string) error {
	path := filepath.Join(tree, e.name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	switch {
	case e.mode.IsDir():
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	case e.mode&fs.ModeSymlink != 0:
		return os.Symlink(e.text, path)
	case e.source != "":
		return copyFile(e.source, path, e.mode)
	default:
		if err := os.WriteFile(path, []byte(e.text), 0o600); err != nil {
			return err
		}
	}
	return os.Chmod(path, e.mode)
}

func copyFile(from, to string, mode fs.FileMode) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Chmod(mode)
}

// makeExt4 makes image an ext4 file system of the tree with about so much room
// left. There is no journal and no checksum: it lives for seconds.
func makeExt4(tree, image string, free int64) error {
	var size, files int64
	err := filepath.WalkDir(tree, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files++
		size += info.Size()/4096*4096 + 4096
		return nil
	})
	if err != nil {
		return err
	}
	const mib = 1 << 20
	total := size + size/16 + files*512 + free + 8*mib
	_, err = output("/", "mkfs.ext4", "-q", "-F", "-O", "^has_journal,^metadata_csum", "-m", "0",
		"-E", "root_owner=0:0,lazy_itable_init=1,nodiscard", "-d", tree, image, fmt.Sprintf("%dM", total/mib))
	return err
}

// prune removes images of a kind, and leftovers of killed harnesses.
func prune(cache, kind string) error {
	old := time.Now().Add(-keep)
	for _, pattern := range []string{kind + "-*", "tmp-*", "scrap-*", "accel-*"} {
		names, err := filepath.Glob(filepath.Join(cache, pattern))
		if err != nil {
			return err
		}
		for _, name := range names {
			info, err := os.Lstat(name)
			if err != nil || info.ModTime().After(old) {
				continue // gone already, or in use
			}
			if err := os.RemoveAll(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeFile replaces path in one step.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "tmp-")
	if err != nil {
		return err
	}
	_, err = io.Copy(f, bytes.NewReader(data))
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}
