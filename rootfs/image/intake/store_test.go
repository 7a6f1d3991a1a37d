package intake_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/intake"
)

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func remove(s image.Store, name string) error {
	_, err := s.Remove(name)
	return err
}

// makeTree makes a directory with one of everything.
func makeTree(t testing.TB) string {
	t.Helper()
	src := t.TempDir()
	at := func(name string) string { return filepath.Join(src, name) }
	must(t,
		os.Chmod(src, 0o755),
		os.MkdirAll(at("usr/bin"), 0o755),
		os.WriteFile(at("usr/bin/tool"), []byte(strings.Repeat("tool", 1000)), 0o755),
		os.Link(at("usr/bin/tool"), at("usr/bin/same")),
		os.Chmod(at("usr/bin/tool"), 0o755|os.ModeSetuid),
		os.Symlink("usr/bin", at("bin")),
		os.Symlink("/etc/shadow", at("shadow")),
		os.Mkdir(at("empty"), 0o700),
		os.WriteFile(at("a\nb\xff"), nil, 0o600),
		os.Lchown(at("bin"), 7, 8),
		unix.Mkfifo(at("pipe"), 0o600),
		unix.Mknod(at("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Setxattr(at("empty"), "trusted.overlay.opaque", []byte("y"), 0),
		os.Chtimes(at("empty"), time.Time{}, time.Unix(1600000000, 123456789)),
		os.Chtimes(at("usr"), time.Time{}, time.Unix(1500000000, 0)),
	)
	// tmpfs takes user attributes since Linux 6.6.
	if err := unix.Setxattr(at("empty"), "user.note", []byte("kept"), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
		t.Fatal(err)
	}
	return src
}

func TestImportDirectory(t *testing.T) {
	o := newOutside(t)
	src := makeTree(t)
	img, err := take(context.Background(), o.store, src, "team/tree:1.0")
	if err != nil {
		t.Fatal(err)
	}
	c := img.Counts
	if c.Devices != 1 || c.Pipes != 1 || c.SetID != 1 || c.Xattrs != 1 || c.Entries != 9 {
		t.Errorf("counts = %+v, want 9 entries, 1 device, pipe, set-id file and attribute", c)
	}
	var tool, same, empty, usr, link unix.Stat_t
	must(t, unix.Lstat(filepath.Join(img.Lowers[0], "usr/bin/tool"), &tool), unix.Lstat(filepath.Join(img.Lowers[0], "usr/bin/same"), &same),
		unix.Lstat(filepath.Join(img.Lowers[0], "empty"), &empty), unix.Lstat(filepath.Join(img.Lowers[0], "usr"), &usr), unix.Lstat(filepath.Join(img.Lowers[0], "bin"), &link))
	if tool.Ino != same.Ino || tool.Nlink != 2 || tool.Mode != unix.S_IFREG|0o755 {
		t.Errorf("hard-linked files are %+v and %+v, want one of mode 0755", tool, same)
	}
	if empty.Mode != unix.S_IFDIR|0o700 || empty.Mtim.Nano() != 1600000000123456789 || usr.Mtim.Sec != 1500000000 {
		t.Errorf("mode and times of directories are %o, %v, %v", empty.Mode, empty.Mtim, usr.Mtim)
	}
	if link.Uid != 7 || link.Gid != 8 {
		t.Errorf("link belongs to %d:%d, want 7:8", link.Uid, link.Gid)
	}
	checkTree(t, img, map[string]string{"bin": "-> usr/bin", "shadow": "-> /etc/shadow", "a\nb\xff": "", "empty": "dir"})
	opened, err := o.store.Open("team/tree:1.0")
	if err != nil || !reflect.DeepEqual(opened, img) {
		t.Errorf("Open = %+v, %v, want what Import returned, %+v", opened, err, img)
	}
	checkNoRest(t, o.store)
	sameDigest(t, o, src, img.Digest)
}

// sameDigest imports the tree again, and as an archive, and in changed forms.
func sameDigest(t *testing.T, o outside, src, want string) {
	t.Helper()
	again, err := take(context.Background(), o.store, src, "again")
	if err != nil || again.Digest != want {
		t.Errorf("second import has digest %s, %v, want %s", again.Digest, err, want)
	}
	tarball := filepath.Join(t.TempDir(), "tree.tar")
	cmd := exec.Command("tar", "--xattrs", "--xattrs-include=*", "--format=posix", "--numeric-owner", "-C", src, "-cf", tarball, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	archived, err := take(context.Background(), o.store, tarball, "archived")
	if err != nil || archived.Digest != want {
		t.Errorf("import of a tar of the tree has digest %s, %v, want %s", archived.Digest, err, want)
	}
	must(t, os.Chmod(filepath.Join(src, "empty"), 0o711))
	changed, err := take(context.Background(), o.store, src, "changed")
	if err != nil || changed.Digest == want {
		t.Errorf("import of a changed tree has digest %s, %v, want another", changed.Digest, err)
	}
}

func TestImportStaysOnOneMount(t *testing.T) {
	o := newOutside(t)
	if os.Getenv("ENGINE_IMAGE_TEST_MOUNTS") == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "ENGINE_IMAGE_TEST_MOUNTS=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("in a mount namespace of its own: %v\n%s", err, out)
		}
		return
	}
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	src := t.TempDir()
	bound := filepath.Join(src, "bound")
	must(t, os.Mkdir(bound, 0o755), unix.Mount(filepath.Join(o.base, "dir"), bound, "", unix.MS_BIND, ""))
	defer func() { must(t, unix.Unmount(bound, unix.MNT_DETACH)) }()
	img, err := take(context.Background(), o.store, src, "mounts")
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(img.Lowers[0], "bound")); err != nil || len(left) != 0 || img.Counts.Mounts != 1 {
		t.Errorf("directory below a mount point holds %v, %v, counts %+v, want nothing and 1 mount", left, err, img.Counts)
	}
}

