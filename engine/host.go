package engine

import (
	"os"
	"path/filepath"
	"syscall"

	"github.com/direct-oci/engine/engine/ociruntime"
	"github.com/direct-oci/engine/rootfs"
)

// Version is the engine's own, set by the build.
var Version = "devel"

// Host says where the engine lives on this machine. The zero value means the usual
// places. It holds no state: any number of processes may use the same ones.
type Host struct {
	StateDir   string `json:"stateDir"`   // records and images; empty: /var/lib/engine
	RunDir     string `json:"runDir"`     // what does not outlive a boot; empty: /run/engine
	CgroupRoot string `json:"cgroupRoot"` // empty: engine, below the cgroup2 mount
	Monitor    string `json:"monitor"`    // engine-monitor; empty: beside this program, then on the system's PATH
	Init       string `json:"init"`       // engine-init; likewise
	Guest      string `json:"guest"`      // engine-guest; likewise

	// No run starts while less is free, in bytes. Zero is 64 MiB, negative none.
	MinFreeDisk   int64 `json:"minFreeDisk"`   // in StateDir and in RunDir
	MinFreeMemory int64 `json:"minFreeMemory"` // of the host, as the kernel estimates it
}

// resolved fills in what was left empty and makes paths absolute, since a monitor
// works elsewhere. The programs must exist.
func (h Host) resolved() (Host, error) {
	h = h.withDirs()
	var err error
	for _, dir := range []*string{&h.StateDir, &h.RunDir} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return h, Failed("no_directory", "cannot make directory=%s absolute: %w", *dir, err)
		}
	}
	if h.Monitor, err = h.program(h.Monitor, "engine-monitor"); err != nil {
		return h, err
	}
	if h.Init, err = h.program(h.Init, "engine-init"); err != nil {
		return h, err
	}
	h.Guest, err = h.program(h.Guest, "engine-guest")
	return h, err
}

// programs are those that every sandbox has.
func (h Host) programs() rootfs.Programs { return rootfs.Programs{Init: h.Init, Guest: h.Guest} }

func (h Host) withDirs() Host {
	if h.StateDir == "" {
		h.StateDir = "/var/lib/engine"
	}
	if h.RunDir == "" {
		h.RunDir = "/run/engine"
	}
	return h
}

func (h Host) program(given, name string) (string, error) {
	if given == "" {
		return Program(name)
	}
	if _, err := os.Stat(given); err != nil {
		return "", Failed("not_installed", "cannot use %s=%s: %w", name, given, err)
	}
	return given, nil
}

// Program finds one of the engine's own programs: beside the running one, or in the
// system's directories.
func Program(name string) (string, error) {
	path, err := ociruntime.Look(name, toolDirs())
	if err != nil {
		return "", Failed("not_installed", "cannot find %s beside this program or in the system's directories", name).
			WithFix("install " + name + " beside engine")
	}
	return path, nil
}

// toolDirs are where programs are looked for before the system's directories: beside
// the running one.
func toolDirs() []string {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	return []string{filepath.Dir(self)}
}

// imageDir is the image store.
func (h Host) imageDir() string { return filepath.Join(h.StateDir, "images") }

// runDir is where everything of one run lives that does not outlive it.
func (h Host) runDir(id string) string { return filepath.Join(h.RunDir, id) }

// prepare makes the two directories.
//
// SECURITY: only root can look into the state directory, and only pass through the run directory.
// A user of the host who could walk into an image or a sandbox's root would find setuid programs and other users' data there (CVE-2024-25621).
// Holds because: modes are set here, whatever the umask, and a directory of somebody else is refused.
// Not covered: a parent directory that others may write to.
// Checked by: TestStateIsPrivate.
func (h Host) prepare() error {
	for dir, mode := range map[string]os.FileMode{h.StateDir: 0o700, h.RunDir: 0o711} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return Failed("no_directory", "cannot make directory=%s: %w", dir, err)
		}
		if err := own(dir, mode); err != nil {
			return err
		}
	}
	return nil
}

// reachable refuses a run directory that a sandbox's own users cannot get to: every
// runtime would fail there, with words that say nothing of the cause.
func (h Host) reachable() error {
	for dir := filepath.Dir(filepath.Clean(h.RunDir)); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return Failed("no_directory", "cannot look at directory=%s: %w", dir, err)
		}
		if info.Mode()&0o001 == 0 {
			return Failed("no_directory", "cannot use run-dir=%s: only the owner of %s can pass through that", h.RunDir, dir).
				WithFix("chmod o+x " + dir + ", or choose another --run-dir")
		}
	}
	return nil
}

func own(dir string, mode os.FileMode) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return Failed("no_directory", "cannot look at directory=%s: %w", dir, err)
	case !info.IsDir():
		return Failed("no_directory", "cannot use directory=%s: it is something else", dir)
	case info.Mode().Perm() == mode && ownerIsRoot(info):
		return nil
	case !ownerIsRoot(info):
		return Failed("no_directory", "cannot use directory=%s: it does not belong to root", dir).WithFix("chown root " + dir)
	}
	if err := os.Chmod(dir, mode); err != nil {
		return Failed("no_directory", "cannot set the mode of directory=%s: %w", dir, err)
	}
	return nil
}

func ownerIsRoot(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0
}
