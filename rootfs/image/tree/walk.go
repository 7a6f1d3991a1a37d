package tree

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	maxDepth = 256  // directories above one another; each costs an open descriptor
	maxPath  = 4095 // bytes, what a path of Linux can hold
)

// Found is one entry of a directory tree.
type Found struct {
	Dir  *os.File // the directory it is in
	Name string
	Path string // from the top of the tree, "usr/bin/env"; "." for the top itself
	Stat unix.Stat_t
}

// Kind is the type of file, as the bits of a mode.
func (f Found) Kind() uint32 { return f.Stat.Mode & unix.S_IFMT }

// Open opens a regular file for reading. A file that was swapped for something
// else in the meantime is refused, and a fifo never waited for.
func (f Found) Open() (*os.File, error) {
	fd, err := unix.Openat(int(f.Dir.Fd()), f.Name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), f.Path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if st.Dev != f.Stat.Dev || st.Ino != f.Stat.Ino || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.Join(errors.New("it was replaced while it was read"), file.Close())
	}
	return file, nil
}

// Readlink returns the target of a symbolic link.
func (f Found) Readlink() (string, error) {
	buf := make([]byte, maxPath+1)
	n, err := unix.Readlinkat(int(f.Dir.Fd()), f.Name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// Walk calls visit for everything in a tree, every directory before its content,
// siblings in the order of their names' bytes. It follows no symbolic link and enters
// no other mount: it returns how many directories were not entered for that.
func Walk(top *os.File, visit func(Found) error) (mounts int64, err error) {
	w := walker{visit: visit}
	err = w.walk(top)
	return w.mounts, err
}

type walker struct {
	visit  func(Found) error
	mounts int64
}

func (w *walker) walk(top *os.File) error {
	f := Found{Dir: top, Name: ".", Path: "."}
	if err := unix.Fstat(int(top.Fd()), &f.Stat); err != nil {
		return err
	}
	if err := w.visit(f); err != nil {
		return err
	}
	return w.below(top, "", 1)
}

func (w *walker) below(dir *os.File, prefix string, depth int) error {
	if depth > maxDepth {
		return &LimitError{What: "directories above one another", Limit: maxDepth}
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("cannot list directory=%s: %w", Quote(prefix), err)
	}
	slices.Sort(names)
	for _, name := range names {
		f := Found{Dir: dir, Name: name, Path: prefix + name}
		if err := unix.Fstatat(int(dir.Fd()), name, &f.Stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &EntryError{Entry: f.Path, Why: err.Error(), cause: err}
		}
		if f.Kind() != unix.S_IFDIR {
			if err := w.visit(f); err != nil {
				return err
			}
			continue
		}
		if err := w.directory(f, depth); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) directory(f Found, depth int) error {
	fd, err := unix.Openat2(int(f.Dir.Fd()), f.Name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
	if errors.Is(err, unix.EXDEV) {
		w.mounts++ // shown as the empty directory it would be
		return w.visit(f)
	}
	if err != nil {
		return &EntryError{Entry: f.Path, Why: err.Error(), cause: err}
	}
	dir := os.NewFile(uintptr(fd), f.Path)
	defer dir.Close()
	if err := unix.Fstat(fd, &f.Stat); err != nil {
		return &EntryError{Entry: f.Path, Why: err.Error(), cause: err}
	}
	if err := w.visit(f); err != nil {
		return err
	}
	return w.below(dir, f.Path+"/", depth+1)
}

// Xattrs calls visit for each extended attribute of an open file or directory.
func Xattrs(f *os.File, visit func(name string, value []byte) error) error {
	fd := int(f.Fd())
	names := make([]byte, 64<<10) // the kernel's own limit of a list and of a value
	n, err := unix.Flistxattr(fd, names)
	if errors.Is(err, unix.ENOTSUP) || n == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	value := make([]byte, 64<<10)
	for _, name := range splitNames(names[:n]) {
		size, err := unix.Fgetxattr(fd, name, value)
		if err != nil {
			return fmt.Errorf("cannot read attribute %s: %w", Quote(name), err)
		}
		if err := visit(name, value[:size]); err != nil {
			return err
		}
	}
	return nil
}

func splitNames(list []byte) []string {
	var names []string
	for len(list) > 0 {
		end := slices.Index(list, 0)
		if end < 0 {
			break
		}
		names = append(names, string(list[:end]))
		list = list[end+1:]
	}
	slices.Sort(names)
	return names
}
