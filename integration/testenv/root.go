package testenv

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// BusyboxRoot returns a root file system of busybox and its applets, which all
// tests of the process share: it must not be changed. CopyOfRoot is for those that
// want to.
func BusyboxRoot(t testing.TB) string {
	t.Helper()
	// The place is the same for all, so that only the first test of a machine pays.
	root := filepath.Join(os.TempDir(), "busybox-root")
	if _, err := os.Stat(root); err == nil {
		return root
	}
	tmp, err := os.MkdirTemp("", "busybox-")
	if err != nil {
		t.Fatal(err)
	}
	makeRoot(t, tmp)
	if err := os.Rename(tmp, root); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return root
}

// CopyOfRoot returns a root like BusyboxRoot's of the test's own. It is removed at
// the test's end.
func CopyOfRoot(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	// The sandbox's own uids walk through here.
	for _, dir := range []string{root, filepath.Dir(root)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	makeRoot(t, root)
	return root
}

func makeRoot(t testing.TB, root string) {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatalf("cannot find busybox: %v", err)
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		t.Fatalf("cannot list the applets of %s: %v", busybox, err)
	}
	bin := filepath.Join(root, "bin")
	err = errors.Join(os.Chmod(root, 0o755), os.Mkdir(bin, 0o755), os.WriteFile(filepath.Join(bin, "busybox"), program, 0o755))
	for name := range strings.FieldsSeq(string(applets)) {
		if name != "busybox" {
			err = errors.Join(err, os.Symlink("busybox", filepath.Join(bin, name)))
		}
	}
	if err != nil {
		t.Fatalf("cannot make root=%s: %v", root, err)
	}
}
