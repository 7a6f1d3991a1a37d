package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/integration/testenv"
)

// owner is a user of the host to whom directories belong here.
const owner = 4001

// hostDir makes a directory of the host with a file of its owner's in it.
func (b *bed) hostDir(name string) string {
	b.t.Helper()
	dir := b.path(name)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chown(dir, owner, owner)); err != nil {
		b.t.Fatal(err)
	}
	b.hostFile(filepath.Join(dir, "mine"), owner, 0o600)
	return dir
}

func (b *bed) hostFile(path string, uid int, mode os.FileMode) {
	b.t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte(filepath.Base(path)+"\n"), 0o600), os.Chown(path, uid, uid), os.Chmod(path, mode)); err != nil {
		b.t.Fatal(err)
	}
}

// shell runs a script in a sandbox with these mounts.
func (b *bed) shell(script string, mounts ...string) testenv.Result {
	b.t.Helper()
	var flags []string
	for _, m := range mounts {
		flags = append(flags, "--mount", m)
	}
	return testenv.Exec(b.t, b.run(testenv.BusyboxRoot(b.t), flags, "/bin/sh", "-c", script)...)
}

// TestMountsHold has a program attack the host through directories that it was shown.
func TestMountsHold(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		shared, kept := b.hostDir("shared"), b.hostDir("kept")
		for _, dir := range []string{shared, kept} {
			b.hostFile(dir+"/open", 4002, 0o666)
			b.hostFile(dir+"/roots", 0, 0o600)
			b.hostFile(dir+"/busybox", 0, 0o755)
		}
		program, err := os.ReadFile(filepath.Join(testenv.BusyboxRoot(t), "bin/busybox"))
		if err == nil {
			err = errors.Join(os.WriteFile(shared+"/busybox", program, 0o755), os.Chmod(shared+"/busybox", 0o755|os.ModeSetuid|os.ModeSetgid),
				os.Symlink("/etc/passwd", shared+"/link"))
		}
		if err != nil {
			t.Fatal(err)
		}
		device := syscall.Mknod(shared+"/disk", syscall.S_IFBLK|0o666, int(unix.Mkdev(254, 0))) == nil && os.Chmod(shared+"/disk", 0o666) == nil
		before := snapshot(t, kept)
		script := `try() { if eval "$2" 2>/dev/null; then echo "$1"; fi; }
			try read-mine "test \"$(cat /mnt/kept/mine)\" = mine"; try read-open "test \"$(cat /mnt/kept/open)\" = open"
			try kept-read-roots "cat /mnt/kept/roots >&-"; try kept-write "echo x >/mnt/kept/mine"; try kept-new "echo x >/mnt/kept/new"
			try kept-mkdir "mkdir /mnt/kept/d"; try kept-remove "rm -f /mnt/kept/mine"; try kept-chmod "chmod 777 /mnt/kept/mine"; try kept-touch "touch /mnt/kept/mine"
			try kept-remount "mount -o remount,rw /mnt/kept"; try kept-link "ln /mnt/kept/mine /mnt/kept/again"
			cd /new/shared
			try write-mine "echo changed >mine"; try write-new "echo x >new"; try mkdir "mkdir -p d/e"; try rename "mv new moved"; try link "ln -s moved sym"
			try write-open "echo x >open"; try read-roots "cat roots >&-"; try write-roots "echo x >roots"; try remove-roots-mode "chmod 777 roots"
			try chown-root "chown 0:0 mine"; try chown-other "chown 4002 mine"; try chgrp "chgrp 0 mine"
			try disk "dd if=disk of=/dev/null bs=512 count=1"; try setid "test \"$(./busybox id -u)\" != 65532"; try run "test \"$(./busybox id -u)\" = 65532"; try mknod "mknod node b 254 0"
			try host-passwd "grep -q '^daemon' link"; try up "cat /new/shared/../../../../../etc/shadow >&-"
			echo done`
		call := b.shell(script, kept+":/mnt/kept", shared+":/new/shared:rw")
		want := []string{"read-mine", "read-open", "write-mine", "write-new", "mkdir", "rename", "link", "run", "done"}
		if got := strings.Fields(call.Stdout); !slices.Equal(got, want) {
			t.Errorf("%s\nwhat worked is %q, want %q", call, got, want)
		}
		if after := snapshot(t, kept); after != before {
			t.Errorf("the read-only directory is\n%s\nafterwards, want\n%s", after, before)
		}
		for name, content := range map[string]string{"mine": "changed\n", "moved": "x\n", "open": "open\n", "roots": "roots\n"} {
			var st unix.Stat_t
			data, err := os.ReadFile(filepath.Join(shared, name))
			if err = errors.Join(err, unix.Stat(filepath.Join(shared, name), &st)); err != nil || string(data) != content {
				t.Errorf("%s holds %q, %v, want %q", name, data, err, content)
			}
			if own := name == "mine" || name == "moved"; own != (st.Uid == owner && st.Gid == owner) {
				t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
			}
		}
		if !device {
			t.Log("this host makes no device node: that part was not tried")
		}
		b.nothingMounted()
	})
}

