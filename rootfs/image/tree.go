package image

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// entry is one thing to be put into an image, as the source describes it.
type entry struct {
	unsafePath string
	kind       uint32 // S_IFREG, S_IFDIR, S_IFLNK; or hardLink
	mode       uint32 // permission bits, set-id bits included
	uid, gid   uint32
	mtime      unix.Timespec
	size       int64
	unsafeLink string // target of a symbolic or hard link
	xattrs     map[string]string
	content    io.Reader // of a regular file; nil means empty
}

const hardLink = 1 // no file type of the kernel's has this value

// Counts says what an import took over and what it left out.
type Counts struct {
	Entries  int64 `json:"entries"`
	Bytes    int64 `json:"bytes"`    // of file content
	Devices  int64 `json:"devices"`  // left out
	Pipes    int64 `json:"pipes"`    // fifos and sockets, left out
	Mounts   int64 `json:"mounts"`   // mount points below a directory, taken as empty directories
	SetID    int64 `json:"setId"`    // files and directories whose set-id bits were cleared
	Xattrs   int64 `json:"xattrs"`   // extended attributes left out
	Replaced int64 `json:"replaced"` // entries that a later one of the same name replaced
}

// tree writes one image, below its root and nowhere else.
type tree struct {
	ctx        context.Context
	root       *os.File
	maxEntries int64
	maxBytes   int64
	counts     Counts
	buf        []byte
}

// SECURITY: nothing that a source names is written outside the image's root.
// Archives name absolute paths, "..", links out of the tree and then a file through the link.
// Holds because: the kernel resolves each parent directory with openat2 RESOLVE_IN_ROOT, where a
// link that leads up or to / leads to the root at most; last components are created
// with O_EXCL or *at calls that follow no link, and ".." is refused before that.
// Not covered: a process of root's that changes the tree meanwhile. Checked by: TestHostileTars, FuzzImportTar.
func (t *tree) parent(clean string) (*os.File, string, error) {
	dir, base := path.Split(clean)
	f, err := t.openDir(path.Clean(dir))
	if !errors.Is(err, unix.ENOENT) {
		return f, base, err
	}
	if err := t.makeParents(path.Clean(dir)); err != nil {
		return nil, "", err
	}
	f, err = t.openDir(path.Clean(dir))
	return f, base, err
}

func (t *tree) openDir(clean string) (*os.File, error) {
	for tries := 0; ; tries++ {
		fd, err := unix.Openat2(int(t.root.Fd()), clean, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
		})
		if errors.Is(err, unix.EAGAIN) && tries < 100 {
			continue // a rename anywhere on the host makes the kernel unsure
		}
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), clean), nil
	}
}

// makeParents makes the directories that a source takes for granted. Their time is
// the epoch, so that the same source always gives the same image.
func (t *tree) makeParents(clean string) error {
	at := ""
	for name := range strings.SplitSeq(clean, "/") {
		next := path.Join(at, name)
		f, err := t.openDir(next)
		if errors.Is(err, unix.ENOENT) {
			f, err = t.makeParent(path.Clean("./"+at), name, next)
		}
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		at = next
	}
	return nil
}

func (t *tree) makeParent(at, name, clean string) (*os.File, error) {
	if err := t.count(); err != nil {
		return nil, err
	}
	dir, err := t.openDir(at)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	err = keepTime(dir, func() error {
		if err := unix.Mkdirat(int(dir.Fd()), name, 0o755); err != nil {
			return err // also for a link to nothing
		}
		return finish(dir, name, entry{kind: unix.S_IFDIR, mode: 0o755})
	})
	if err != nil {
		return nil, err
	}
	return t.openDir(clean)
}

// count admits one more entry.
func (t *tree) count() error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	if t.counts.Entries++; t.counts.Entries > t.maxEntries {
		return &LimitError{What: "entries", Limit: t.maxEntries}
	}
	return nil
}

