package engine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine/journal"
)

func testHost(t *testing.T) Host {
	t.Helper()
	dir := t.TempDir()
	h := Host{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run")}
	if err := h.prepare(); err != nil {
		t.Fatal(err)
	}
	return h
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func TestStateIsPrivate(t *testing.T) {
	requireRoot(t)
	h := testHost(t)
	for dir, want := range map[string]os.FileMode{h.StateDir: 0o700, h.RunDir: 0o711} {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := h.prepare(); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("mode of %s = %o, want %o", filepath.Base(dir), got, want)
		}
	}
	if err := os.Chown(h.RunDir, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	if err := h.prepare(); err == nil {
		t.Error("a run directory of somebody else's was accepted")
	}
}

// Two live runs never share host ids, and a block whose run may still have processes
// is not given out.
func TestIDBlocksAreExclusive(t *testing.T) {
	requireRoot(t)
	h := testHost(t)
	take := func(id string) idBlock {
		b, err := takeIDBlock(h, id)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	first, second := take("aaaaaaaaaaaaaaaa"), take("bbbbbbbbbbbbbbbb")
	if first.hostID() == second.hostID() {
		t.Fatalf("two runs share host id %d", first.hostID())
	}
	// The owner of the first dies, its directory stays.
	if err := os.Mkdir(h.runDir("aaaaaaaaaaaaaaaa"), 0o700); err != nil {
		t.Fatal(err)
	}
	first.file.Close()
	third := take("cccccccccccccccc")
	if third.slot == first.slot {
		t.Error("the block of a run that was not cleaned up was given to another")
	}
	if err := os.Remove(h.runDir("aaaaaaaaaaaaaaaa")); err != nil {
		t.Fatal(err)
	}
	if fourth := take("dddddddddddddddd"); fourth.slot != first.slot {
		t.Errorf("slot = %d, want %d again once its run is cleaned up", fourth.slot, first.slot)
	}
}

// TestTeardownSparesMounts runs in a mount namespace of its own: a directory of the
// host that is bound below a run's directory must survive its removal.
func TestTeardownSparesMounts(t *testing.T) {
	requireRoot(t)
	if os.Getenv("ENGINE_TEST_MOUNTS") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestTeardownSparesMounts$", "-test.v")
		cmd.Env = append(os.Environ(), "ENGINE_TEST_MOUNTS=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	h := testHost(t)
	precious := t.TempDir()
	canary := filepath.Join(precious, "canary")
	if err := os.WriteFile(canary, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	id := journal.NewID()
	target := filepath.Join(h.runDir(id), "a b\tc") // a name that mountinfo escapes
	if err := os.MkdirAll(target, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // one on top of the other
		if err := unix.Mount(precious, target, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := unmountBelow(h.runDir(id)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(h.runDir(id)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(canary); err != nil {
		t.Errorf("the directory bound below the run's was emptied: %v", err)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), id) {
		t.Errorf("a mount of the run is left (%v)", err)
	}
}
