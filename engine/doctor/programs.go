package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine/ociruntime"
)

func (h host) programs() []Finding {
	var findings []Finding
	for _, name := range []string{"engine-monitor", "engine-init", "engine-guest", "engine-launch"} {
		const why = "every run is watched over by engine-monitor, and has engine-init and engine-guest inside; engine-launch starts it for --runtime direct"
		path, err := ociruntime.Look(name, []string{h.Beside})
		if err != nil {
			findings = append(findings, one(name, Fail, "missing", why, "install "+name+" beside engine, in "+h.Beside)...)
			continue
		}
		findings = append(findings, one(name, OK, path, why, "")...)
	}
	return findings
}

// runtimes looks at the OCI runtimes. None of them is needed: the engine has one
// built in. One that is there and must not be used is worth a warning.
func (h host) runtimes(ctx context.Context) (usable []string, findings []Finding) {
	if _, err := ociruntime.Look("engine-launch", []string{h.Beside}); err == nil {
		usable = append(usable, "direct")
	}
	usable = append(usable, "embedded")
	for _, name := range []string{"runsc", "runc", "crun"} {
		f, ok := h.runtime(ctx, name)
		if findings = append(findings, f...); ok {
			usable = append(usable, name)
		}
	}
	return usable, findings
}

func (h host) runtime(ctx context.Context, name string) (f []Finding, usable bool) {
	why := "used when a run asks for --runtime " + name
	if name == "runsc" {
		why = "gVisor keeps a program from the host's kernel altogether, and is preferred where it is there"
	}
	path, err := ociruntime.Look(name, []string{h.Beside})
	if err != nil {
		return one(name, status(name != "runsc", Warn), "not installed", why, "install "+name+" beside engine, in "+h.Beside), false
	}
	version, err := ociruntime.Version(ctx, path, "")
	if err != nil {
		return one(name, Warn, err.Error(), why, "install "+name+" anew"), false
	}
	found := path + " " + version
	warning, refused := ociruntime.Floor(name, version)
	switch {
	case refused != nil:
		return one(name, Warn, found, refused.Error(), remedy(refused)), false
	case warning != "":
		return one(name, Warn, found, warning, "install a newer "+name), true
	}
	return one(name, OK, found, why, ""), true
}

const (
	minFree  = 64 << 20 // below it not even a record is safe
	goodFree = 1 << 30
)

func (h host) directories() []Finding {
	findings := h.directory("state directory", h.StateDir, "records, output and images are kept there", minFree, goodFree)
	return append(findings, h.directory("run directory", h.RunDir, "what does not outlive a boot is kept there", 4<<20, minFree)...)
}

// directory looks at dir, or at the place where it would be made.
func (h host) directory(name, dir, why string, least, good uint64) []Finding {
	at, info, err := existing(dir)
	if err != nil {
		return one(name, Fail, err.Error(), why, "mkdir -p "+dir)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return one(name, Fail, at+" is not a directory", why, "name another with --state-dir or --run-dir")
	case ok && st.Uid != 0:
		return one(name, Fail, fmt.Sprintf("%s belongs to uid %d", at, st.Uid), "whoever owns it owns every sandbox", "chown root "+at)
	case info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0:
		return one(name, Fail, fmt.Sprintf("others may write to %s", at), "whoever can write there owns every sandbox", "chmod go-w "+at)
	}
	if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		return one(name, Fail, fmt.Sprintf("%s: %v", at, err), why, "remount it read-write, or name another with --state-dir or --run-dir")
	}
	var fsys unix.Statfs_t
	if err := unix.Statfs(at, &fsys); err != nil {
		return one(name, Fail, fmt.Sprintf("%s: %v", at, err), why, "name another with --state-dir or --run-dir")
	}
	free := fsys.Bavail * uint64(fsys.Bsize)
	found := fmt.Sprintf("%s, %s free", dir, bytes(free))
	if fsys.Files > 0 && fsys.Ffree < 1000 {
		return one(name, Fail, fmt.Sprintf("%s, %d inodes free", dir, fsys.Ffree), why, "delete what is not needed there: engine rm, engine image rm")
	}
	switch {
	case free < least:
		return one(name, Fail, found, why, "delete what is not needed there: engine rm, engine image rm")
	case free < good:
		return one(name, Warn, found, why, "delete what is not needed there: engine rm, engine image rm")
	}
	return one(name, OK, found, why, "")
}

// existing is dir, or the nearest directory above it that is there.
func existing(dir string) (string, fs.FileInfo, error) {
	dir, err := filepath.Abs(dir)
	for err == nil {
		var info fs.FileInfo
		info, err = os.Stat(dir)
		if err == nil {
			return dir, info, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == "/" {
			break
		}
		dir, err = filepath.Dir(dir), nil
	}
	return "", nil, err
}