func TestImportRefusesItsOwnStore(t *testing.T) {
	o := newOutside(t)
	for _, src := range []string{o.base, o.store.Dir, "/"} {
		must(t, os.MkdirAll(o.store.Dir, 0o700))
		var bad *intake.SourceError
		if _, err := take(context.Background(), o.store, src, "all"); !errors.As(err, &bad) {
			t.Errorf("Import(%s) = %v, want a *SourceError", src, err)
		}
	}
	for _, src := range []string{filepath.Join(o.base, "gone"), "/dev/null", makePipe(t)} {
		var bad *intake.SourceError
		if _, err := take(context.Background(), o.store, src, "odd"); !errors.As(err, &bad) {
			t.Errorf("Import(%s) = %v, want a *SourceError", src, err)
		}
	}
	checkNoRest(t, o.store)
}

func makePipe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	must(t, unix.Mkfifo(path, 0o600))
	return path
}

func TestNames(t *testing.T) {
	requireRoot(t)
	s := image.Store{Dir: t.TempDir()}
	for _, name := range []string{"a", "node:20", "node:20-slim_X.1", "team/node", "a.b/c_d/e--f:v1", "a:latest", "0", "registry.example:5000/a/b:1", "a@sha256:" + strings.Repeat("0a", 32)} {
		var missing *image.NotFoundError
		if _, err := s.Open(name); !errors.As(err, &missing) || missing.Remedy() == "" {
			t.Errorf("Open(%q) = %v, want a *NotFoundError with a remedy", name, err)
		}
	}
	bad := []string{"", ".", "..", "/a", "a/", "a//b", "a/../b", "../a", "A", "a:", ":a", "a:b:c", "a b", "a\n", "a\x00", "-a", "a+b", "a@b", "a@sha256:00", "a:5000x/b", "a/b:1/c", ".tmp-1", "a/.lock", "a:.x", "é", strings.Repeat("a", 201)}
	for _, name := range bad {
		var wrong *image.NameError
		if _, err := s.Open(name); !errors.As(err, &wrong) || wrong.Remedy() == "" {
			t.Errorf("Open(%q) = %v, want a *NameError with a remedy", name, err)
		}
		if _, err := take(context.Background(), s, "/etc", name); !errors.As(err, &wrong) {
			t.Errorf("Import as %q = %v, want a *NameError", name, err)
		}
		if _, err := s.Remove(name); !errors.As(err, &wrong) {
			t.Errorf("Remove(%q) = %v, want a *NameError", name, err)
		}
	}
}

