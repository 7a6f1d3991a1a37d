package guest

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// importer fills one directory.
type importer struct {
	*Files
	ctx    context.Context
	base   uint32
	limits ArchiveLimits
	done   Archived
	late   []dirMode // set at the end: a directory without w takes no files
	bytes  int       // of their names
}

// maxLate bounds what is in memory of an archive: names of its directories without w.
const maxLate = 4 << 20

type dirMode struct {
	rel  string
	mode fs.FileMode
}

// Import unpacks a tar archive into dir, which is made if it is not there. Files that are
// there are replaced one by one, each at once; directories are kept. Symbolic links that
// are in the way, there before or from the archive, are not followed. Owners are the
// sandbox's user; devices and pipes are skipped.
//
// An archive with a name that leads out of dir is refused where that name comes: what
// came before it stays.
func (f *Files) Import(ctx context.Context, dir string, r io.Reader, l ArchiveLimits) (Archived, error) {
	at, err := absolute(opOpen, dir)
	if err != nil {
		return Archived{}, err
	}
	if at.path != "/" {
		if err := f.Mkdir(ctx, at.path, 0o755, true); err != nil {
			return Archived{}, err
		}
	}
	base, err := f.openAt(ctx, at, directory)
	if err != nil {
		return Archived{}, err
	}
	defer base.Close()
	i := &importer{Files: f, ctx: ctx, base: base.handle, limits: l.withDefaults()}
	for in := tar.NewReader(r); ; {
		header, err := in.Next()
		if err == io.EOF {
			return i.done, i.finish()
		}
		if err != nil {
			return i.done, &ArchiveError{"", fmt.Sprintf("it is no tar archive, or not a whole one: %v", err)}
		}
		if err := i.entry(header, in); err != nil {
			return i.done, err
		}
	}
}

// relative is a name of an archive as a path below the directory, "." for that itself.
func relative(unsafeName string) (string, error) {
	clean := path.Clean(unsafeName)
	if unsafeName == "" || path.IsAbs(unsafeName) || len(clean) > maxPath || strings.ContainsRune(clean, 0) {
		return "", &ArchiveError{unsafeName, "not a relative path of at most 4095 bytes"}
	}
	for name := range strings.SplitSeq(unsafeName, "/") {
		if name == ".." {
			return "", &ArchiveError{unsafeName, `it holds ".."`}
		}
		if len(name) > maxName {
			return "", &ArchiveError{unsafeName, "a name of more than 255 bytes"}
		}
	}
	return clean, nil
}

func (i *importer) at(rel string) place { return place{i.base, rel, rel} }

func (i *importer) entry(h *tar.Header, data io.Reader) error {
	rel, err := relative(h.Name)
	if err != nil {
		return err
	}
	size := int64(0)
	if h.Typeflag == tar.TypeReg {
		size = h.Size
	}
	if err := i.done.count(rel, size, i.limits); err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode) & fs.ModePerm
	switch {
	case h.Typeflag == tar.TypeDir:
		return i.directory(rel, mode)
	case rel == ".":
		return &ArchiveError{h.Name, "no directory in the place of the directory itself"}
	case h.Typeflag == tar.TypeReg:
		w, err := i.createAt(i.ctx, i.at(rel), WriteOptions{Mode: &mode, ModTime: h.ModTime, Parents: true})
		if err != nil {
			return err
		}
		_, err = w.fill(data)
		return err
	case h.Typeflag == tar.TypeSymlink:
		return i.replace(rel, func() error { return i.symlinkAt(i.ctx, h.Linkname, i.at(rel), parents) })
	case h.Typeflag == tar.TypeLink:
		return i.link(rel, h.Linkname)
	}
	i.done.skip(rel, "no file, directory or link")
	return nil
}

func (i *importer) directory(rel string, mode fs.FileMode) error {
	if rel == "." {
		return nil
	}
	if _, err := i.do(i.ctx, opMkdir, parents, i.at(rel), u32(kernelMode(mode|0o700))); err != nil {
		return err
	}
	if mode|0o700 != mode {
		if i.bytes += len(rel); i.bytes > maxLate {
			return &ArchiveError{rel, fmt.Sprintf("more than %d bytes of names of directories that their owner may not write to", maxLate)}
		}
		i.late = append(i.late, dirMode{rel, mode})
	}
	return nil
}

// link makes a second name of a file that came before.
func (i *importer) link(rel, unsafeTarget string) error {
	target, err := relative(unsafeTarget)
	if err != nil {
		return err
	}
	if target == rel {
		return &ArchiveError{rel, "a second name that is the first"}
	}
	return i.replace(rel, func() error {
		_, err := i.do(i.ctx, opLink, parents, i.at(rel), text16(target))
		return err
	})
}

// replace makes something, in place of what is there, short of a directory that is not empty.
func (i *importer) replace(rel string, makeIt func() error) error {
	err := makeIt()
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if _, err := i.do(i.ctx, opRemove, 0, i.at(rel), nil); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return makeIt()
}

// finish sets the modes of directories, the deepest first.
func (i *importer) finish() error {
	for n := len(i.late) - 1; n >= 0; n-- {
		d := i.late[n]
		if _, err := i.do(i.ctx, opChmod, 0, i.at(d.rel), u32(kernelMode(d.mode))); err != nil {
			return err
		}
	}
	return nil
}
