package rootfs_test

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/direct-oci/engine/rootfs"
)

const insideEnv = "ENGINE_ROOTFS_TEST_INSIDE"

// privateMounts runs the calling test again in a process of its own, whose mounts
// vanish with it, and reports whether this is that process.
func privateMounts(t *testing.T) bool {
	t.Helper()
	requireRoot(t)
	if os.Getenv(insideEnv) == t.Name() {
		if err := rootfs.PrivateMounts(); err != nil {
			t.Fatalf("PrivateMounts() in a namespace of its own: %v", err)
		}
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v=true")
	cmd.Env = append(os.Environ(), insideEnv+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	t.Logf("in a mount namespace of its own:\n%s", out)
	if err != nil {
		t.Fatalf("test in a mount namespace of its own: %v", err)
	}
	return false
}

func requireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// staticELF is the smallest file that EnsureLayer takes for a program.
func staticELF(tail string) []byte {
	b := make([]byte, 64+56)
	copy(b, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint64(b[32:], 64)
	binary.LittleEndian.PutUint16(b[54:], 56)
	binary.LittleEndian.PutUint16(b[56:], 1)
	binary.LittleEndian.PutUint32(b[64:], 1) // PT_LOAD
	return append(b, tail...)
}

func newPrograms(t testing.TB) rootfs.Programs {
	t.Helper()
	dir := t.TempDir()
	p := rootfs.Programs{Init: filepath.Join(dir, "engine-init"), Guest: filepath.Join(dir, "engine-guest")}
	write(t, p.Init, string(staticELF("one")))
	write(t, p.Guest, string(staticELF("the guest")))
	return p
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t testing.TB, path ...string) string {
	t.Helper()
	dir := filepath.Join(path...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newLayer(t testing.TB) string {
	t.Helper()
	dir, err := rootfs.EnsureLayer(filepath.Join(t.TempDir(), "run"), newPrograms(t))
	if err != nil {
		t.Fatalf("EnsureLayer: %v", err)
	}
	return dir
}