func TestStore(t *testing.T) {
	o := newOutside(t)
	ctx := context.Background()
	if images, err := o.store.List(); err != nil || len(images) != 0 {
		t.Errorf("List of no store = %v, %v, want nothing", images, err)
	}
	src := t.TempDir()
	must(t, os.WriteFile(filepath.Join(src, "hello"), []byte("hi"), 0o644))
	for i, name := range []string{"b/c:1", "a:latest"} {
		must(t, os.WriteFile(filepath.Join(src, "which"), []byte{byte(i)}, 0o644))
		if _, err := take(ctx, o.store, src, name); err != nil {
			t.Fatal(err)
		}
	}
	var there *image.ExistsError
	if _, err := take(ctx, o.store, src, "a"); !errors.As(err, &there) || there.Remedy() != "run engine image rm a" {
		t.Errorf("second Import = %v, want an *ExistsError with the remedy", err)
	}
	must(t, os.WriteFile(filepath.Join(o.store.Dir, "torn"), []byte("{"), 0o600))
	images, err := o.store.List()
	if len(images) != 2 || images[0].Name != "a" || images[1].Name != "b/c:1" || err == nil || !strings.Contains(err.Error(), "image=torn") {
		t.Errorf("List = %v, %v, want a, b/c:1 and an error about torn", images, err)
	}
	hold, err := images[0].Hold()
	if err != nil {
		t.Fatal(err)
	}
	second, err := images[0].Hold()
	if err != nil {
		t.Errorf("second Hold: %v", err)
	}
	var held *image.HeldError
	if _, err := o.store.Remove("a"); !errors.As(err, &held) {
		t.Errorf("Remove of a held image = %v, want a *HeldError", err)
	}
	must(t, hold.Close(), second.Close())
	var missing *image.NotFoundError
	if _, err := o.store.Remove("a"); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if _, err := o.store.Remove("a"); !errors.As(err, &missing) {
		t.Errorf("second Remove = %v, want a *NotFoundError", err)
	}
	if _, err := images[0].Hold(); !errors.As(err, &missing) {
		t.Errorf("Hold of a removed image = %v, want a *NotFoundError", err)
	}
	checkNoRest(t, o.store)
}

// TestHoldOrRemove lets holders and removers race: nobody may hold what is gone.
func TestHoldOrRemove(t *testing.T) {
	o := newOutside(t)
	src := t.TempDir()
	for round := range 20 {
		img, err := take(context.Background(), o.store, src, fmt.Sprint("r", round))
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				f, err := img.Hold()
				var missing *image.NotFoundError
				if err != nil {
					if !errors.As(err, &missing) {
						t.Errorf("Hold in a race: %v", err)
					}
					return
				}
				if _, err := os.Stat(img.Lowers[0]); err != nil {
					t.Errorf("a held image is gone: %v", err)
				}
				must(t, f.Close())
			})
			wg.Go(func() {
				var held *image.HeldError
				var missing *image.NotFoundError
				if _, err := o.store.Remove(img.Name); err != nil && !errors.As(err, &held) && !errors.As(err, &missing) {
					t.Errorf("Remove in a race: %v", err)
				}
			})
		}
		wg.Wait()
	}
	checkNoRest(t, o.store)
}

