package rootfs_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/direct-oci/engine/rootfs"
)

// TestSweepLayersSparesRuns removes a layer of an earlier engine-init only while no run
// exists, also if one appears at the last moment, and never the layer in use.
func TestSweepLayersSparesRuns(t *testing.T) {
	requireRoot(t)
	run := filepath.Join(t.TempDir(), "run")
	first := newPrograms(t)
	old, err := rootfs.EnsureLayer(run, first)
	if err != nil {
		t.Fatal(err)
	}
	second := newPrograms(t)
	write(t, second.Init, string(staticELF("another")))
	now, err := rootfs.EnsureLayer(run, second)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(run, ".layer-77"), 0o700); err != nil {
		t.Fatal(err)
	}
	before := list(t, run)

	idle := func() (bool, error) { return true, nil }
	planned, err := rootfs.SweepLayers(run, second, idle, true)
	if err != nil || len(planned) != 3 || !slices.Equal(list(t, run), before) {
		t.Errorf("a dry run = %q, %v, want three names and no change", planned, err)
	}
	busy := func() (bool, error) { return false, nil }
	if swept, err := rootfs.SweepLayers(run, second, busy, false); err != nil || !slices.Equal(swept, []string{".layer-77"}) {
		t.Errorf("with runs: SweepLayers = %q, %v, want what a dead builder left", swept, err)
	}
	asked := 0
	late := func() (bool, error) { asked++; return asked%2 == 1, nil } // a run appears after the first look
	if swept, err := rootfs.SweepLayers(run, second, late, false); err != nil || len(swept) > 0 {
		t.Errorf("with a run that appears meanwhile: SweepLayers = %q, %v, want nothing", swept, err)
	}
	if _, err := os.Lstat(filepath.Join(old, ".engine/init")); err != nil {
		t.Errorf("the layer of that run is not whole: %v", err)
	}
	swept, err := rootfs.SweepLayers(run, second, idle, false)
	if err != nil || !slices.Contains(swept, filepath.Base(old)) || len(swept) != 2 {
		t.Errorf("without runs: SweepLayers = %q, %v, want the layer and its stamp", swept, err)
	}
	if again, err := rootfs.EnsureLayer(run, second); err != nil || again != now {
		t.Errorf("EnsureLayer = %q, %v after SweepLayers, want %q as before", again, err, now)
	}
	if swept, err := rootfs.SweepLayers(run, second, idle, false); err != nil || len(swept) > 0 {
		t.Errorf("a second SweepLayers = %q, %v, want nothing", swept, err)
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
