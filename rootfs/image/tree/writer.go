package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Entry is one thing to be put into a tree, as the source describes it.
type Entry struct {
	UnsafePath string
	Kind       uint32 // S_IFREG, S_IFDIR, S_IFLNK; or HardLink
	Mode       uint32 // permission bits, set-id bits included
	UID, GID   uint32
	Mtime      unix.Timespec
	Size       int64
	UnsafeLink string // target of a symbolic or hard link
	Xattrs     map[string]string
	Content    io.Reader // of a regular file; nil means empty
}

// HardLink is the kind of an entry that gives a file another name.
const HardLink = 1 // no file type of the kernel's has this value

// Counts says what was taken over and what was left out.
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

// Add adds up two counts.
func (c Counts) Add(o Counts) Counts {
	return Counts{
		c.Entries + o.Entries, c.Bytes + o.Bytes, c.Devices + o.Devices, c.Pipes + o.Pipes,
		c.Mounts + o.Mounts, c.SetID + o.SetID, c.Xattrs + o.Xattrs, c.Replaced + o.Replaced,
	}
}

// Limits bounds one tree.
type Limits struct {
	MaxBytes   int64 `json:"maxBytes"`   // of file content; 0: 64 GiB, or less where the disk is fuller
	MaxEntries int64 `json:"maxEntries"` // files, directories and links; 0: a million
	Layer      bool  `json:"layer"`      // names that begin with .wh. are marks, see Marks
	Sealed     bool  `json:"sealed"`     // root's alone, read-only, without times, links stay inside
}

// Check reports what of c is more than one image may have, across its layers.
func (l Limits) Check(c Counts) error {
	most := Limits{MaxBytes: defaultMaxBytes, MaxEntries: defaultMaxEntries}
	if l.MaxBytes != 0 {
		most.MaxBytes = l.MaxBytes
	}
	if l.MaxEntries != 0 {
		most.MaxEntries = l.MaxEntries
	}
	switch {
	case c.Entries > most.MaxEntries:
		return &LimitError{What: "entries", Limit: most.MaxEntries}
	case c.Bytes > most.MaxBytes:
		return &LimitError{What: contentOfFiles, Limit: most.MaxBytes, Fix: "import a smaller image"}
	}
	return nil
}

const (
	defaultMaxBytes   = 64 << 30
	defaultMaxEntries = 1_000_000
	// This much of the disk is left free by default: a twentieth, and no more than
	// reserve bytes.
	reserve, reservePart = 1 << 30, 20
)

// Writer writes one tree, below its root and nowhere else.
type Writer struct {
	Counts Counts
	Marks  Marks

	ctx    context.Context
	root   *os.File
	limits Limits
	buf    []byte
	at     *parent // the directory that the last entry was put into
	asRoot bool    // what this process makes belongs to 0:0
}

// parent is an open directory, and the time it is to have: entries come in any
// order, and remembering every directory's would be unbounded.
type parent struct {
	clean string
	*os.File
	mtime unix.Timespec
}

// NewWriter returns a writer of what is below root, an empty directory, which stays
// the caller's. Root is given mode 0755 and the epoch's time, unless an entry says
// otherwise.
func NewWriter(ctx context.Context, root *os.File, l Limits) (*Writer, error) {
	if l.MaxEntries == 0 {
		l.MaxEntries = defaultMaxEntries
	}
	if l.MaxBytes == 0 {
		free, err := freeSpace(root)
		if err != nil {
			return nil, err
		}
		l.MaxBytes = free
	}
	if err := root.Chmod(0o755); err != nil {
		return nil, fmt.Errorf("cannot set mode of image root: %w", err)
	}
	w := &Writer{ctx: ctx, root: root, limits: l, buf: make([]byte, 256<<10), asRoot: os.Geteuid() == 0 && os.Getegid() == 0}
	if l.Layer {
		if err := w.Marks.imply("."); err != nil {
			return nil, err
		}
	}
	return w, setTime(root, unix.Timespec{})
}

// MaxBytes is the limit in force.
func (w *Writer) MaxBytes() int64 { return w.limits.MaxBytes }

func freeSpace(root *os.File) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(root.Fd()), &st); err != nil {
		return 0, fmt.Errorf("cannot read free space: %w", err)
	}
	kept := min(reserve, int64(st.Blocks)*st.Bsize/reservePart)
	return max(0, min(defaultMaxBytes, int64(st.Bavail)*st.Bsize-kept)), nil
}