// put adds e. A later entry replaces an earlier one of the same name, except that a
// directory keeps its content.
func (t *tree) put(e entry) error {
	if err := t.count(); err != nil {
		return err
	}
	clean, err := cleanPath(e.unsafePath)
	if err != nil {
		return err
	}
	if e.uid == ^uint32(0) || e.gid == ^uint32(0) {
		return &EntryError{Entry: e.unsafePath, Why: "its owner is not a number that Linux can store"}
	}
	if e.mode&(unix.S_ISUID|unix.S_ISGID) != 0 && e.kind != hardLink {
		t.counts.SetID++
	}
	e.mode = permissions(e.mode)
	if clean == "." {
		err = t.putRoot(e)
	} else {
		err = t.putBelow(e, clean)
	}
	var limit *LimitError
	if err == nil || errors.As(err, &limit) || t.ctx.Err() != nil {
		return err
	}
	return &EntryError{Entry: e.unsafePath, Why: explain(err), cause: err}
}

// permissions drops set-id bits.
//
// SECURITY: no file of an image is set-uid or set-gid, has file capabilities, or is a device.
// An image is readable on the host, and a sandbox may share an inode with another.
// Holds because: put clears the bits, keeps user.* attributes only, and makes no other kinds of files.
// Not covered: an image directory that root changes later. Checked by: TestImportDropsPrivileges.
func permissions(mode uint32) uint32 { return mode & 0o1777 }

func (t *tree) putRoot(e entry) error {
	if e.kind != unix.S_IFDIR {
		return errors.New("the top of the tree is not a directory")
	}
	return t.apply(t.root, e)
}

func (t *tree) putBelow(e entry, clean string) error {
	dir, base, err := t.parent(clean)
	if err != nil {
		return err
	}
	defer dir.Close()
	return keepTime(dir, func() error {
		there, err := t.makeRoom(dir, base, e)
		if err != nil {
			return err
		}
		switch e.kind {
		case unix.S_IFREG:
			return t.putFile(dir, base, e)
		case unix.S_IFDIR:
			return t.putDir(dir, base, e, there)
		case unix.S_IFLNK:
			if err := unix.Symlinkat(e.unsafeLink, int(dir.Fd()), base); err != nil {
				return err
			}
			return finish(dir, base, e)
		case hardLink:
			return t.putLink(dir, base, e)
		}
		return errors.New("internal error: unknown kind of entry")
	})
}

// makeRoom removes what is in the way of e and reports whether a directory is there
// that e, being one too, continues.
func (t *tree) makeRoom(dir *os.File, base string, e entry) (bool, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR && e.kind == unix.S_IFDIR {
		return true, nil
	}
	t.counts.Replaced++
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return false, unix.Unlinkat(int(dir.Fd()), base, unix.AT_REMOVEDIR)
	}
	return false, unix.Unlinkat(int(dir.Fd()), base, 0)
}

func (t *tree) putFile(dir *os.File, base string, e entry) (err error) {
	if e.size > t.maxBytes-t.counts.Bytes {
		return t.tooLarge()
	}
	fd, err := unix.Openat(int(dir.Fd()), base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	if e.content != nil {
		n, err := t.copy(f, e)
		t.counts.Bytes += n
		if err != nil {
			return err
		}
	}
	return t.apply(f, e)
}

func (t *tree) tooLarge() error {
	return &LimitError{What: "bytes of files", Limit: t.maxBytes, Fix: "Free space below the state directory, or import a smaller image."}
}

// copy writes e's content to f. A file's extents are shared where the file system
// can do that, otherwise the kernel copies; a stream goes through the buffer.
func (t *tree) copy(f *os.File, e entry) (int64, error) {
	if src, ok := e.content.(*os.File); ok {
		if unix.IoctlFileClone(int(f.Fd()), int(src.Fd())) == nil {
			var st unix.Stat_t
			err := unix.Fstat(int(f.Fd()), &st)
			return st.Size, err
		}
	}
	var done int64
	for done < t.maxBytes-t.counts.Bytes+1 {
		if err := t.ctx.Err(); err != nil {
			return done, err
		}
		n, err := t.copySome(f, e.content)
		done += n
		if errors.Is(err, io.EOF) {
			return done, nil
		}
		if err != nil {
			return done, err
		}
	}
	return done, t.tooLarge()
}

func (t *tree) copySome(f *os.File, src io.Reader) (int64, error) {
	if from, ok := src.(*os.File); ok {
		n, err := unix.CopyFileRange(int(from.Fd()), nil, int(f.Fd()), nil, 16<<20, 0)
		switch {
		case err == nil && n > 0:
			return int64(n), nil
		case err == nil:
			return 0, io.EOF
		case !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EOPNOTSUPP):
			return 0, err
		}
	}
	n, err := src.Read(t.buf)
	if n > 0 {
		if _, werr := f.Write(t.buf[:n]); werr != nil {
			return 0, werr
		}
	}
	return int64(n), err
}

