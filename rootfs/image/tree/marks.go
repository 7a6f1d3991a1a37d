package tree

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh..opq"
	aufsPrefix     = ".wh..wh." // AUFS's own bookkeeping, besides the opaque mark
	// maxMarks bounds the memory that marks take.
	maxMarks = 16 << 20 // bytes of names
)

// Marks are directories of a layer, in no order, to which something is still to be
// done that a writer without rights on the host cannot do.
type Marks struct {
	Opaque  map[string]bool `json:"opaque"`  // they hide what the layers below have at this place
	Hiding  map[string]bool `json:"hiding"`  // they hold whiteouts
	Implied map[string]bool `json:"implied"` // made because an entry needed them; the layer does not say how they look

	bytes int
}

func (m *Marks) add(set *map[string]bool, clean string) error {
	if (*set)[clean] {
		return nil
	}
	if m.bytes += len(clean) + 1; m.bytes > maxMarks {
		return &LimitError{What: "bytes of names of marked directories", Limit: maxMarks}
	}
	if *set == nil {
		*set = map[string]bool{}
	}
	(*set)[clean] = true
	return nil
}

func (m *Marks) opaque(clean string) error { return m.add(&m.Opaque, clean) }
func (m *Marks) hiding(clean string) error { return m.add(&m.Hiding, clean) }
func (m *Marks) imply(clean string) error  { return m.add(&m.Implied, clean) }

// stated takes back that a directory is only implied.
func (m *Marks) stated(clean string) { delete(m.Implied, clean) }

// isWhiteout reports whether a file is overlayfs's mark of a removed one.
func isWhiteout(st unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// IsWhiteout reports whether this is overlayfs's mark of a removed file.
func (f Found) IsWhiteout() bool { return isWhiteout(f.Stat) }

// putMark does what an entry whose name begins with .wh. asks for. It concerns the
// layers below only: what the same layer holds stays, in whichever order they come.
func (w *Writer) putMark(clean string) error {
	at, base := path.Split(clean)
	for name := range strings.SplitSeq(at, "/") {
		if strings.HasPrefix(name, whiteoutPrefix) {
			return errors.New("it is inside the mark of a removed file")
		}
	}
	dir, _, err := w.enter(clean)
	if errors.Is(err, unix.ENOTDIR) {
		return nil // a file is in place of the directory, and hides all that was in it
	}
	if err != nil {
		return err
	}
	at = path.Clean("./" + at)
	if base == opaqueName {
		return w.Marks.opaque(at)
	}
	if strings.HasPrefix(base, aufsPrefix) {
		return nil
	}
	hidden := strings.TrimPrefix(base, whiteoutPrefix)
	if hidden == "" || hidden == "." || hidden == ".." {
		return errors.New("it is the mark of no file")
	}
	var st unix.Stat_t
	err = unix.Fstatat(int(dir.Fd()), hidden, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return w.Marks.opaque(path.Join(at, hidden))
	case err == nil:
		return nil // a file hides what is below it anyway
	case !errors.Is(err, unix.ENOENT):
		return err
	}
	if err := unix.Mknodat(int(dir.Fd()), hidden, unix.S_IFCHR, 0); err != nil {
		return err
	}
	return w.Marks.hiding(at)
}

// removeMarked removes a directory that holds nothing but marks: a layer may say of
// each file below a directory that it is gone, and then put a file in its place.
func removeMarked(parent *os.File, name string) error {
	err := unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR)
	if !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, inner := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, inner, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		switch {
		case isWhiteout(st):
			err = unix.Unlinkat(fd, inner, 0)
		case st.Mode&unix.S_IFMT == unix.S_IFDIR:
			err = removeMarked(dir, inner)
		default:
			err = unix.ENOTEMPTY
		}
		if err != nil {
			return err
		}
	}
	return unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR)
}

// unhide removes a whiteout of this name, and reports whether there was one.
func (w *Writer) unhide(at, name string) (bool, error) {
	dir, err := w.openDir(at)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, err
	}
	if !isWhiteout(st) {
		return false, nil
	}
	return true, keepTime(dir, func() error { return unix.Unlinkat(int(dir.Fd()), name, 0) })
}

// Overlayfs's own attributes. The second one says that a directory was copied from
// another layer, which makes overlayfs look for whiteouts when it lists it; without it
// they would be listed where no other layer has the directory.
const (
	opaqueXattr = "trusted.overlay.opaque"
	originXattr = "trusted.overlay.origin"
)

// SetMarks gives the directories of a finished layer the attributes that make
// overlayfs see its marks. It needs CAP_SYS_ADMIN. It reports whether the whole layer
// hides what is below it, which no attribute can say.
//
// SECURITY: the attributes that steer overlayfs are set by this process, on directories only.
// An archive that could set them might redirect a lookup (trusted.overlay.redirect).
// Holds because: the writer keeps user.* alone and has no right to any other; each directory is
// opened inside the tree, after the writer has ended, and the names and values are fixed.
// Not covered: which directories, which is the archive's to say. Checked by: TestLayerMarks.
func SetMarks(root *os.File, m Marks) (hidesAll bool, err error) {
	for clean := range m.Opaque {
		if path.Clean(clean) == "." {
			hidesAll = true
			continue
		}
		if err := setMark(root, clean, opaqueXattr, "y"); err != nil {
			return false, err
		}
	}
	for clean := range m.Hiding {
		if err := setMark(root, clean, originXattr, ""); err != nil {
			return false, err
		}
	}
	return hidesAll, nil
}

func setMark(root *os.File, clean, name, value string) error {
	dir, err := openIn(root, clean)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil // replaced by a later entry of the same layer
	}
	if err == nil {
		err = errors.Join(unix.Fsetxattr(int(dir.Fd()), name, []byte(value), 0), dir.Close())
	}
	if err != nil {
		return &EntryError{Entry: clean, Why: "cannot mark directory: " + err.Error(), cause: err}
	}
	return nil
}

// IsOpaque reports whether a directory of a layer hides those below it.
func IsOpaque(dir *os.File) bool {
	value := make([]byte, 8)
	n, err := unix.Fgetxattr(int(dir.Fd()), opaqueXattr, value)
	return err == nil && string(value[:n]) == "y"
}
