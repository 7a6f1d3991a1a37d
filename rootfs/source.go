package rootfs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Source is a directory of the host, opened to be shown in a sandbox.
type Source struct {
	Path     string
	UID, GID uint32 // its owner
	fd       int
}

// kernelFileSystems are those whose files are the kernel itself.
var kernelFileSystems = map[int64]string{
	unix.PROC_SUPER_MAGIC: "procfs", unix.SYSFS_MAGIC: "sysfs", unix.CGROUP_SUPER_MAGIC: "cgroup", unix.CGROUP2_SUPER_MAGIC: "cgroup2",
	unix.DEVPTS_SUPER_MAGIC: "devpts", unix.DEBUGFS_MAGIC: "debugfs", unix.TRACEFS_MAGIC: "tracefs", unix.SECURITYFS_MAGIC: "securityfs",
	unix.BPF_FS_MAGIC: "bpf", unix.EFIVARFS_MAGIC: "efivarfs", unix.NSFS_MAGIC: "nsfs", unix.SELINUX_MAGIC: "selinuxfs",
}

// OpenSource opens the directory path of the host. It refuses one in which a sandbox has
// no business: in, or above, one of the directories apart, or of the kernel's own.
//
// SECURITY: a sandbox is shown the directory that was named, and never the engine's or the kernel's.
// Whoever owns a directory on the way can put a link to /etc in the place of the next one, and
// a directory above the engine's would show one sandbox the files of all others.
// Holds because: no symbolic link on the path is followed, what is checked and shown is the one
// descriptor, and the way up from it is compared by device and inode.
// Not covered: a bind mount of such a directory elsewhere. Checked by: TestOpenSourceRefuses.
func OpenSource(path string, apart ...string) (*Source, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, &PathError{
			Verb: "mount", Object: "source", Path: path, Why: "a symbolic link is on the way to it",
			Fix: "name the directory that it leads to, as realpath " + path + " prints it", cause: err,
		}
	case err != nil:
		return nil, openError("mount", "source", path, err)
	}
	s := &Source{Path: path, fd: fd}
	if err := s.check(apart); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close gives the descriptor back. What was attached stays.
func (s *Source) Close() { unix.Close(s.fd) }

func (s *Source) check(apart []string) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(s.fd, &fs); err != nil {
		return fmt.Errorf("cannot inspect source=%s: %w", s.Path, err)
	}
	if name := kernelFileSystems[int64(fs.Type)]; name != "" {
		return &PathError{Verb: "mount", Object: "source", Path: s.Path, Why: "it is the kernel's own (" + name + ")"}
	}
	var st unix.Stat_t
	if err := unix.Fstat(s.fd, &st); err != nil {
		return fmt.Errorf("cannot inspect source=%s: %w", s.Path, err)
	}
	s.UID, s.GID = st.Uid, st.Gid
	own := inode{uint64(st.Dev), st.Ino}
	forbidden := map[inode]string{}
	for _, dir := range append([]string{"/proc", "/sys", "/dev"}, apart...) {
		above, err := ancestors(dir)
		if errors.Is(err, unix.ENOENT) {
			continue // an engine that has no such directory yet
		}
		if err != nil {
			return err
		}
		forbidden[above[0]] = dir
		for _, id := range above[1:] {
			if id == own {
				return &PathError{
					Verb: "mount", Object: "source", Path: s.Path, Why: dir + " is inside it",
					Fix: "name a directory that holds what the sandbox needs and nothing else",
				}
			}
		}
	}
	return climb(s.fd, func(id inode) (bool, error) {
		if dir := forbidden[id]; dir != "" {
			return false, &PathError{Verb: "mount", Object: "source", Path: s.Path, Why: "it is inside " + dir}
		}
		return true, nil
	})
}

