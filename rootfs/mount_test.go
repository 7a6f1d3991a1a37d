package rootfs_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs"
)

// TestHostileImages mounts the layer over images that try to lead a runtime
// elsewhere, and looks at what a sandbox would see.
func TestHostileImages(t *testing.T) {
	if !privateMounts(t) {
		return
	}
	layer := newLayer(t)
	outside := mkdir(t, t.TempDir(), "host")
	write(t, filepath.Join(outside, "canary"), "host")
	link := func(target string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.Symlink(target, path); err != nil {
				t.Fatal(err)
			}
		}
	}
	full := func(t *testing.T, path string) { write(t, filepath.Join(mkdir(t, path), "planted"), "image") }
	file := func(t *testing.T, path string) { write(t, path, "image") }
	tests := []struct {
		name, path string
		plant      func(t *testing.T, path string)
	}{
		{"dev leads to the host", "dev", link(outside)},
		{"dev leads upwards", "dev", link("../../../../../../.." + outside)},
		{"dev has content", "dev", full},
		{"proc leads to the root", "proc", link("/")},
		{"meminfo leads to the host", "proc/meminfo", link(outside + "/canary")},
		{"sys is a file", "sys", file},
		{"etc leads elsewhere", "etc", link(outside)},
		{"etc is a file", "etc", file},
		{"resolv.conf leads to shadow", "etc/resolv.conf", link("/etc/shadow")},
		{"resolv.conf is a directory", "etc/resolv.conf", full},
		{"passwd leads to the host", "etc/passwd", link(outside + "/canary")},
		{"tmp leads to root's home", "tmp", link("/root")},
		{"run leads elsewhere", "run", link("/etc")},
		{"secrets lead elsewhere", "run/secrets", link(outside)},
		{"workload is a file", "workload", file},
		{"workload leads to itself", "workload", link("workload")},
		{"engine leads elsewhere", ".engine", link(outside)},
		{"engine has another init", ".engine/init", file},
		{"engine has another guest", ".engine/guest", link("/bin/sh")},
		{"cgroup leads elsewhere", "sys/fs/cgroup", link(outside)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			image := t.TempDir()
			mkdir(t, image, filepath.Dir(tt.path))
			tt.plant(t, filepath.Join(image, tt.path))
			target := mkdir(t, t.TempDir(), "rootfs")
			if err := rootfs.Mount(layer, []string{image}, target); err != nil {
				t.Fatalf("Mount: %v", err)
			}
			defer unmount(t, target)
			checkRoot(t, layer, target)
		})
	}
	if got, err := os.ReadFile(filepath.Join(outside, "canary")); err != nil || string(got) != "host" {
		t.Errorf("canary of the host = %q, %v", got, err)
	}
}

