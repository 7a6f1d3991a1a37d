package intake_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs"
)

// TestManyLayers mounts an image of 128 layers as a run does.
func TestManyLayers(t *testing.T) {
	if !inMounts(t) {
		return
	}
	o := newOutside(t)
	l := newLayout(t)
	var layers [][]byte
	for i := range 128 {
		layers = append(layers, archive(t, file(fmt.Sprint("f", i), "x"), file("last", fmt.Sprint(i))))
	}
	l.index(l.image(runtime.GOARCH, nil, layers...))
	img, err := take(context.Background(), o.store, l.dir, "many")
	if err != nil {
		t.Fatal(err)
	}
	layer, target := topLayer(t), t.TempDir()
	must(t, rootfs.Mount(layer, img.Lowers, target))
	defer func() { must(t, rootfs.Unmount(target)) }()
	if got := len(names(t, target)); got != 129 {
		t.Errorf("the root holds %d files, want 129", got)
	}
	if data, err := os.ReadFile(filepath.Join(target, "last")); err != nil || string(data) != "127" {
		t.Errorf("last = %s, %v, want that of the top layer", data, err)
	}
}

// topLayer stands for the engine's own layer.
func topLayer(t testing.TB) string {
	t.Helper()
	layer := filepath.Join(t.TempDir(), "layer")
	must(t, os.Mkdir(layer, 0o755))
	return layer
}

// BenchmarkRoot prepares the root of a run from an image of 20 layers: it finds the
// image, holds it, and mounts the overlay. Run it with -benchtime=500x, as root, in a
// mount namespace of its own (unshare -m).
func BenchmarkRoot(b *testing.B) {
	requireRoot(b)
	o := newOutside(b)
	l := newLayout(b)
	var layers [][]byte
	for i := range 20 {
		layers = append(layers, archive(b, file(fmt.Sprint("f", i), "x")))
	}
	l.index(l.image(runtime.GOARCH, nil, layers...))
	if _, err := take(context.Background(), o.store, l.dir, "twenty"); err != nil {
		b.Fatal(err)
	}
	layer, target := topLayer(b), b.TempDir()
	for b.Loop() {
		img, err := o.store.Open("twenty")
		must(b, err)
		hold, err := img.Hold()
		must(b, err, rootfs.Mount(layer, img.Lowers, target))
		b.StopTimer()
		must(b, hold.Close(), unix.Unmount(target, unix.MNT_DETACH))
		b.StartTimer()
	}
}
