package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// retired is the prefix of a layer that is being removed. A builder takes it for
// another's that died, and removes it as well.
const retired = ".layer-old-"

// SweepLayers removes, below runDir, the layers and stamps that do not belong to
// the programs as they are now, and what a crash left of building one. It returns their
// names, which dryRun keeps. idle reports whether no run exists; while it is false,
// every layer may be the root of one, and stays.
//
// SECURITY: no layer loses a file while a sandbox may stand on it.
// A root whose upper layer is half gone shows the image's own /etc and /dev instead.
// Holds because: a run has its directory in runDir before it calls EnsureLayer, and idle
// is asked again after the layer has been given another name: a run that is not seen then
// will not find that layer. One that is seen gets it back.
// Not covered: a runDir that several engines share under different names of runs.
// Checked by: TestSweepLayersSparesRuns.
func SweepLayers(runDir string, programs Programs, idle func() (bool, error), dryRun bool) ([]string, error) {
	all, err := programs.inspect()
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(runDir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err := checkRunDir(runDir); err != nil {
		return nil, err
	}
	lock, err := lockDir(runDir)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	entries, err := os.ReadDir(runDir)
	if err != nil {
		return nil, fmt.Errorf("cannot list run-dir=%s: %w", runDir, err)
	}
	keepStamp := stampName(all)
	keepLayer, err := os.Readlink(filepath.Join(runDir, keepStamp))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read stamp=%s: %w", keepStamp, err)
	}
	var swept []string
	for _, e := range entries {
		name := e.Name()
		half := strings.HasPrefix(name, ".layer-") || strings.HasPrefix(name, "layer-stamp-") && strings.HasSuffix(name, ".new")
		stale := strings.HasPrefix(name, "layer-") && name != keepStamp && name != keepLayer
		gone, err := half, error(nil)
		switch {
		case half && !dryRun: // this process has the builders' lock: its maker is dead
			err = os.RemoveAll(filepath.Join(runDir, name))
		case !half && stale:
			gone, err = retire(runDir, name, idle, dryRun)
		}
		if err != nil {
			return swept, fmt.Errorf("cannot remove layer=%s: %w", name, err)
		}
		if gone {
			swept = append(swept, name)
		}
	}
	return swept, nil
}

// retire removes one layer or stamp unless a run may need it.
func retire(runDir, name string, idle func() (bool, error), dryRun bool) (bool, error) {
	if ok, err := idle(); !ok || err != nil || dryRun {
		return ok && err == nil, err
	}
	path, away := filepath.Join(runDir, name), filepath.Join(runDir, retired+name)
	if err := os.Rename(path, away); err != nil {
		return false, err
	}
	if ok, err := idle(); !ok || err != nil {
		return false, errors.Join(err, os.Rename(away, path))
	}
	return true, os.RemoveAll(away)
}