// snapshot is what a directory holds, with times.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			lines = append(lines, fmt.Sprint(path, info.Mode(), info.Size(), info.ModTime().UnixNano()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// nothingMounted wants no mount of the bed's in the host's namespace, and no directory of
// a run.
func (b *bed) nothingMounted() {
	b.t.Helper()
	testenv.WaitFor(b.t, testenv.Patience, "the end of all mounts and runs", func() bool {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			b.t.Fatal(err)
		}
		runs, err := filepath.Glob(b.path("run", strings.Repeat("[a-z0-9]", 16)))
		if err != nil {
			b.t.Fatal(err)
		}
		return !strings.Contains(string(mounts), b.dir) && len(runs) == 0
	})
}

// TestMountsGoIntoEachOther mounts a tree read-only, a part of it writable inside it, and
// others where the image has a place, or none, or a scratch space is.
func TestMountsGoIntoEachOther(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		tree, step := b.hostDir("tree"), b.hostDir("step")
		if err := os.MkdirAll(tree+"/steps/one", 0o755); err != nil {
			t.Fatal(err)
		}
		call := b.shell(`cat /tree/mine && echo x >/tree/steps/one/out && ! echo x 2>/dev/null >/tree/out &&
			echo x >/workload/deep/er/fromwork && cat /usr/mine /tmp/t/mine /run/data/mine && ls /tree/steps/one | tr '\n' ' ' && ls -d /usr/bin && test ! -e /srv/tree`,
			step+":/tree/steps/one:rw", tree+":/tree", step+":/workload/deep/er:rw", step+":/tmp/t", tree+":/run/data", tree+":/usr/mine.d/../x")
		if call.Status != 125 || !strings.Contains(call.Stderr, "not a clean absolute path") {
			t.Errorf("%s\nwant a path with dots refused", call)
		}
		call = b.shell(`cat /tree/mine && echo x >/tree/steps/one/out && ! echo x 2>/dev/null >/tree/out &&
			echo x >/workload/deep/er/fromwork && cat /opt/new/place/mine /tmp/t/mine /run/data/mine && ls /tree/steps/one | tr '\n' ' '`,
			step+":/tree/steps/one:rw", tree+":/tree", step+":/workload/deep/er:rw", step+":/tmp/t", tree+":/run/data", tree+":/opt/new/place")
		if want := "mine\nmine\nmine\nmine\nfromwork mine out "; call.Status != 0 || call.Stdout != want {
			t.Errorf("%s\nwant %q", call, want)
		}
		b.nothingMounted()
	})
}