func (t *tree) putDir(dir *os.File, base string, e entry, there bool) error {
	if !there {
		if err := unix.Mkdirat(int(dir.Fd()), base, 0o700); err != nil {
			return err
		}
	}
	fd, err := unix.Openat(int(dir.Fd()), base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	return t.apply(f, e)
}

func (t *tree) putLink(dir *os.File, base string, e entry) error {
	clean, err := cleanPath(e.unsafeLink)
	if err != nil {
		return err
	}
	if clean == "." {
		return errors.New("it is a hard link to a directory")
	}
	target, name := path.Split(clean)
	from, err := t.openDir(path.Clean("./" + target))
	if err != nil {
		return err
	}
	defer from.Close()
	return keepTime(from, func() error { return unix.Linkat(int(from.Fd()), name, int(dir.Fd()), base, 0) })
}

// apply sets owner, mode, attributes and time of an open file or directory.
func (t *tree) apply(f *os.File, e entry) error {
	if err := f.Chown(int(e.uid), int(e.gid)); err != nil {
		return err
	}
	if err := unix.Fchmod(int(f.Fd()), e.mode); err != nil {
		return err
	}
	for name, value := range e.xattrs {
		if !keepXattr(name) {
			t.counts.Xattrs++
			continue
		}
		if err := unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0); errors.Is(err, unix.ENOTSUP) {
			t.counts.Xattrs++
		} else if err != nil {
			return err
		}
	}
	return setTime(f, e.mtime)
}

// keepXattr reports whether an attribute is plain data. user.overlay.* steers an
// overlay that was mounted with userxattr.
func keepXattr(name string) bool {
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

// finish sets owner, mode and time of what cannot be opened, or need not be.
func finish(dir *os.File, base string, e entry) error {
	fd := int(dir.Fd())
	if err := unix.Fchownat(fd, base, int(e.uid), int(e.gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if e.kind != unix.S_IFLNK {
		if err := unix.Fchmodat(fd, base, e.mode, 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(fd, base, []unix.Timespec{e.mtime, e.mtime}, unix.AT_SYMLINK_NOFOLLOW)
}

func setTime(f *os.File, t unix.Timespec) error {
	return unix.UtimesNanoAt(int(f.Fd()), "", []unix.Timespec{t, t}, unix.AT_EMPTY_PATH)
}

// keepTime runs change and gives dir back the time it had: entries come in any
// order, and remembering every directory's would be unbounded.
func keepTime(dir *os.File, change func() error) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	return unix.UtimesNanoAt(int(dir.Fd()), ".", []unix.Timespec{st.Mtim, st.Mtim}, 0)
}

// cleanPath makes a source's name relative to the root, and refuses what no honest
// archive holds.
func cleanPath(unsafePath string) (string, error) {
	if len(unsafePath) > maxPath {
		return "", &EntryError{Entry: unsafePath, Why: "its name is longer than Linux allows"}
	}
	depth := 0
	for name := range strings.SplitSeq(unsafePath, "/") {
		if name == ".." {
			return "", &EntryError{Entry: unsafePath, Why: "it leads upwards"}
		}
		depth++
	}
	if depth > maxDepth {
		return "", &LimitError{What: "directories above one another", Limit: maxDepth}
	}
	if strings.IndexByte(unsafePath, 0) >= 0 {
		return "", &EntryError{Entry: unsafePath, Why: "its name holds a NUL byte"}
	}
	return path.Clean("./" + unsafePath), nil
}

// explain translates errnos that would mislead here.
func explain(err error) string {
	var inner *EntryError
	switch {
	case errors.As(err, &inner):
		return inner.Why
	case errors.Is(err, unix.ENOTEMPTY):
		return "it would replace a directory that has content"
	case errors.Is(err, unix.EEXIST):
		return "its parent is a link to nothing"
	case errors.Is(err, unix.ENOTDIR):
		return "its parent is not a directory"
	case errors.Is(err, unix.ELOOP):
		return "its parent is a link to itself"
	case errors.Is(err, unix.EXDEV):
		return "its parent is on another mount"
	case errors.Is(err, unix.ENOENT):
		return "it is a link to a file that is not there, or has no name"
	}
	return err.Error()
}
