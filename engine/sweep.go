package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/engine/ociruntime"
	"github.com/direct-oci/engine/rootfs"
	"github.com/direct-oci/engine/rootfs/image"
)

// sweeps are what a GC does beside the runs: removing what no run is bound to.
func (h Host) sweeps(dryRun bool) []task {
	kinds := []struct {
		dir, why string
		sweep    func() ([]string, error)
	}{
		{h.StateDir, "left by a crash while a record was made or removed", func() ([]string, error) {
			return journal.Sweep(h.StateDir, dryRun)
		}},
		{h.StateDir, "left by a crash while a receipt, its key or an approval was written", func() ([]string, error) {
			return h.sweepHalves(dryRun)
		}},
		{h.imageDir(), "left by a crash while an image was made or removed", func() ([]string, error) {
			return image.Store{Dir: h.imageDir()}.Sweep(dryRun)
		}},
		{h.LayerStore(""), "left by a crash while a layer was made or removed", func() ([]string, error) {
			return h.sweepLayerStores(dryRun)
		}},
		{h.RunDir, "of an engine-init or engine-guest that is not installed any more, or half made", func() ([]string, error) {
			installed, err := h.resolved()
			if err != nil {
				return nil, nil // not known which one it is
			}
			return rootfs.SweepLayers(h.RunDir, installed.programs(), h.idle, dryRun)
		}},
		{h.RunDir, "of a runtime that was replaced, or half written", func() ([]string, error) {
			return ociruntime.SweepVersions(h.RunDir, dryRun)
		}},
	}
	var tasks []task
	for _, k := range kinds {
		tasks = append(tasks, task{"", k.dir, func() ([]GCAction, error) {
			names, err := k.sweep()
			var actions []GCAction
			for _, name := range names {
				actions = append(actions, GCAction{Object: name, Action: actionRemove, Why: k.why})
			}
			return actions, err
		}})
	}
	return tasks
}

// halfOld is how old a file must be to be left by a crash, and not just being written.
const halfOld = time.Hour

// sweepHalves removes what the governed runner writes its files into before they have
// their names: one may hold a key.
func (h Host) sweepHalves(dryRun bool) ([]string, error) {
	var swept []string
	for _, dir := range []string{"receipts", "approvals/last"} {
		halves, err := filepath.Glob(filepath.Join(h.StateDir, dir, "new-*"))
		if err != nil {
			return swept, err
		}
		for _, path := range halves {
			info, err := os.Lstat(path)
			if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < halfOld {
				continue
			}
			if !dryRun {
				if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return swept, err
				}
			}
			swept = append(swept, path)
		}
	}
	return swept, nil
}

func (h Host) sweepLayerStores(dryRun bool) ([]string, error) {
	stores, err := h.LayerStores()
	if err != nil {
		return nil, err
	}
	var all []string
	for _, s := range stores {
		names, err := image.Store{Dir: h.LayerStore(s)}.Sweep(dryRun)
		if all = append(all, names...); err != nil {
			return all, err
		}
	}
	return all, nil
}

// idle reports whether no run has a directory. A monitor makes it before it looks for
// anything that runs share, and removes it after all else.
func (h Host) idle() (bool, error) {
	entries, err := os.ReadDir(h.RunDir)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if journal.ValidID(e.Name()) {
			return false, nil
		}
	}
	return true, nil
}
