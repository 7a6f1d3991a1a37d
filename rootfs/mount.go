// Package rootfs gives a sandbox its root: a read-only overlay of the engine's own
// top layer over the image's directories, and the few files below /proc that tell a
// program its limits in place of the host's size.
//
// EnsureLayer builds the layer once per host and boot, Mount puts it over an image,
// ProcFiles writes the files. All need root (CAP_SYS_ADMIN, CAP_CHOWN). Mounts live in
// the caller's mount namespace, and should be made in a private one (PrivateMounts), so
// that they vanish with it. The layer stays in the run directory for the next run.
package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxLowers is overlayfs's own limit of 500, less the engine's layer.
const maxLowers = 499

// SECURITY: overlayfs takes no direction from an image's extended attributes.
// Redirects and metacopy let an attribute name a file elsewhere in a layer, with another
// owner's rights; an index would be written to.
// Holds because: every option is set explicitly and a kernel that refuses one gets no mount.
// Not covered: opaque and whiteout marks, which only hide what is below in the same image.
// Checked by: TestMountIgnoresRedirects.
var overlayOptions = []struct{ key, value string }{
	{"redirect_dir", "nofollow"},
	{"metacopy", "off"},
	{"index", "off"},
	{"xino", "off"},
}

// SECURITY: the root of a sandbox is read-only, without set-id programs and devices, before a runtime sees it.
// A runtime that loses one of these flags on its own remount would otherwise expose them.
// Holds because: the overlay has no upper directory, and the mount is attached with the flags set.
// Not covered: noexec, since the program runs from here. Checked by: TestMountFlags.
const (
	mountAttrs = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	mountFlags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
)

// Mount puts a read-only overlay of layer over lowers (from top to bottom) on the
// directory target, in the calling thread's mount namespace. It needs
// CAP_SYS_ADMIN. Every directory is named by itself, not by a symbolic link, and
// no lower may hold or lie in the directory of layer, which is the run directory.
// An error leaves nothing mounted. Calling it twice stacks two mounts; Unmount
// removes both.
func Mount(layer string, lowers []string, target string) error {
	return MountWith("", layer, lowers, target)
}

// MountWith is Mount with a directory of MountPoints on top, if it is not empty.
func MountWith(points, layer string, lowers []string, target string) error {
	most := maxLowers
	if points != "" {
		most--
	}
	if len(lowers) == 0 || len(lowers) > most {
		return fmt.Errorf("cannot mount target=%s: %d lower directories, between 1 and %d are possible", target, len(lowers), most)
	}
	var dirs openDirs
	defer dirs.close()
	if points != "" {
		if err := dirs.open("points", points); err != nil {
			return err
		}
	}
	if err := dirs.open("layer", layer); err != nil {
		return err
	}
	if err := dirs.openLowers(filepath.Dir(layer), lowers); err != nil {
		return err
	}
	dst, err := unix.Open(target, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return openError("mount", "target", target, err)
	}
	defer unix.Close(dst)

	var host unix.Utsname
	if err := unix.Uname(&host); err != nil {
		return fmt.Errorf("cannot read the kernel's version: %w", err)
	}
	mount := mountOneByOne
	if !atLeast(unix.ByteSliceToString(host.Release[:]), 6, 8) {
		mount = mountAtOnce
	}
	if err := onceLoaded(func() error { return mount(dirs.paths(), dst) }); err != nil {
		return dirs.explain(target, err)
	}
	return nil
}

// onceLoaded repeats a mount of a file system that the kernel does not know. The first to
// mount an overlay has the kernel load it; where others do so at the same time, their
// modprobe may end before the module is in use.
func onceLoaded(mount func() error) error {
	err := mount()
	for wait := 5 * time.Millisecond; errors.Is(err, unix.ENODEV) && wait < loadsWithin; wait *= 2 {
		time.Sleep(wait)
		err = mount()
	}
	return err
}

// loadsWithin bounds the longest of the waits, and so all of them to less than twice that.
const loadsWithin = time.Second

// atLeast reports whether a kernel release, "6.1.0-57-cloud-amd64", is this version or
// later. Asking overlayfs itself would leave a complaint in the kernel's log each time.
func atLeast(release string, major, minor int) bool {
	var gotMajor, gotMinor int
	if _, err := fmt.Sscanf(release, "%d.%d", &gotMajor, &gotMinor); err != nil {
		return false
	}
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}

// mountOneByOne gives overlayfs one directory after the other, in any number.
func mountOneByOne(lowers []string, target int) error {
	ctx, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigSetString(ctx, "source", "engine"); err != nil {
		return err
	}
	for _, o := range overlayOptions {
		if err := unix.FsconfigSetString(ctx, o.key, o.value); err != nil {
			return fmt.Errorf("option %s=%s: %w", o.key, o.value, err)
		}
	}
	for _, path := range lowers {
		if err := unix.FsconfigSetString(ctx, "lowerdir+", path); err != nil {
			return err
		}
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return err
	}
	mnt, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, mountAttrs)
	if err != nil {
		return err
	}
	defer unix.Close(mnt)
	return unix.MoveMount(mnt, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// mountAtOnce is for Linux before 6.8, where overlayfs takes all directories as one
// string: mount(2) accepts a page of it, the newer calls only 255 bytes.
func mountAtOnce(lowers []string, target int) error {
	options := []string{"lowerdir=" + strings.Join(lowers, ":")}
	for _, o := range overlayOptions {
		options = append(options, o.key+"="+o.value)
	}
	data := strings.Join(options, ",")
	if len(data) >= os.Getpagesize() {
		return &UnsupportedError{
			Feature: fmt.Sprintf("an overlay of %d directories", len(lowers)), Where: "this kernel",
			Fix: "use Linux 6.8 or later, or an image of fewer layers",
		}
	}
	return unix.Mount("engine", fdPath(target), "overlay", mountFlags, data)
}

// fdPath is a path of an open descriptor.
//
// SECURITY: the overlay is made from directories that were opened and checked, and its
// entry in mountinfo, which the sandbox can read, shows no path of the host.
// A path checked first and resolved again later may lead elsewhere by then.
// Holds because: overlayfs is given /proc/self/fd/N only.
// Not covered: a lower directory whose content is changed. Checked by: TestMountFlags.
func fdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// Unmount detaches whatever is mounted on target. It is idempotent: a target that
// is no mount point, or not there, is fine. Open files keep working until closed.
func Unmount(target string) error {
	for {
		err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return fmt.Errorf("cannot unmount target=%s: %w", target, err)
		}
	}
}

// PrivateMounts cuts the calling process's mount namespace off from the one it was
// copied from: no mount made in one of them then shows in the other. A new
// namespace (CLONE_NEWNS) is not private by itself, and Go can only enter one by
// being started in it, which is the parent's part. It refuses to work in the
// namespace of the parent or of PID 1, as far as it may see theirs.
func PrivateMounts() error {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return fmt.Errorf("cannot read own mount namespace: %w", err)
	}
	for _, pid := range []int{1, os.Getppid()} {
		// A process with more rights than this one hides its namespace.
		if theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid)); err == nil && theirs == own && pid != os.Getpid() {
			return fmt.Errorf("internal error: the mount namespace is shared with pid=%d, and must not be made private", pid)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make mounts private: %w", err)
	}
	return nil
}
