// Package archive makes an archive of a directory, and a directory of an archive of which
// nobody knows who made it. It knows no sandbox, and leaves behind what it wrote.
package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// What one archive may hold, as much as the service puts into one.
const (
	maxArchived      = 200_000
	maxArchivedBytes = 4 << 30
)

// Unpack writes the files of an archive below a directory. What it does not write it
// tells leftOut. After an error a part may be there.
//
// SECURITY: nothing that a sandbox or its service sends is written outside the directory.
// Otherwise copying a result out would let a sandbox replace a file of the host's.
// Holds because: every file is made through an os.Root, names that rise are an error, no
// link is made that leads out, and only directories, files and links are made, without
// set-id bits. Not covered: what the files hold.
// Checked by: TestUnpackIsSafe, FuzzUnpack.
func Unpack(root *os.Root, from io.Reader, leftOut func(path, why string)) error {
	u := &unpacker{root: root, leftOut: leftOut}
	in := tar.NewReader(from)
	for n := 0; ; n++ {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return u.finish()
		}
		if err == nil && n == maxArchived {
			err = fmt.Errorf("the archive has more than %d files", maxArchived)
		}
		if err == nil {
			err = u.entry(h, in)
		}
		if err != nil {
			return errors.Join(err, u.finish())
		}
	}
}

type unpacker struct {
	root    *os.Root
	leftOut func(path, why string)
	bytes   int64
	modes   []directoryMode
}

// directoryMode is set at the end: a directory may forbid to write into it.
type directoryMode struct {
	name string
	mode fs.FileMode
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	name := path.Clean(h.Name)
	if !filepath.IsLocal(name) {
		return fmt.Errorf("the archive has a file called %q, which would be outside", h.Name)
	}
	mode := fs.FileMode(h.Mode) & fs.ModePerm
	switch h.Typeflag {
	case tar.TypeDir:
		if name == "." {
			return nil
		}
		u.modes = append(u.modes, directoryMode{name, mode})
		return u.root.MkdirAll(name, 0o700)
	case tar.TypeReg:
		return u.file(name, h, mode, content)
	case tar.TypeSymlink:
		if !linkStaysInside(name, h.Linkname) {
			u.leftOut(name, "a link that leads out of the directory")
			return nil
		}
		if err := u.clear(name); err != nil {
			return err
		}
		return u.root.Symlink(h.Linkname, name)
	}
	u.leftOut(name, "no file, directory or link")
	return nil
}

// clear makes room for a file or link, with the directories above it.
func (u *unpacker) clear(name string) error {
	if err := u.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	info, err := u.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a directory already", name)
	}
	return u.root.Remove(name)
}

func (u *unpacker) file(name string, h *tar.Header, mode fs.FileMode, content io.Reader) error {
	if u.bytes += h.Size; h.Size < 0 || u.bytes > maxArchivedBytes {
		return fmt.Errorf("the archive has more than %d bytes", int64(maxArchivedBytes))
	}
	if err := u.clear(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = u.root.Chtimes(name, h.ModTime, h.ModTime)
	}
	return err
}

// finish gives directories their modes, those below first.
func (u *unpacker) finish() error {
	var errs []error
	for i := len(u.modes) - 1; i >= 0; i-- {
		errs = append(errs, u.root.Chmod(u.modes[i].name, u.modes[i].mode))
	}
	return errors.Join(errs...)
}

// linkStaysInside says whether a link's target never rises above the top. Names on the
// way may be links themselves, so ".." counts only at the start.
func linkStaysInside(name, target string) bool {
	if target == "" || path.IsAbs(target) {
		return false
	}
	up := 0
	parts := strings.Split(target, "/")
	for up < len(parts) && parts[up] == ".." {
		up++
	}
	for _, part := range parts[up:] {
		if part == ".." {
			return false
		}
	}
	return up <= strings.Count(name, "/")
}

// Pack writes what is below a directory as an archive. Links that lead out, and what is no
// file, are told leftOut instead.
func Pack(root *os.Root, w io.Writer, leftOut func(path, why string)) error {
	out := tar.NewWriter(w)
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return packEntry(out, root, name, info, leftOut)
	})
	return errors.Join(err, out.Close())
}

func packEntry(out *tar.Writer, root *os.Root, name string, info fs.FileInfo, leftOut func(path, why string)) error {
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		return out.WriteHeader(h)
	case info.Mode().IsRegular():
		return packFile(out, root, name, h)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := root.Readlink(name)
		if err != nil {
			return err
		}
		if linkStaysInside(name, target) {
			h.Typeflag, h.Linkname = tar.TypeSymlink, target
			return out.WriteHeader(h)
		}
		leftOut(name, "a link that leads out of the directory")
		return nil
	}
	leftOut(name, "no file, directory or link")
	return nil
}

// packFile writes as many bytes as the file had when it was opened.
func packFile(out *tar.Writer, root *os.Root, name string, h *tar.Header) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close() // it was only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyN(out, f, h.Size)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s became shorter meanwhile: %d bytes instead of %d", name, n, h.Size)
	}
	return err
}