// checkRoot compares the engine's part of a mounted root with the layer.
func checkRoot(t *testing.T, layer, root string) {
	t.Helper()
	for _, dir := range []string{"dev", "proc", "sys", "sys/fs", "sys/fs/cgroup", "tmp", "run", "run/secrets", "workload", ".engine", "etc"} {
		st, err := os.Lstat(filepath.Join(root, dir))
		if err != nil || !st.IsDir() {
			t.Errorf("/%s is %v, %v, want a directory", dir, st, err)
			continue
		}
		if dir == "etc" {
			continue
		}
		if got, want := names(t, filepath.Join(root, dir)), names(t, filepath.Join(layer, dir)); !slices.Equal(got, want) {
			t.Errorf("/%s holds %v, want %v", dir, got, want)
		}
	}
	for _, file := range []string{".engine/init", ".engine/guest", "etc/passwd", "etc/group", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/nsswitch.conf"} {
		st, err := os.Lstat(filepath.Join(root, file))
		if err != nil || !st.Mode().IsRegular() {
			t.Errorf("/%s is %v, %v, want a regular file", file, st, err)
			continue
		}
		got, gotErr := os.ReadFile(filepath.Join(root, file))
		want, wantErr := os.ReadFile(filepath.Join(layer, file))
		if gotErr != nil || wantErr != nil || string(got) != string(want) {
			t.Errorf("/%s is %q, %v, want %q, %v", file, got, gotErr, want, wantErr)
		}
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Errorf("%v", err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func unmount(t *testing.T, target string) {
	t.Helper()
	for range 2 { // it is idempotent
		if err := rootfs.Unmount(target); err != nil {
			t.Errorf("Unmount(%s): %v", target, err)
		}
	}
	if got := names(t, target); len(got) != 0 {
		t.Errorf("after Unmount the target holds %v", got)
	}
}

// TestMountFlags reads what the kernel says about the mount.
func TestMountFlags(t *testing.T) {
	if !privateMounts(t) {
		return
	}
	layer, image, target := newLayer(t), t.TempDir(), mkdir(t, t.TempDir(), "rootfs")
	write(t, filepath.Join(mkdir(t, image, "etc/ssl"), "cert.pem"), "cert")
	write(t, filepath.Join(image, "hello"), "hi")
	if err := rootfs.Mount(layer, []string{image}, target); err != nil {
		t.Fatalf("Mount: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(target, "etc/ssl/cert.pem")); err != nil || string(got) != "cert" {
		t.Errorf("certificate of the image = %q, %v", got, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil {
		t.Fatal(err)
	}
	const want = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV
	if st.Flags&want != want {
		t.Errorf("statfs flags = %#x, want %#x in it", st.Flags, want)
	}
	line := mountLine(t, target)
	if strings.Contains(line, layer) || strings.Contains(line, image) {
		t.Errorf("mountinfo shows paths of the host: %s", line)
	}
	for _, option := range []string{" ro,nosuid,nodev", " - overlay engine ro,"} {
		if !strings.Contains(line, option) {
			t.Errorf("mountinfo %q has no %q", line, option)
		}
	}
	for _, change := range []error{
		os.WriteFile(filepath.Join(target, "hello"), nil, 0o644),
		os.Mkdir(filepath.Join(target, "new"), 0o755),
		os.Remove(filepath.Join(target, "hello")),
	} {
		if !errors.Is(change, unix.EROFS) {
			t.Errorf("change of the root: %v, want %v", change, unix.EROFS)
		}
	}
	unmount(t, target)
}

func mountLine(t *testing.T, target string) string {
	t.Helper()
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(info)) {
		if strings.Contains(line, " "+target+" ") {
			return line
		}
	}
	t.Fatalf("mountinfo has no %s", target)
	return ""
}

// TestMountIgnoresRedirects plants the attribute by which a layer gives a directory
// the content of another.
func TestMountIgnoresRedirects(t *testing.T) {
	if !privateMounts(t) {
		return
	}
	layer, upper, lower, target := newLayer(t), t.TempDir(), t.TempDir(), mkdir(t, t.TempDir(), "rootfs")
	mkdir(t, upper, "public")
	write(t, filepath.Join(mkdir(t, lower, "private"), "key"), "secret")
	if err := unix.Lsetxattr(filepath.Join(upper, "public"), "trusted.overlay.redirect", []byte("/private"), 0); err != nil {
		t.Fatal(err)
	}
	if err := rootfs.Mount(layer, []string{upper, lower}, target); err != nil {
		t.Fatalf("Mount: %v", err)
	}
	defer unmount(t, target)
	if _, err := os.ReadFile(filepath.Join(target, "public/key")); err == nil {
		t.Error("a redirect of the image was followed")
	}
	if got, err := os.ReadFile(filepath.Join(target, "private/key")); err != nil || string(got) != "secret" {
		t.Errorf("the lower directory itself shows %q, %v", got, err)
	}
}

func TestMountManyLowers(t *testing.T) {
	if !privateMounts(t) {
		return
	}
	layer, target := newLayer(t), mkdir(t, t.TempDir(), "rootfs")
	base := t.TempDir()
	var lowers []string
	for i := range 499 {
		// Names that options in one string would have to escape.
		dir := mkdir(t, base, fmt.Sprintf(`a:b,c\ d %d`, i))
		write(t, filepath.Join(dir, "who"), fmt.Sprint(i))
		write(t, filepath.Join(dir, fmt.Sprintf("file%d", i)), "x")
		lowers = append(lowers, dir)
	}
	for _, n := range []int{1, 128, 499} {
		err := rootfs.Mount(layer, lowers[:n], target)
		var unsupported *rootfs.UnsupportedError
		if n > 128 && errors.As(err, &unsupported) && oldKernel(t) {
			t.Logf("not possible here: %v", err)
			break
		}
		if err != nil {
			t.Fatalf("Mount of %d lowers: %v", n, err)
		}
		if got, err := os.ReadFile(filepath.Join(target, "who")); err != nil || string(got) != "0" {
			t.Errorf("%d lowers: topmost file = %q, %v, want that of the first", n, got, err)
		}
		if _, err := os.Stat(filepath.Join(target, fmt.Sprintf("file%d", n-1))); err != nil {
			t.Errorf("%d lowers: the last is not there: %v", n, err)
		}
		unmount(t, target)
	}
	if err := rootfs.Mount(layer, append(lowers, t.TempDir()), target); err == nil {
		t.Error("500 lowers were accepted")
	}
}

// oldKernel reports whether this kernel takes the directories of an overlay as one string.
func oldKernel(t *testing.T) bool {
	t.Helper()
	var host unix.Utsname
	if err := unix.Uname(&host); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(host.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major < 6 || major == 6 && minor < 8
}

// TestMountOnFileSystems stands an overlay on what hosts have.
func TestMountOnFileSystems(t *testing.T) {
	if !privateMounts(t) {
		return
	}
	layer := newLayer(t)
	tmpfs := mkdir(t, t.TempDir(), "tmpfs")
	if err := unix.Mount("none", tmpfs, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unmount(t, tmpfs)
	image := mkdir(t, tmpfs, "image")
	write(t, filepath.Join(image, "hello"), "hi")
	first, second, third := mkdir(t, t.TempDir(), "first"), mkdir(t, t.TempDir(), "second"), mkdir(t, t.TempDir(), "third")
	if err := rootfs.Mount(layer, []string{image}, first); err != nil {
		t.Fatalf("Mount on tmpfs: %v", err)
	}
	if err := rootfs.Mount(layer, []string{first}, second); err != nil {
		t.Fatalf("Mount on an overlay: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(second, "hello")); err != nil || string(got) != "hi" {
		t.Errorf("file through two overlays = %q, %v", got, err)
	}
	err := rootfs.Mount(layer, []string{second}, third)
	var path *rootfs.PathError
	if !errors.As(err, &path) || path.Path != second || path.Remedy() == "" {
		t.Errorf("Mount on two overlays = %v, want a *PathError naming %s and a remedy", err, second)
	}
	for _, target := range []string{second, first} {
		unmount(t, target)
	}
}

func TestMountRefuses(t *testing.T) {
	if !privateMounts(t) {
		return
	}
	base := t.TempDir()
	layer, err := rootfs.EnsureLayer(filepath.Join(base, "run"), newPrograms(t))
	if err != nil {
		t.Fatal(err)
	}
	target := mkdir(t, base, "run/0123456789abcdef/rootfs")
	image := mkdir(t, base, "image/usr")
	write(t, filepath.Join(base, "file"), "")
	if err := os.Symlink(image, filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		lowers []string
		target string
		names  string // part of the error
	}{
		{"no lower", nil, target, "0 lower directories"},
		{"missing lower", []string{image, base + "/gone"}, target, base + "/gone: it does not exist"},
		{"lower is a file", []string{base + "/file"}, target, "lower=" + base + "/file: it is not a directory"},
		{"lower is a link", []string{base + "/link"}, target, "or a symbolic link"},
		{"lower holds the run directory", []string{base}, target, "is inside it"},
		{"lower is the root of the host", []string{"/"}, target, "is inside it"},
		{"lower is the run directory", []string{base + "/run"}, target, "is inside it"},
		{"lower is in the run directory", []string{base + "/run/0123456789abcdef"}, target, "it is inside the run directory"},
		{"lower is the layer", []string{layer}, target, "it is inside the run directory"},
		{"same lower twice", []string{image, image}, target, "the same directory"},
		{"lower in a lower", []string{image, filepath.Dir(image)}, target, "inside another lower directory"},
		{"missing target", []string{image}, base + "/gone", "target=" + base + "/gone: it does not exist"},
		{"target is a link", []string{image}, base + "/link", "symbolic link"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := mounts(t)
			err := rootfs.Mount(layer, tt.lowers, tt.target)
			if err == nil || !strings.Contains(err.Error(), tt.names) {
				t.Errorf("Mount = %v, want an error with %q", err, tt.names)
			}
			if after := mounts(t); after != before {
				t.Errorf("mounts after a refusal are\n%s\nwant\n%s", after, before)
			}
		})
	}
}

func mounts(t *testing.T) string {
	t.Helper()
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(info)
}

func TestPrivateMountsRefusesTheHost(t *testing.T) {
	requireRoot(t)
	if err := rootfs.PrivateMounts(); err == nil {
		t.Error("PrivateMounts worked in the mount namespace of the parent")
	}
}

func TestUnmountOfNothing(t *testing.T) {
	requireRoot(t)
	for _, target := range []string{t.TempDir(), filepath.Join(t.TempDir(), "gone")} {
		if err := rootfs.Unmount(target); err != nil {
			t.Errorf("Unmount(%s): %v", target, err)
		}
	}
}

func BenchmarkMount(b *testing.B) {
	requireRoot(b)
	layer, image, target := newLayer(b), b.TempDir(), mkdir(b, b.TempDir(), "rootfs")
	for b.Loop() {
		if err := rootfs.Mount(layer, []string{image}, target); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := rootfs.Unmount(target); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
