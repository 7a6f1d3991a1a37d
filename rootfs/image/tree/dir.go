package tree

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// maxLinkedNames bounds the memory that hard-linked files of a directory take.
const maxLinkedNames = 64 << 20 // bytes of names

// PutDir copies what is below the directory src. It follows no link and enters no
// other mount.
func (w *Writer) PutDir(src *os.File) error {
	d := dirSource{tree: w, linked: map[inode]string{}}
	mounts, err := Walk(src, d.visit)
	w.Counts.Mounts = mounts
	return err
}

type inode struct{ dev, ino uint64 }

// dirSource turns what a walk finds into entries.
type dirSource struct {
	tree        *Writer
	linked      map[inode]string // first name of each file that has several
	linkedNames int
}

func (d *dirSource) visit(f Found) error {
	e := Entry{
		UnsafePath: f.Path, Kind: f.Kind(), Mode: f.Stat.Mode & 0o7777,
		UID: f.Stat.Uid, GID: f.Stat.Gid, Mtime: f.Stat.Mtim, Size: f.Stat.Size,
	}
	switch f.Kind() {
	case unix.S_IFREG:
		return d.file(f, e)
	case unix.S_IFDIR:
		return d.directory(f, e)
	case unix.S_IFLNK:
		target, err := f.Readlink()
		if err != nil {
			return &EntryError{Entry: f.Path, Why: err.Error(), cause: err}
		}
		e.UnsafeLink = target
		return d.tree.Put(e)
	case unix.S_IFIFO, unix.S_IFSOCK:
		d.tree.Counts.Pipes++
	default:
		d.tree.Counts.Devices++
	}
	return nil
}

func (d *dirSource) file(f Found, e Entry) error {
	if f.Stat.Nlink > 1 {
		id := inode{uint64(f.Stat.Dev), f.Stat.Ino}
		if first, ok := d.linked[id]; ok {
			e.Kind, e.UnsafeLink = HardLink, first
			return d.tree.Put(e)
		}
		if d.linkedNames += len(f.Path); d.linkedNames > maxLinkedNames {
			return &LimitError{What: "bytes of names of hard-linked files", Limit: maxLinkedNames}
		}
		d.linked[id] = f.Path
	}
	src, err := f.Open()
	if err != nil {
		return &EntryError{Entry: f.Path, Why: err.Error(), cause: err}
	}
	defer src.Close()
	if e.Xattrs, err = readXattrs(src); err != nil {
		return &EntryError{Entry: f.Path, Why: err.Error(), cause: err}
	}
	e.Content = src
	return d.tree.Put(e)
}

func (d *dirSource) directory(f Found, e Entry) error {
	fd, err := unix.Openat(int(f.Dir.Fd()), f.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &EntryError{Entry: f.Path, Why: err.Error(), cause: err}
	}
	src := os.NewFile(uintptr(fd), f.Path)
	defer src.Close()
	if e.Xattrs, err = readXattrs(src); err != nil {
		return &EntryError{Entry: f.Path, Why: err.Error(), cause: err}
	}
	return d.tree.Put(e)
}

func readXattrs(f *os.File) (map[string]string, error) {
	var all map[string]string
	err := Xattrs(f, func(name string, value []byte) error {
		if all == nil {
			all = map[string]string{}
		}
		all[name] = string(value)
		return nil
	})
	return all, err
}

// Contains reports whether the directory dir is outer or somewhere below it.
func Contains(outer, dir *os.File) (bool, error) {
	var want, st unix.Stat_t
	if err := unix.Fstat(int(outer.Fd()), &want); err != nil {
		return false, err
	}
	at, err := unix.Openat(int(dir.Fd()), ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for err == nil {
		last := st
		if err = unix.Fstat(at, &st); err != nil {
			break
		}
		if st.Dev == want.Dev && st.Ino == want.Ino {
			return true, unix.Close(at)
		}
		if st.Dev == last.Dev && st.Ino == last.Ino {
			return false, unix.Close(at)
		}
		var up int
		up, err = unix.Openat(at, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		err = errors.Join(err, unix.Close(at))
		at = up
	}
	return false, err
}
