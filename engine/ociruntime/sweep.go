package ociruntime

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

var (
	versionFile = regexp.MustCompile(`^version-(.+)-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+(\.[0-9]+)?$`)
	// versionGrace is how old a file that is still to be renamed must be to count as
	// left by a crash.
	versionGrace = 5 * time.Second
)

// SweepVersions deletes what Version remembers in cacheDir of programs that another
// of the same name has replaced, and what a crash left. It returns the names, which
// dryRun keeps. Nothing is lost but time: Version asks again.
func SweepVersions(cacheDir string, dryRun bool) ([]string, error) {
	entries, err := os.ReadDir(cacheDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	type file struct {
		name string
		at   time.Time
	}
	var old []string
	newest := map[string]file{} // by runtime
	for _, e := range entries {
		m := versionFile.FindStringSubmatch(e.Name())
		info, err := e.Info()
		if m == nil || err != nil {
			continue
		}
		f, best := file{e.Name(), info.ModTime()}, newest[m[1]]
		switch {
		case m[2] != "":
			if time.Since(f.at) > versionGrace {
				old = append(old, f.name)
			}
		case best.name == "":
			newest[m[1]] = f
		case f.at.After(best.at):
			newest[m[1]], old = f, append(old, best.name)
		default:
			old = append(old, f.name)
		}
	}
	if dryRun {
		return old, nil
	}
	var removed []string
	var errs []error
	for _, name := range old {
		if err := os.Remove(filepath.Join(cacheDir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, name)
	}
	return removed, errors.Join(errs...)
}