// TestMountsAreRefused asks for what no sandbox is shown, and for places that are the
// engine's.
func TestMountsAreRefused(t *testing.T) {
	testenv.RequireRoot(t)
	b := newBed(t, "embedded")
	dir := b.hostDir("dir")
	roots := b.path("roots")
	if err := errors.Join(os.Mkdir(roots, 0o755), os.Symlink(dir, b.path("link")), os.Symlink(b.dir, dir+"/up")); err != nil {
		t.Fatal(err)
	}
	b.hostFile(b.path("file"), owner, 0o644)
	if call := b.shell("true"); call.Status != 0 {
		t.Fatal(call)
	}
	for _, tt := range []struct{ mount, want string }{
		{dir, "want SRC:PATH"},
		{dir + ":", "want SRC:PATH"},
		{":/mnt", "want SRC:PATH"},
		{dir + ":mnt", "not a clean absolute path"},
		{dir + ":/", "not a clean absolute path"},
		{dir + ":/mnt/", "not a clean absolute path"},
		{dir + ":/mnt/../etc", "not a clean absolute path"},
		{dir + ":/proc/self", "/proc belongs to the engine"},
		{dir + ":/sys", "/sys belongs to the engine"},
		{dir + ":/dev/shm", "/dev belongs to the engine"},
		{dir + ":/etc/ssl", "/etc belongs to the engine"},
		{dir + ":/.engine", "/.engine belongs to the engine"},
		{dir + ":/run", "/run/secrets belongs to the engine"},
		{dir + ":/run/secrets/x", "/run/secrets belongs to the engine"},
		{dir + ":/tmp", "scratch space"},
		{dir + ":/workload:rw", "scratch space"},
		{dir + ":/a\nb", "control character"},
		{b.path("gone") + ":/mnt", "it does not exist"},
		{b.path("file") + ":/mnt", "not a directory"},
		{b.path("link") + ":/mnt", "symbolic link"},
		{b.path("link") + "/up:/mnt", "symbolic link"},
		{"/:/mnt", "other than /"},
		{b.dir + ":/mnt", "is inside it"},
		{b.path("state") + ":/mnt", "is inside"},
		{b.path("state", "runs") + ":/mnt", "is inside"},
		{b.path("run") + ":/mnt", "is inside"},
		{"/proc:/mnt", "kernel's own"},
		{"/sys/fs:/mnt", "kernel's own"},
		{"/dev:/mnt", "/dev"},
		{roots + ":/mnt:rw", "could act as root"},
		{dir + ":/bin/busybox/x", "a link or a file on the way"},
		{dir + ":/bin/sh", "a link or a file on the way"},
	} {
		call := b.shell("echo started", tt.mount)
		if call.Status != 125 || !strings.Contains(call.Stderr, tt.want) || call.Stdout != "" {
			t.Errorf("--mount %q: %s\nwant it refused with %q", tt.mount, call, tt.want)
		}
	}
	for _, mounts := range [][]string{{dir + ":/mnt", dir + ":/mnt"}, {dir + ":/mnt", dir + ":/mnt/nothing"}, {dir + ":/mnt", dir + ":/mnt/up"}} {
		if call := b.shell("echo started", mounts...); call.Status != 125 || call.Stdout != "" || !strings.Contains(call.Stderr, "bad_mount") && !strings.Contains(call.Stderr, "cannot") {
			t.Errorf("mounts %q: %s\nwant them refused", mounts, call)
		}
	}
	// Root's, read-only: what all may read.
	b.hostFile(roots+"/public", 0, 0o644)
	b.hostFile(roots+"/private", 0, 0o600)
	call := b.shell("cat /mnt/public; cat /mnt/private || ls -ln /mnt/public", roots+":/mnt")
	if !strings.HasPrefix(call.Stdout, "public\n") || strings.Contains(call.Stdout, "private\n") || !strings.Contains(call.Stdout, "65534") {
		t.Errorf("%s\nwant root's files to be nobody's", call)
	}
	b.nothingMounted()
}

