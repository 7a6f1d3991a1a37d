package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// usualMount is where cgroup2 is mounted unless v1 hierarchies are.
const usualMount = "/sys/fs/cgroup"

// locate finds the mount and the absolute path of the engine's directory in it.
func locate(unsafeRoot string) (mount, dir string, err error) {
	if unsafeRoot == "" {
		unsafeRoot = "engine"
	}
	// /sys/fs/cgroup is a bare directory of sysfs: when cgroup2 is there, it is
	// a mount, and mountinfo, long on a busy host, need not be read.
	if isCgroup2(usualMount) {
		if dir, ok := within(usualMount, unsafeRoot); ok {
			return usualMount, dir, nil
		}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2"))
	if err != nil {
		return "", "", fmt.Errorf("cannot find the cgroup2 mount: %w", err)
	}
	if len(mounts) == 0 {
		return "", "", &UnsupportedError{
			Feature: "cgroup v2", Where: "/proc/self/mountinfo",
			Fix: "boot the host with systemd.unified_cgroup_hierarchy=1, or without systemd mount cgroup2 on " + usualMount,
		}
	}
	mount, dir, ok := choose(mounts, unsafeRoot, isCgroup2)
	if !ok {
		return "", "", fmt.Errorf("cannot use cgroup root=%s: not below a cgroup2 mount", unsafeRoot)
	}
	return mount, dir, nil
}

// choose takes, of several mounts of the one hierarchy that can hold root, the one
// at the usual place, otherwise a writable one before a read-only one, one of the
// whole tree before one of a part, and an earlier one before a later. reachable
// tells whether cgroup2 is what one finds at a path: a mount may be covered.
func choose(mounts []*mountinfo.Info, root string, reachable func(string) bool) (mount, dir string, ok bool) {
	best := -1
	for _, m := range mounts {
		d, fits := within(m.Mountpoint, root)
		if !fits || !reachable(m.Mountpoint) {
			continue
		}
		score := 0
		if m.Mountpoint == usualMount {
			score += 4
		}
		if !hasOption(m.Options, "ro") {
			score += 2
		}
		if m.Root == "/" {
			score++
		}
		if score > best {
			best, mount, dir = score, m.Mountpoint, d
		}
	}
	return mount, dir, best >= 0
}

// within returns root as an absolute path, and whether it is in mount.
func within(mount, root string) (string, bool) {
	dir := filepath.Clean(root)
	if !filepath.IsAbs(root) {
		dir = filepath.Join(mount, root)
	}
	return dir, dir == mount || strings.HasPrefix(dir, strings.TrimSuffix(mount, "/")+"/")
}

func hasOption(options, option string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == option {
			return true
		}
	}
	return false
}

func isCgroup2(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// cannotMake reports a cgroup that cannot be made.
func cannotMake(dir string, err error) error {
	if errors.Is(err, unix.EROFS) {
		return &UnsupportedError{
			Feature: "writable cgroup2 mount", Where: filepath.Dir(dir), Cause: err,
			Fix: "mount cgroup2 read-write, in a container with a cgroup namespace of its own",
		}
	}
	return &fs.PathError{Op: "cannot make cgroup", Path: dir, Err: err}
}