// Holds reports whether the directory rel is below the source, without a link on the way.
func (s *Source) Holds(rel string) bool {
	fd, err := unix.Openat2(s.fd, rel, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// IDMap says which id of the host's files is shown as which other id of the host's, that
// of somebody in a sandbox. Host 0 means that none is: root's files are nobody's inside.
type IDMap struct {
	Host, Shown uint32
	// Maker, if not 0, makes files before it gives them to Shown, as gVisor's kernel does.
	// It is an id of the sandbox's that no file of the host has.
	Maker uint32
}

// nobody is mapped where no id is: a mapping must not be empty. No file has it.
const nobody = 1<<32 - 2

func (m IDMap) mapping() []syscall.SysProcIDMap {
	host := int(m.Host)
	if host == 0 {
		host = nobody
	}
	mapping := []syscall.SysProcIDMap{{ContainerID: host, HostID: int(m.Shown), Size: 1}}
	if m.Maker != 0 {
		mapping = append(mapping, syscall.SysProcIDMap{ContainerID: int(m.Maker), HostID: int(m.Maker), Size: 1})
	}
	return mapping
}

// Attach shows the directory at target, without what is mounted below it, in the calling
// thread's mount namespace. Files of the mapped user and group are those of who is mapped
// to, and what that one makes is theirs; all other files are nobody's.
//
// SECURITY: set-id bits and devices in a directory of the host have no effect in a sandbox,
// which can change files of one user of the host, never root's, and of a read-only one none.
// Holds because: the mount has these flags before it is attached, no runtime can take off what
// a mount of another user namespace has, and the kernel refuses to write a file whose owner
// is not mapped.
// Not covered: what the sandbox writes is that user's on the host, set-id bits included.
// Checked by: TestAttach, TestMountsHold.
func (s *Source) Attach(target string, uid, gid IDMap, writable bool) error {
	if writable && (uid.Host == 0 || gid.Host == 0) {
		return &PathError{
			Verb: "mount", Object: "source", Path: s.Path, Why: "it would be written as root: what a sandbox leaves there could act as root",
			Fix: "give the directory to a user and group without rights (chown), or mount it read-only",
		}
	}
	tree, err := unix.OpenTree(s.fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return &PathError{Verb: "mount", Object: "source", Path: s.Path, Why: err.Error(), cause: err}
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if !writable {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if uid.Host != 0 || gid.Host != 0 {
		ns, err := idNamespace(uid, gid)
		if err != nil {
			return err
		}
		defer ns.Close()
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(ns.Fd())
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return s.explain(err, attr.Userns_fd != 0)
	}
	dst, err := unix.Open(target, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return openError("mount", "target", target, err)
	}
	defer unix.Close(dst)
	if err := unix.MoveMount(tree, "", dst, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return &PathError{Verb: "mount", Object: "source", Path: s.Path, Why: err.Error(), cause: err}
	}
	return nil
}

// explain says what the kernel means that does not map the owners of a mount.
func (s *Source) explain(err error, mapped bool) error {
	e := &PathError{Verb: "mount", Object: "source", Path: s.Path, Why: err.Error(), cause: err}
	if !mapped {
		return e
	}
	switch {
	case errors.Is(err, unix.ENOSYS):
		return &UnsupportedError{Feature: "mounts with mapped owners", Where: "this kernel", Fix: "use Linux 5.12 or later"}
	case errors.Is(err, unix.EINVAL):
		e.Why = "its file system cannot show files as another user's"
		if isOverlay(s.fd) {
			e.Why = "it is on an overlay, which cannot show files as another user's"
		}
		e.Fix = "put it on ext4, xfs or btrfs (on tmpfs from Linux 6.3)"
	case errors.Is(err, unix.EPERM):
		e.Why = "the kernel does not let its files be shown as another user's: it is such a mount already, or not of this host's own"
		e.Fix = "name the directory where it is mounted first"
	}
	return e
}

// idNamespace is a user namespace of nobody, for its mapping alone. It is made by a
// process that is stopped before its first instruction, and ended.
func idNamespace(uid, gid IDMap) (*os.File, error) {
	runtime.LockOSThread() // a tracer is a thread
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess("/proc/self/exe", []string{"idmap"}, &os.ProcAttr{
		Env: []string{"GODEBUG="},
		Sys: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER, UidMappings: uid.mapping(), GidMappings: gid.mapping(), GidMappingsEnableSetgroups: true,
			Ptrace: true, Pdeathsig: syscall.SIGKILL,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make a user namespace for mapped owners: %w", err)
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", p.Pid))
	killed := p.Kill()
	_, waited := p.Wait()
	if err = errors.Join(err, killed, waited); err != nil {
		if ns != nil {
			ns.Close()
		}
		return nil, fmt.Errorf("cannot keep a user namespace for mapped owners: %w", err)
	}
	return ns, nil
}

// MountPoints makes in the new directory dir those directories that root lacks of paths,
// absolute as seen in root, and reports whether there is one. Put above root by
// MountWith, dir then holds no more than that. A path may not lead through a link or a
// file of root's: what an image has there would be hidden, or lead elsewhere.
func MountPoints(dir, root string, paths []string) (needed bool, err error) {
	for _, p := range paths {
		names := strings.Split(strings.TrimPrefix(p, "/"), "/")
		modes, err := walk(root, p, names)
		if err != nil {
			return false, err
		}
		if len(modes) == len(names) {
			continue
		}
		needed = true
		if err := makePoint(dir, names, modes); err != nil {
			return false, fmt.Errorf("cannot make mount point=%s: %w", p, err)
		}
	}
	return needed, nil
}

// walk returns the stats of the directories of a path that root has.
func walk(root, p string, names []string) ([]unix.Stat_t, error) {
	at, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot look into the root: %w", err)
	}
	defer func() { unix.Close(at) }()
	var found []unix.Stat_t
	for _, name := range names {
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return nil, &PathError{
				Verb: "mount", Object: "path", Path: p, Why: "the image has a link or a file on the way there",
				Fix: "name a path of directories, or one that the image does not have", cause: err,
			}
		}
		unix.Close(at)
		at = next
		var st unix.Stat_t
		if err := unix.Fstat(at, &st); err != nil {
			return nil, fmt.Errorf("cannot look into the root: %w", err)
		}
		found = append(found, st)
	}
	return found, nil
}

// makePoint makes the directories of a path, those that the root has too with its modes
// and owners.
func makePoint(dir string, names []string, found []unix.Stat_t) error {
	if err := makeDirOnce(dir, unix.Stat_t{Mode: 0o755}); err != nil {
		return err
	}
	for i, name := range names {
		st := unix.Stat_t{Mode: 0o755}
		if i < len(found) {
			st = found[i]
		}
		dir += "/" + name
		if err := makeDirOnce(dir, st); err != nil {
			return err
		}
	}
	return nil
}

func makeDirOnce(path string, like unix.Stat_t) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return nil // for a path before this one
		}
		return err
	}
	return errors.Join(os.Lchown(path, int(like.Uid), int(like.Gid)), unix.Chmod(path, like.Mode&0o7777))
}
