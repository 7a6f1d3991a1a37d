package image

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// maxLinkedNames bounds the memory that hard-linked files of a directory take.
const maxLinkedNames = 64 << 20 // bytes of names

// importDir copies the directory src into t.
func importDir(t *tree, src *os.File) error {
	d := dirSource{tree: t, linked: map[inode]string{}}
	w := walker{visit: d.visit}
	err := w.walk(src)
	t.counts.Mounts = w.mounts
	return err
}

type inode struct{ dev, ino uint64 }

// dirSource turns what a walk finds into entries.
type dirSource struct {
	tree        *tree
	linked      map[inode]string // first name of each file that has several
	linkedNames int
}

func (d *dirSource) visit(f found) error {
	e := entry{
		unsafePath: f.path, kind: f.kind(), mode: f.stat.Mode & 0o7777,
		uid: f.stat.Uid, gid: f.stat.Gid, mtime: f.stat.Mtim, size: f.stat.Size,
	}
	switch f.kind() {
	case unix.S_IFREG:
		return d.file(f, e)
	case unix.S_IFDIR:
		return d.directory(f, e)
	case unix.S_IFLNK:
		target, err := f.readlink()
		if err != nil {
			return &EntryError{Entry: f.path, Why: err.Error(), cause: err}
		}
		e.unsafeLink = target
		return d.tree.put(e)
	case unix.S_IFIFO, unix.S_IFSOCK:
		d.tree.counts.Pipes++
	default:
		d.tree.counts.Devices++
	}
	return nil
}

func (d *dirSource) file(f found, e entry) error {
	if f.stat.Nlink > 1 {
		id := inode{uint64(f.stat.Dev), f.stat.Ino}
		if first, ok := d.linked[id]; ok {
			e.kind, e.unsafeLink = hardLink, first
			return d.tree.put(e)
		}
		if d.linkedNames += len(f.path); d.linkedNames > maxLinkedNames {
			return &LimitError{What: "bytes of names of hard-linked files", Limit: maxLinkedNames}
		}
		d.linked[id] = f.path
	}
	src, err := f.open()
	if err != nil {
		return &EntryError{Entry: f.path, Why: err.Error(), cause: err}
	}
	defer src.Close()
	if e.xattrs, err = readXattrs(src); err != nil {
		return &EntryError{Entry: f.path, Why: err.Error(), cause: err}
	}
	e.content = src
	return d.tree.put(e)
}

func (d *dirSource) directory(f found, e entry) error {
	fd, err := unix.Openat(int(f.dir.Fd()), f.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &EntryError{Entry: f.path, Why: err.Error(), cause: err}
	}
	src := os.NewFile(uintptr(fd), f.path)
	defer src.Close()
	if e.xattrs, err = readXattrs(src); err != nil {
		return &EntryError{Entry: f.path, Why: err.Error(), cause: err}
	}
	return d.tree.put(e)
}

func readXattrs(f *os.File) (map[string]string, error) {
	var all map[string]string
	err := xattrs(f, func(name string, value []byte) error {
		if all == nil {
			all = map[string]string{}
		}
		all[name] = string(value)
		return nil
	})
	return all, err
}

// contains reports whether the directory dir is outer or somewhere below it.
func contains(outer, dir *os.File) (bool, error) {
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