func TestConcurrentImports(t *testing.T) {
	o := newOutside(t)
	src := makeTree(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 8 {
		wg.Go(func() {
			_, err := take(context.Background(), o.store, src, "one")
			var there *image.ExistsError
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if !errors.As(err, &there) {
				t.Errorf("Import in a race = %v, want an *ExistsError", err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d imports of one name succeeded, want 1", won)
	}
	checkNoRest(t, o.store)
}

// TestKilledImport kills importers at points spread over their work. Whatever they
// leave, no half image is seen, and the next import removes the rest.
func TestKilledImport(t *testing.T) {
	if dir := os.Getenv("ENGINE_IMAGE_TEST_STORE"); dir != "" {
		_, err := take(context.Background(), image.Store{Dir: dir}, os.Getenv("ENGINE_IMAGE_TEST_SRC"), "killed")
		must(t, err)
		return
	}
	o := newOutside(t)
	src := t.TempDir()
	for i := range 300 {
		must(t, os.WriteFile(filepath.Join(src, fmt.Sprint("f", i)), []byte(strings.Repeat("x", 10000)), 0o644))
	}
	want, err := take(context.Background(), o.store, src, "whole")
	must(t, err)
	importer := func() *exec.Cmd {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "ENGINE_IMAGE_TEST_STORE="+o.store.Dir, "ENGINE_IMAGE_TEST_SRC="+src)
		return cmd
	}
	start := time.Now()
	must(t, importer().Run(), remove(o.store, "killed"))
	whole := time.Since(start)
	const rounds = 30
	finished := 0
	for i := range rounds {
		cmd := importer()
		must(t, cmd.Start())
		timer := time.AfterFunc(whole*time.Duration(i)*5/(rounds*4), func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // killed, or came to its end before
		timer.Stop()
		img, err := o.store.Open("killed")
		var missing *image.NotFoundError
		switch {
		case err == nil:
			finished++
			if img.Digest != want.Digest {
				t.Errorf("image of a killed import has digest %s, want %s", img.Digest, want.Digest)
			}
			must(t, remove(o.store, "killed"))
		case !errors.As(err, &missing):
			t.Errorf("Open after a killed import: %v", err)
		}
	}
	t.Logf("%d of %d imports came to an end", finished, rounds)
	_, err = take(context.Background(), o.store, src, "after")
	must(t, err)
	checkNoRest(t, o.store)
}

func TestCancelledImport(t *testing.T) {
	o := newOutside(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := take(ctx, o.store, makeTree(t), "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled Import = %v, want %v", err, context.Canceled)
	}
	checkNoRest(t, o.store)
}

// elf is the start of a program for one kind of processor.
func elf(machine uint16) string {
	b := make([]byte, 64)
	copy(b, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(b[16:], 2)
	binary.LittleEndian.PutUint16(b[18:], machine)
	return string(b)
}

func TestArchitecture(t *testing.T) {
	o := newOutside(t)
	own, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	host := binary.LittleEndian.Uint16(own[18:])
	other := uint16(62)
	if host == other {
		other = 183
	}
	prog := func(name string, machine uint16) item {
		i := file(name, elf(machine))
		i.Mode = 0o755
		return i
	}
	for i, tt := range []struct {
		name  string
		items []item
		ok    bool
	}{
		{"no program", []item{file("f", "x")}, true},
		{"a program for this host", []item{prog("usr/bin/x", host)}, true},
		{"a shell for another", []item{prog("bin/sh", other), prog("usr/bin/x", host)}, false},
		{"a shell for this host among others", []item{prog("bin/a", other), prog("bin/sh", host)}, true},
		{"no shell, one program runs here", []item{prog("a", other), prog("b", host)}, true},
		{"only a program for another", []item{prog("a", other)}, false},
		{"data that looks like a program", []item{file("a.o", elf(other))}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := o.importBytes(t, fmt.Sprint("arch", i), archive(t, tt.items...))
			var arch *image.PlatformError
			if tt.ok && err != nil || !tt.ok && !errors.As(err, &arch) {
				t.Errorf("Import = %v, want it to work: %v", err, tt.ok)
			}
		})
	}
}

// TestRelativeStore uses a store whose path depends on the working directory.
func TestRelativeStore(t *testing.T) {
	requireRoot(t)
	src := filepath.Join(t.TempDir(), "src.tar")
	must(t, os.WriteFile(src, archive(t, file("f", "x")), 0o600))
	t.Chdir(t.TempDir())
	img, err := take(context.Background(), image.Store{Dir: "images"}, src, "x")
	if err != nil {
		t.Fatal(err)
	}
	checkTree(t, img, map[string]string{"f": "x"})
	if !filepath.IsAbs(img.Lowers[0]) {
		t.Errorf("layer is at %s, want an absolute path", img.Lowers[0])
	}
}
