package rootfs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// openDirs are the directories of one overlay, from top to bottom.
type openDirs []openDir

type openDir struct {
	path string
	fd   int
	id   inode
}

type inode struct{ dev, ino uint64 }

func (d *openDirs) open(object, path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return openError("use", object, path, err)
	}
	id, err := identify(fd)
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("cannot inspect %s=%s: %w", object, path, err)
	}
	*d = append(*d, openDir{path, fd, id})
	return nil
}

func (d openDirs) close() {
	for _, dir := range d {
		unix.Close(dir.fd)
	}
}

func (d openDirs) paths() []string {
	paths := make([]string, len(d))
	for i, dir := range d {
		paths[i] = fdPath(dir.fd)
	}
	return paths
}

// openLowers opens the image's directories and checks that each is apart from the
// others and from the run directory.
//
// SECURITY: a sandbox's root shows nothing of the run directory, and so no other sandbox.
// An operator who names / or /run as a root would show one sandbox the files of all others.
// Holds because: directories are compared by device and inode along the way up to the root
// of the file system, from either side.
// Not covered: a bind mount of a directory above or below one of them. Checked by: TestMountRefuses.
func (d *openDirs) openLowers(runDir string, lowers []string) error {
	above, err := ancestors(runDir)
	if err != nil {
		return err
	}
	self := above[0]
	held := map[inode]bool{}
	for _, id := range above {
		held[id] = true
	}
	lower, first := map[inode]string{}, len(*d)
	for _, path := range lowers {
		if err := d.open("lower", path); err != nil {
			return err
		}
		id := (*d)[len(*d)-1].id
		if held[id] {
			return &PathError{
				Verb: "use", Object: "lower", Path: path, Why: "the run directory " + runDir + " is inside it",
				Fix: "copy the root file system into a directory of its own, or import it as an image",
			}
		}
		if other, ok := lower[id]; ok {
			return &PathError{Verb: "use", Object: "lower", Path: path, Why: "it is the same directory as " + other}
		}
		lower[id] = path
	}
	apart := map[inode]bool{} // directories whose way up is known to meet neither
	for _, dir := range (*d)[first:] {
		if err := dir.checkAbove(self, runDir, lower, apart); err != nil {
			return err
		}
	}
	return nil
}

// checkAbove refuses dir when the run directory or another lower directory is above it.
func (dir openDir) checkAbove(runDir inode, runPath string, lower map[inode]string, apart map[inode]bool) error {
	var seen []inode
	err := climb(dir.fd, func(id inode) (bool, error) {
		if id == runDir {
			return false, &PathError{Verb: "use", Object: "lower", Path: dir.path, Why: "it is inside the run directory " + runPath}
		}
		if other, ok := lower[id]; ok && id != dir.id {
			return false, &PathError{Verb: "use", Object: "lower", Path: dir.path, Why: "it is inside another lower directory, " + other}
		}
		if apart[id] {
			return false, nil
		}
		seen = append(seen, id)
		return true, nil
	})
	if err != nil {
		return err
	}
	for _, id := range seen {
		apart[id] = true
	}
	return nil
}

// ancestors returns the inodes of the directory path and of all above it.
func ancestors(path string) ([]inode, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, openError("use", "run-dir", path, err)
	}
	defer unix.Close(fd)
	var all []inode
	err = climb(fd, func(id inode) (bool, error) {
		all = append(all, id)
		return true, nil
	})
	return all, err
}

// climb calls visit for the directory fd and each one above it until visit returns
// false or the root is reached. It leaves fd open.
func climb(fd int, visit func(inode) (bool, error)) error {
	id, err := identify(fd)
	if err != nil {
		return err
	}
	at := fd
	defer func() {
		if at != fd {
			unix.Close(at)
		}
	}()
	for {
		more, err := visit(id)
		if err != nil || !more {
			return err
		}
		up, err := unix.Openat(at, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("cannot open parent directory: %w", err)
		}
		if at != fd {
			unix.Close(at)
		}
		at = up
		above, err := identify(at)
		if err != nil {
			return err
		}
		if above == id {
			return nil
		}
		id = above
	}
}

func identify(fd int) (inode, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return inode{}, err
	}
	return inode{uint64(st.Dev), st.Ino}, nil
}

// explain translates the errno of a refused overlay mount: overlayfs reports most of
// its reasons in the kernel's log only.
func (d openDirs) explain(target string, err error) error {
	e := &PathError{Verb: "mount", Object: "target", Path: target, Why: err.Error(), cause: err}
	var unsupported *UnsupportedError
	switch {
	case errors.As(err, &unsupported):
		return err
	case errors.Is(err, unix.EPERM):
		e.Why, e.Fix = "no right to mount here", "run the engine as root with CAP_SYS_ADMIN"
	case errors.Is(err, unix.ENODEV):
		return &UnsupportedError{Feature: "overlayfs", Where: "this kernel", Fix: "run modprobe overlay"}
	case errors.Is(err, unix.ELOOP):
		e.Why = "overlayfs says that two of the directories overlap, or that one is in use by another overlay"
	case errors.Is(err, unix.ENOENT):
		e.Why, e.Fix = "/proc is not mounted or a directory was removed meanwhile", "mount procfs on /proc"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOVERFLOW), errors.Is(err, unix.ENODATA):
		e.Why = "overlayfs accepts none of these options, or one of the directories is of a kind it cannot stand on"
		e.Fix = "look at the last lines of dmesg for the reason"
		for _, dir := range d {
			if isOverlay(dir.fd) {
				e.Object, e.Path = "lower", dir.path
				e.Why = "it is itself on an overlay, and the kernel stacks only two"
				e.Fix = "copy it to a file system that is not an overlay, or import it as an image there"
			}
		}
	}
	return e
}

func isOverlay(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC
}