// Finish must be called after the last entry, with the error that ended the work, if
// any did. It returns that error, or its own.
func (w *Writer) Finish(err error) error { return errors.Join(err, w.leave()) }

// SECURITY: nothing that a source names is written outside the tree's root.
// Archives name absolute paths, "..", links out of the tree and then a file through the link.
// Holds because: the kernel resolves each parent directory with openat2 RESOLVE_IN_ROOT, where a
// link that leads up or to / leads to the root at most; last components are created
// with O_EXCL or *at calls that follow no link, and ".." is refused before that.
// Not covered: a process of root's that changes the tree meanwhile. Checked by: TestHostileTars, FuzzImportTar.
func (w *Writer) enter(clean string) (dir *os.File, base string, err error) {
	split, base := path.Split(clean)
	at := path.Clean("./" + split)
	if w.at != nil && w.at.clean == at {
		return w.at.File, base, nil
	}
	if err := w.leave(); err != nil {
		return nil, "", err
	}
	f, err := w.openDir(at)
	if errors.Is(err, unix.ENOENT) || w.limits.Layer && errors.Is(err, unix.ENOTDIR) {
		if err = w.makeParents(at); err == nil {
			f, err = w.openDir(at)
		}
	}
	if err != nil {
		return nil, "", err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, "", errors.Join(err, f.Close())
	}
	w.at = &parent{at, f, st.Mtim}
	return f, base, nil
}

// leave closes the directory that was entered, with the time it had then.
func (w *Writer) leave() error {
	if w.at == nil {
		return nil
	}
	at := w.at
	w.at = nil
	return errors.Join(setTime(at.File, at.mtime), at.Close())
}

func (w *Writer) openDir(clean string) (*os.File, error) { return openIn(w.root, clean) }

