package rootfs_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs"
)

// someone is a user of the host, insider how it is shown.
const (
	someone = 4001
	insider = 1879113724
)

// as runs a shell command as a user, without any capability.
func as(uid uint32, script string) error {
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return errors.New(err.Error() + ": " + string(out))
	}
	return nil
}

// passable makes every directory above path one that others can pass through.
func passable(t *testing.T, path string) {
	t.Helper()
	for ; path != "/" && path != os.TempDir(); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// detach takes mounts away before the test's directories are removed.
func detach(t *testing.T, targets ...string) {
	t.Helper()
	t.Cleanup(func() {
		for _, target := range targets {
			if err := rootfs.Unmount(target); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestAttach looks at a directory of the host as somebody of a sandbox would.
func TestAttach(t *testing.T) {
	if !privateMounts(t) {
		return
	}
	base := t.TempDir()
	passable(t, base)
	dir := mkdir(t, base, "data")
	write(t, dir+"/mine", "mine")
	write(t, dir+"/others", "others")
	write(t, dir+"/roots", "roots")
	for path, uid := range map[string]int{"": someone, "/mine": someone, "/others": 4002, "/roots": 0} {
		if err := errors.Join(os.Chown(dir+path, uid, uid), os.Chmod(dir+path, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir+"/others", 0o666); err != nil {
		t.Fatal(err)
	}
	source, err := rootfs.OpenSource(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	if source.UID != someone || source.GID != someone {
		t.Errorf("owner = %d:%d, want %d", source.UID, source.GID, someone)
	}
	owner := rootfs.IDMap{Host: someone, Shown: insider}
	rw, ro := mkdir(t, base, "rw"), mkdir(t, base, "ro")
	detach(t, rw, ro, base+"/plain")
	if err := errors.Join(source.Attach(rw, owner, owner, true), source.Attach(ro, owner, owner, false)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		what   string
		script string
		works  bool
	}{
		{"read its own", "cat " + rw + "/mine", true},
		{"write a new file", "echo x >" + rw + "/new", true},
		{"change its own", "echo y >" + rw + "/mine", true},
		{"read what all may", "cat " + rw + "/others", true},
		{"write another's, whatever its mode", "echo x >" + rw + "/others", false},
		{"read root's", "cat " + rw + "/roots", false},
		{"give a file away", "chown 0 " + rw + "/mine", false},
		{"read of a read-only one", "cat " + ro + "/mine", true},
		{"write to a read-only one", "echo x >" + ro + "/mine", false},
		{"make in a read-only one", "echo x >" + ro + "/made", false},
	} {
		if err := as(insider, tt.script); (err == nil) != tt.works {
			t.Errorf("%s: %v", tt.what, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(dir+"/new", &st); err != nil || st.Uid != someone || st.Gid != someone {
		t.Errorf("on the host the new file is %d:%d's, %v, want %d's", st.Uid, st.Gid, err, someone)
	}
	for target, want := range map[string]string{rw: " rw,nosuid,nodev", ro: " ro,nosuid,nodev"} {
		line := mountLine(t, target)
		if !strings.Contains(line, want) || !strings.Contains(line, "idmapped") || strings.Contains(line, "shared:") {
			t.Errorf("mountinfo %q, want %q, idmapped and private", line, want)
		}
	}
	// Root's own: seen, and nobody's.
	plain := mkdir(t, base, "plain")
	if err := source.Attach(plain, rootfs.IDMap{}, rootfs.IDMap{}, false); err != nil {
		t.Fatal(err)
	}
	if err := source.Attach(plain, owner, rootfs.IDMap{}, true); err == nil {
		t.Error("a directory of root's group was mounted to be written")
	}
}

// TestAttachShowsOneMount has another mount below the source.
func TestAttachShowsOneMount(t *testing.T) {
	if !privateMounts(t) {
		return
	}
	base := t.TempDir()
	below := mkdir(t, base, "source/below")
	if err := unix.Mount("none", below, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	write(t, below+"/hidden", "x")
	source, err := rootfs.OpenSource(base + "/source")
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	if source.Holds("below") {
		t.Error("a directory of another file system, which is not shown, counts as held")
	}
	target := mkdir(t, base, "target")
	detach(t, target, below)
	if err := source.Attach(target, rootfs.IDMap{}, rootfs.IDMap{}, false); err != nil {
		t.Fatal(err)
	}
	if got := names(t, target+"/below"); len(got) != 0 {
		t.Errorf("below the mount: %v, want nothing of another file system", got)
	}
}

// TestOpenSourceRefuses names directories that are none of a sandbox's business, and
// swaps one while it is open.
func TestOpenSourceRefuses(t *testing.T) {
	requireRoot(t)
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	state, run := mkdir(t, base, "engine/state/runs"), mkdir(t, base, "engine/run")
	write(t, base+"/file", "x")
	good := mkdir(t, base, "good/deep")
	for link, target := range map[string]string{"link": "good", "good/up": "deep"} {
		if err := os.Symlink(target, filepath.Join(base, link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, names := range map[string]string{
		base + "/gone": "it does not exist", base + "/file": "not a directory", base + "/link": "symbolic link", base + "/link/deep": "symbolic link",
		base + "/good/up": "symbolic link", "/proc": "the kernel's own", "/proc/self/cwd": "symbolic link", "/proc/1/fd": "the kernel's own",
		"/sys": "kernel's own", "/sys/kernel": "kernel's own", "/dev": "inside", "/dev/pts": "kernel's own", "/dev/shm": "inside /dev",
		"/": "is inside it", state: "is inside " + filepath.Dir(state), filepath.Dir(state): "is inside", base + "/engine": "is inside it", run: "is inside", base: "is inside it",
	} {
		s, err := rootfs.OpenSource(path, filepath.Dir(state), run)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("OpenSource(%s) = %v, want an error with %q", path, err, names)
		}
	}
	s, err := rootfs.OpenSource(good, state, run, base+"/not/made/yet")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// What was opened stays what it is.
	if err := errors.Join(os.Mkdir(good+"/held", 0o755), os.Rename(good, good+".away"), os.Symlink("/etc", good), os.Symlink("held", good+".away/link")); err != nil {
		t.Fatal(err)
	}
	for rel, want := range map[string]bool{"held": true, "nothing": false, "link": false, "../good.away/held": false, "/etc": false, ".": true} {
		if got := s.Holds(rel); got != want {
			t.Errorf("Holds(%q) = %v, want %v", rel, got, want)
		}
	}
}

// TestMountPoints makes places that an image lacks, and shows nothing else by it.
func TestMountPoints(t *testing.T) {
	if !privateMounts(t) {
		return
	}
	layer, image, base := newLayer(t), t.TempDir(), t.TempDir()
	mkdir(t, image, "srv/old")
	mkdir(t, image, "home/user")
	write(t, image+"/home/user/file", "of the image")
	write(t, image+"/srv/plain", "x")
	if err := errors.Join(os.Chmod(image+"/home/user", 0o700), os.Chown(image+"/home/user", 1, 2), os.Symlink("srv", image+"/link")); err != nil {
		t.Fatal(err)
	}
	root, points := mkdir(t, base, "root"), filepath.Join(base, "points")
	if err := rootfs.Mount(layer, []string{image}, root); err != nil {
		t.Fatal(err)
	}
	if needed, err := rootfs.MountPoints(points, root, []string{"/srv/old", "/run"}); err != nil || needed {
		t.Errorf("MountPoints of what is there = %v, %v", needed, err)
	}
	for _, path := range []string{"/link/x", "/srv/plain/x", "/srv/plain"} {
		if _, err := rootfs.MountPoints(points, root, []string{path}); err == nil {
			t.Errorf("a mount point %s through a link or file was made", path)
		}
	}
	needed, err := rootfs.MountPoints(points, root, []string{"/home/user/data", "/home/user/data/more", "/new/place", "/run/data", "/srv/old"})
	if err != nil || !needed {
		t.Fatalf("MountPoints = %v, %v", needed, err)
	}
	unmount(t, root)
	if err := rootfs.MountWith(points, layer, []string{image}, root); err != nil {
		t.Fatal(err)
	}
	defer unmount(t, root)
	for _, dir := range []string{"home/user/data/more", "new/place", "run/data", "run/secrets"} {
		if st, err := os.Lstat(filepath.Join(root, dir)); err != nil || !st.IsDir() {
			t.Errorf("/%s: %v, want a directory", dir, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(root+"/home/user", &st); err != nil || st.Mode != unix.S_IFDIR|0o700 || st.Uid != 1 || st.Gid != 2 {
		t.Errorf("a directory on the way: mode %o, owner %d:%d, %v, want the image's", st.Mode, st.Uid, st.Gid, err)
	}
	if got, err := os.ReadFile(root + "/home/user/file"); err != nil || string(got) != "of the image" {
		t.Errorf("a file beside a mount point = %q, %v", got, err)
	}
	checkRootButRun(t, layer, root)
}

// checkRootButRun wants the engine's files to be what they are without mount points.
func checkRootButRun(t *testing.T, layer, root string) {
	t.Helper()
	for _, file := range []string{".engine/init", ".engine/guest", "etc/passwd"} {
		got, gotErr := os.ReadFile(filepath.Join(root, file))
		want, wantErr := os.ReadFile(filepath.Join(layer, file))
		if gotErr != nil || wantErr != nil || string(got) != string(want) {
			t.Errorf("/%s is %q, %v, want %q, %v", file, got, gotErr, want, wantErr)
		}
	}
}
