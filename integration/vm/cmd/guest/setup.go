package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/direct-oci/engine/integration/vm/wire"
	"golang.org/x/sys/unix"
)

type mount struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
}

const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// mountKernel mounts what is needed to find devices.
func mountKernel() error {
	return mountAll([]mount{
		{"dev", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
		{"proc", "/proc", "proc", quiet, ""},
		{"sysfs", "/sys", "sysfs", quiet, ""},
	})
}

// setup turns the initramfs into the machine that jobs see.
func setup(m wire.Machine) error {
	now := unix.NsecToTimeval(m.Now.UnixNano())
	if err := unix.Settimeofday(&now); err != nil {
		return fmt.Errorf("cannot set clock: %w", err)
	}
	if err := loadModules("/modules"); err != nil {
		return err
	}
	if len(m.Disks) == 0 || m.Disks[0].Mount != "/" {
		return errors.New("the first disk must be the one for /")
	}
	if err := mountDisk(m.Disks[0], "/newroot"); err != nil {
		return err
	}
	if err := switchRoot("/newroot"); err != nil {
		return err
	}
	for _, d := range m.Disks[1:] {
		if err := mountDisk(d, d.Mount); err != nil {
			return err
		}
	}
	if err := mountAll([]mount{
		{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=620,ptmxmode=666"},
		{"shm", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"mqueue", "/dev/mqueue", "mqueue", quiet, ""},
		{"run", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
		{"tmp", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", quiet, "nsdelegate"},
	}); err != nil {
		return err
	}
	for name, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, "/dev/"+name); err != nil {
			return err
		}
	}
	if err := unix.Sethostname([]byte("vm")); err != nil {
		return err
	}
	if err := enableControllers("/sys/fs/cgroup"); err != nil {
		return err
	}
	return loopbackUp()
}

// mountAll mounts each in turn, making the directory where it is missing.
func mountAll(mounts []mount) error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("cannot mount %s at %s: %w", m.fstype, m.target, err)
		}
	}
	return nil
}

// loadModules loads the modules of dir in the order of their names.
func loadModules(dir string) error {
	files, err := filepath.Glob(dir + "/*.ko")
	if err != nil {
		return err
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("cannot load module %s: %w", name, err)
		}
	}
	return nil
}

// mountDisk mounts the ext4 file system of the disk with the given serial.
func mountDisk(d wire.Disk, target string) error {
	dev, err := findDisk(d.Serial)
	if err != nil {
		return err
	}
	return mountAll([]mount{{dev, target, "ext4", unix.MS_NOATIME, "noinit_itable"}})
}

func findDisk(serial string) (string, error) {
	for range 500 {
		files, _ := filepath.Glob("/sys/block/vd*/serial")
		for _, f := range files {
			got, err := os.ReadFile(f)
			if err == nil && string(bytes.TrimSpace(got)) == serial {
				return "/dev/" + filepath.Base(filepath.Dir(f)), nil
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return "", fmt.Errorf("cannot find the disk with serial=%s", serial)
}

// switchRoot makes dir the root of the whole mount namespace. A chroot alone
// would not do: the kernel refuses user namespaces to a process that is in one.
func switchRoot(dir string) error {
	for _, sub := range []string{"/dev", "/proc", "/sys"} {
		if err := unix.Mount(sub, dir+sub, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("cannot move %s: %w", sub, err)
		}
	}
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("cannot move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	// As a distribution's init does: mounts made later reach new namespaces.
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

func enableControllers(root string) error {
	names, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(names)) {
		if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
			return fmt.Errorf("cannot enable the %s controller: %w", c, err)
		}
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}