// TestMountSourceIsSwapped puts a link to another directory in the place of the source
// again and again while runs start.
func TestMountSourceIsSwapped(t *testing.T) {
	testenv.RequireRoot(t)
	b := newBed(t, "direct")
	dir, secret := b.hostDir("dir"), b.hostDir("secret")
	b.hostFile(secret+"/canary", owner, 0o644)
	if err := os.Symlink(secret, b.path("link")); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, b.path("link"), unix.RENAME_EXCHANGE); err != nil {
				stopped <- err
				return
			}
		}
	}()
	shown, refused := 0, 0
	for range 20 {
		call := b.shell("ls /mnt", dir+":/mnt")
		switch {
		case call.Status == 0 && call.Stdout == "mine\n":
			shown++
		case call.Status == 125 && strings.Contains(call.Stderr, "symbolic link"):
			refused++
		default:
			t.Errorf("%s\nwant the directory or a refusal", call)
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d shown, %d refused", shown, refused)
	b.nothingMounted()
}

// TestMountsEndWithTheMonitor kills the monitor and has gc clean up: no mount is left, and
// nothing of the host's directory is gone.
func TestMountsEndWithTheMonitor(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		dir := b.hostDir("dir")
		before := snapshot(t, dir)
		args := b.run(testenv.BusyboxRoot(t), []string{"--mount", dir + ":/new/place:rw", "--mount", dir + ":/mnt", "--detach"}, "/bin/sleep", "600")
		started := testenv.Exec(t, args...)
		id := strings.TrimSpace(started.Stdout)
		if started.Status != 0 || len(id) != 16 {
			t.Fatal(started)
		}
		testenv.WaitFor(t, testenv.Patience, "the sandbox", func() bool {
			_, err := os.Stat(b.path("state", "runs", id, "started.json"))
			return err == nil
		})
		if err := syscall.Kill(b.monitorOf(id), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testenv.WaitFor(t, testenv.Patience, "gc", func() bool {
			call := testenv.Exec(t, b.command("gc")...)
			_, err := os.Stat(b.path("run", id))
			return call.Status == 0 && os.IsNotExist(err)
		})
		b.nothingMounted()
		if after := snapshot(t, dir); after != before {
			t.Errorf("the directory is\n%s\nafterwards, want\n%s", after, before)
		}
	})
}

// monitorOf is the process that watches over a run.
func (b *bed) monitorOf(id string) int {
	b.t.Helper()
	pid := testenv.MonitorOf(b.t, id)
	if pid == 0 {
		b.t.Fatalf("run %s has no monitor", id)
	}
	return pid
}

// TestMountsInABundle has runc run a bundle with mounts by itself: the program owns there
// what the directory's owner owns.
func TestMountsInABundle(t *testing.T) {
	testenv.RequireVM(t) // the bundle asks for limits
	b := newBed(t, "runc")
	dir := b.hostDir("dir")
	args := append(b.command("bundle", "--rootfs", testenv.BusyboxRoot(t), "-o", b.path("bundle"), "--mount", dir+":/new/rw:rw", "--mount", dir+":/mnt"),
		"--", "/bin/sh", "-c", "cat /mnt/mine && echo x >/new/rw/made && ! echo x 2>/dev/null >/mnt/made && stat -c %u /new/rw/made")
	if call := testenv.Exec(t, args...); call.Status != 0 {
		t.Fatal(call)
	}
	cmd := testenv.Start(t, nil, "runc", "--root", b.path("runc"), "run", "--bundle", b.path("bundle"), "b"+filepath.Base(b.dir))
	call := cmd.Wait(t)
	var st unix.Stat_t
	err := unix.Stat(dir+"/made", &st)
	if call.Status != 0 || call.Stdout != "mine\n65532\n" || err != nil || st.Uid != owner {
		t.Errorf("%s\nthe file made belongs to %d, %v, want the program to make %d's", call, st.Uid, err, owner)
	}
}
