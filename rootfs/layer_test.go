package rootfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs"
)

// TestEnsureLayer compares the whole layer with the promise, under a umask that
// would spoil every mode.
func TestEnsureLayer(t *testing.T) {
	requireRoot(t)
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	dir := newLayer(t)
	var got []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		opaque := "-"
		value := make([]byte, 8)
		if n, err := unix.Lgetxattr(path, "trusted.overlay.opaque", value); err == nil {
			opaque = string(value[:n])
		}
		got = append(got, fmt.Sprintf("%06o %d:%d %s %s", st.Mode, st.Uid, st.Gid, opaque, strings.TrimPrefix(path, dir)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"040755 0:0 - ",
		"040755 0:0 y /.engine",
		"100755 0:0 - /.engine/guest",
		"100755 0:0 - /.engine/init",
		"040755 0:0 y /dev",
		"040755 0:0 - /etc",
		"100644 0:0 - /etc/group",
		"100644 0:0 - /etc/hostname",
		"100644 0:0 - /etc/hosts",
		"100644 0:0 - /etc/nsswitch.conf",
		"100644 0:0 - /etc/passwd",
		"100644 0:0 - /etc/resolv.conf",
		"040555 0:0 y /proc",
		"100644 0:0 - /proc/cpuinfo",
		"100644 0:0 - /proc/meminfo",
		"100644 0:0 - /proc/stat",
		"040755 0:0 y /run",
		"040755 0:0 y /run/secrets",
		"040555 0:0 y /sys",
		"040555 0:0 y /sys/fs",
		"040555 0:0 y /sys/fs/cgroup",
		"041777 0:0 y /tmp",
		"040755 0:0 y /workload",
	}
	if !slices.Equal(got, want) {
		t.Errorf("layer is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestEnsureLayerOncePerContent(t *testing.T) {
	requireRoot(t)
	run, programs := filepath.Join(t.TempDir(), "run"), newPrograms(t)
	ensure := func(p rootfs.Programs) string {
		t.Helper()
		dir, err := rootfs.EnsureLayer(run, p)
		if err != nil {
			t.Fatalf("EnsureLayer(%v): %v", p, err)
		}
		return dir
	}
	first := ensure(programs)
	if again := ensure(programs); again != first {
		t.Errorf("second call returned %s, want %s", again, first)
	}
	if same := ensure(newPrograms(t)); same != first {
		t.Errorf("equal bytes elsewhere returned %s, want %s", same, first)
	}
	for path, name := range map[string]string{programs.Init: ".engine/init", programs.Guest: ".engine/guest"} {
		old, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		before := ensure(programs)
		now := string(old[:len(old)-1]) + "!"
		write(t, path, now)
		changed := ensure(programs)
		if changed == before {
			t.Errorf("%s: other bytes of the same size at the same path returned the old layer", name)
		}
		if got, err := os.ReadFile(filepath.Join(changed, name)); err != nil || string(got) != now {
			t.Errorf("%s of the new layer = %q, %v", name, got, err)
		}
		if err := os.Remove(filepath.Join(changed, name)); err != nil {
			t.Fatal(err)
		}
		if rebuilt := ensure(programs); rebuilt != changed {
			t.Errorf("layer without %s was rebuilt as %s, want %s", name, rebuilt, changed)
		}
		if _, err := os.Stat(filepath.Join(changed, name)); err != nil {
			t.Errorf("torn layer was not repaired: %v", err)
		}
	}
}

func TestEnsureLayerRace(t *testing.T) {
	requireRoot(t)
	run, programs := filepath.Join(t.TempDir(), "run"), newPrograms(t)
	mkdir(t, run)
	mkdir(t, run, ".layer-99", "etc") // left by a dead build
	var wg sync.WaitGroup
	dirs := make([]string, 16)
	for i := range dirs {
		wg.Go(func() {
			dir, err := rootfs.EnsureLayer(run, programs)
			if err != nil {
				t.Errorf("EnsureLayer in a race: %v", err)
			}
			dirs[i] = dir
		})
	}
	wg.Wait()
	if slices.Sort(dirs); dirs[0] != dirs[15] {
		t.Errorf("a race made several layers: %v", dirs)
	}
	left, err := filepath.Glob(filepath.Join(run, ".layer-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("unfinished layers left: %v, %v", left, err)
	}
}

func TestEnsureLayerRefusesSharedRunDir(t *testing.T) {
	requireRoot(t)
	programs := newPrograms(t)
	for _, tt := range []struct {
		name string
		mode os.FileMode
		uid  int
	}{
		{"group may write", 0o770, 0},
		{"others may write", 0o707, 0},
		{"belongs to a user", 0o711, 1000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run := mkdir(t, t.TempDir(), "run")
			if _, err := rootfs.EnsureLayer(run, programs); err != nil {
				t.Fatalf("EnsureLayer in a sound run directory: %v", err)
			}
			if err := errors.Join(os.Chmod(run, tt.mode), os.Chown(run, tt.uid, 0)); err != nil {
				t.Fatal(err)
			}
			_, err := rootfs.EnsureLayer(run, programs)
			var path *rootfs.PathError
			if !errors.As(err, &path) || path.Remedy() == "" {
				t.Errorf("EnsureLayer = %v, want a *PathError with a remedy", err)
			}
		})
	}
}

func TestEnsureLayerRefusesPrograms(t *testing.T) {
	requireRoot(t)
	interpreted := staticELF("")
	interpreted[64] = 3 // PT_INTERP
	outside := staticELF("")
	outside[33] = 0xff // segments beyond the end
	for _, tt := range []struct{ name, content string }{
		{"empty", ""},
		{"a script", "#!/bin/sh\n" + strings.Repeat("#", 100)},
		{"dynamically linked", string(interpreted)},
		{"cut off", string(outside)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, object := range []string{"init", "guest"} {
				programs := newPrograms(t)
				path := map[string]string{"init": programs.Init, "guest": programs.Guest}[object]
				write(t, path, tt.content)
				_, err := rootfs.EnsureLayer(filepath.Join(t.TempDir(), "run"), programs)
				var bad *rootfs.PathError
				if !errors.As(err, &bad) || bad.Object != object {
					t.Errorf("EnsureLayer = %v, want a *PathError about the %s", err, object)
				}
			}
		})
	}
}

func BenchmarkEnsureLayer(b *testing.B) {
	requireRoot(b)
	run, programs := filepath.Join(b.TempDir(), "run"), newPrograms(b)
	for b.Loop() {
		if _, err := rootfs.EnsureLayer(run, programs); err != nil {
			b.Fatal(err)
		}
	}
}