// openIn opens a directory of the tree.
func openIn(root *os.File, clean string) (*os.File, error) {
	for tries := 0; ; tries++ {
		fd, err := unix.Openat2(int(root.Fd()), clean, &unix.OpenHow{
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
// the epoch, so that the same source always gives the same tree.
func (w *Writer) makeParents(clean string) error {
	at := "."
	for name := range strings.SplitSeq(clean, "/") {
		next := path.Join(at, name)
		f, err := w.openDir(next)
		hidden := false
		if w.limits.Layer && errors.Is(err, unix.ENOTDIR) {
			if hidden, err = w.unhide(at, name); err == nil && !hidden {
				err = unix.ENOTDIR
			} else if err == nil {
				err = unix.ENOENT
			}
		}
		if errors.Is(err, unix.ENOENT) {
			f, err = w.makeParent(at, name, next)
		}
		if err == nil && hidden {
			err = w.Marks.opaque(next)
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

func (w *Writer) makeParent(at, name, clean string) (*os.File, error) {
	if err := w.Count(); err != nil {
		return nil, err
	}
	dir, err := w.openDir(at)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	err = keepTime(dir, func() error {
		if err := unix.Mkdirat(int(dir.Fd()), name, 0o755); err != nil {
			return err // also for a link to nothing
		}
		e := Entry{Kind: unix.S_IFDIR, Mode: 0o755}
		if w.limits.Sealed {
			e.Mode = sealedDir
		}
		return w.finish(dir, name, e)
	})
	if err == nil && w.limits.Layer {
		err = w.Marks.imply(clean)
	}
	if err != nil {
		return nil, err
	}
	return w.openDir(clean)
}

// Count admits one more entry, also one that is then left out.
func (w *Writer) Count() error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if w.Counts.Entries++; w.Counts.Entries > w.limits.MaxEntries {
		return &LimitError{What: "entries", Limit: w.limits.MaxEntries}
	}
	return nil
}

// Put adds e. A later entry replaces an earlier one of the same name, except that a
// directory keeps its content.
func (w *Writer) Put(e Entry) error {
	if err := w.Count(); err != nil {
		return err
	}
	clean, err := cleanPath(e.UnsafePath)
	if err != nil {
		return err
	}
	if e.UID == ^uint32(0) || e.GID == ^uint32(0) {
		return &EntryError{Entry: e.UnsafePath, Why: "its owner is not a number that Linux can store"}
	}
	if e.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && e.Kind != HardLink {
		w.Counts.SetID++
	}
	e.Mode = permissions(e.Mode)
	if w.limits.Sealed {
		if e, err = e.seal(clean); err != nil {
			return &EntryError{Entry: e.UnsafePath, Why: err.Error()}
		}
	}
	switch {
	case w.limits.Layer && strings.HasPrefix(clean, whiteoutPrefix), w.limits.Layer && strings.Contains(clean, "/"+whiteoutPrefix):
		err = w.putMark(clean)
	case clean == ".":
		err = w.putRoot(e)
	default:
		err = w.putBelow(e, clean)
	}
	var limit *LimitError
	if err == nil || errors.As(err, &limit) || w.ctx.Err() != nil {
		return err
	}
	return &EntryError{Entry: e.UnsafePath, Why: explain(err), cause: err}
}

// permissions drops set-id bits.
//
// SECURITY: no file of an image is set-uid or set-gid, has file capabilities, or is a device.
// An image is readable on the host, and a sandbox may share an inode with another.
// Holds because: Put clears the bits, keeps user.* attributes only, and makes no other kinds of files.
// Not covered: an image directory that root changes later. Checked by: TestImportDropsPrivileges.
func permissions(mode uint32) uint32 { return mode & 0o1777 }

func (w *Writer) putRoot(e Entry) error {
	if e.Kind != unix.S_IFDIR {
		return errors.New("the top of the tree is not a directory")
	}
	w.Marks.stated(".")
	return errors.Join(w.leave(), w.apply(w.root, e))
}

func (w *Writer) putBelow(e Entry, clean string) error {
	dir, base, err := w.enter(clean)
	if err != nil {
		return err
	}
	if e.Kind == unix.S_IFREG {
		return w.putFile(dir, base, e)
	}
	there, err := w.makeRoom(dir, base, e)
	if err != nil {
		return err
	}
	switch e.Kind {
	case unix.S_IFDIR:
		return w.putDir(dir, base, clean, e, there)
	case unix.S_IFLNK:
		if err := unix.Symlinkat(e.UnsafeLink, int(dir.Fd()), base); err != nil {
			return err
		}
		return w.finish(dir, base, e)
	case HardLink:
		return w.putLink(dir, base, e)
	}
	return errors.New("internal error: unknown kind of entry")
}

// occupant is what has the name of a new entry already.
type occupant int

const (
	nothing occupant = iota
	directory
	whiteout
)

// makeRoom removes what is in the way of e. It reports a directory that e, being one
// too, continues, or that a whiteout was there.
func (w *Writer) makeRoom(dir *os.File, base string, e Entry) (occupant, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nothing, nil
	}
	if err != nil {
		return nothing, err
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case isDir && e.Kind == unix.S_IFDIR:
		return directory, nil
	case isWhiteout(st):
		return whiteout, unix.Unlinkat(int(dir.Fd()), base, 0)
	case isDir && w.limits.Layer:
		w.Counts.Replaced++
		return nothing, removeMarked(dir, base)
	case isDir:
		w.Counts.Replaced++
		return nothing, unix.Unlinkat(int(dir.Fd()), base, unix.AT_REMOVEDIR)
	}
	w.Counts.Replaced++
	return nothing, unix.Unlinkat(int(dir.Fd()), base, 0)
}

func (w *Writer) putFile(dir *os.File, base string, e Entry) (err error) {
	if e.Size > w.limits.MaxBytes-w.Counts.Bytes {
		return w.tooLarge()
	}
	const flags = unix.O_CREAT | unix.O_EXCL | unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(dir.Fd()), base, flags, 0o600)
	if errors.Is(err, unix.EEXIST) {
		if _, err = w.makeRoom(dir, base, e); err != nil {
			return err
		}
		fd, err = unix.Openat(int(dir.Fd()), base, flags, 0o600)
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	if e.Content != nil {
		n, err := w.copy(f, e)
		w.Counts.Bytes += n
		if err != nil {
			return err
		}
	}
	return w.apply(f, e)
}

func (w *Writer) tooLarge() error {
	return &LimitError{What: contentOfFiles, Limit: w.limits.MaxBytes, Fix: "free space below the state directory, or import a smaller image"}
}

// copy writes e's content to f. A file's extents are shared where the file system
// can do that, otherwise the kernel copies; a stream goes through the buffer.
func (w *Writer) copy(f *os.File, e Entry) (int64, error) {
	if src, ok := e.Content.(*os.File); ok {
		if unix.IoctlFileClone(int(f.Fd()), int(src.Fd())) == nil {
			var st unix.Stat_t
			err := unix.Fstat(int(f.Fd()), &st)
			return st.Size, err
		}
	}
	var done int64
	for done < w.limits.MaxBytes-w.Counts.Bytes+1 {
		if err := w.ctx.Err(); err != nil {
			return done, err
		}
		n, err := w.copySome(f, e.Content)
		done += n
		if errors.Is(err, io.EOF) {
			return done, nil
		}
		if err != nil {
			return done, err
		}
	}
	return done, w.tooLarge()
}

func (w *Writer) copySome(f *os.File, src io.Reader) (int64, error) {
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
	n, err := src.Read(w.buf)
	if n > 0 {
		if _, werr := f.Write(w.buf[:n]); werr != nil {
			return 0, werr
		}
	}
	return int64(n), err
}

func (w *Writer) putDir(dir *os.File, base, clean string, e Entry, there occupant) error {
	if there != directory {
		if err := unix.Mkdirat(int(dir.Fd()), base, 0o700); err != nil {
			return err
		}
	}
	if there == whiteout {
		if err := w.Marks.opaque(clean); err != nil {
			return err
		}
	}
	w.Marks.stated(clean)
	fd, err := unix.Openat(int(dir.Fd()), base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	return w.apply(f, e)
}

func (w *Writer) putLink(dir *os.File, base string, e Entry) error {
	clean, err := cleanPath(e.UnsafeLink)
	if err != nil {
		return err
	}
	if clean == "." {
		return errors.New("it is a hard link to a directory")
	}
	target, name := path.Split(clean)
	from, err := w.openDir(path.Clean("./" + target))
	if err != nil {
		return err
	}
	defer from.Close()
	if w.limits.Layer || w.limits.Sealed {
		var st unix.Stat_t
		if err := unix.Fstatat(int(from.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if isWhiteout(st) {
			return unix.ENOENT
		}
		if w.limits.Sealed && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return errors.New("it is a hard link to a symbolic one, which would lead elsewhere from here")
		}
	}
	return unix.Linkat(int(from.Fd()), name, int(dir.Fd()), base, 0)
}

// apply sets owner, mode, attributes and time of an open file or directory.
func (w *Writer) apply(f *os.File, e Entry) error {
	// Making a file as 0:0 leaves nothing to change, and most files are.
	if e.UID != 0 || e.GID != 0 || !w.asRoot || e.Kind != unix.S_IFREG {
		if err := f.Chown(int(e.UID), int(e.GID)); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(int(f.Fd()), e.Mode); err != nil {
		return err
	}
	for name, value := range e.Xattrs {
		if !KeepXattr(name) {
			w.Counts.Xattrs++
			continue
		}
		if err := unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0); errors.Is(err, unix.ENOTSUP) {
			w.Counts.Xattrs++
		} else if err != nil {
			return err
		}
	}
	return setTime(f, e.Mtime)
}

// KeepXattr reports whether an attribute is plain data. user.overlay.* steers an
// overlay that was mounted with userxattr.
func KeepXattr(name string) bool {
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

// finish sets owner, mode and time of what cannot be opened, or need not be.
func (w *Writer) finish(dir *os.File, base string, e Entry) error {
	fd := int(dir.Fd())
	if err := unix.Fchownat(fd, base, int(e.UID), int(e.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if e.Kind != unix.S_IFLNK {
		if err := unix.Fchmodat(fd, base, e.Mode, 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(fd, base, []unix.Timespec{e.Mtime, e.Mtime}, unix.AT_SYMLINK_NOFOLLOW)
}

func setTime(f *os.File, t unix.Timespec) error {
	return unix.UtimesNanoAt(int(f.Fd()), "", []unix.Timespec{t, t}, unix.AT_EMPTY_PATH)
}

// keepTime runs change and gives dir back the time it had.
func keepTime(dir *os.File, change func() error) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	return setTime(dir, st.Mtim)
}
