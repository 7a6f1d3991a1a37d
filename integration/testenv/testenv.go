// Package testenv is what the black-box tests share: where they may run, how they
// run the engine, and how they prove that nothing of it is left on the host.
//
// The tests change the machine they run on, so they run where that is harmless: in
// the test machine (make test-vm), or on a host whose owner says so (make
// test-host). Elsewhere they are skipped and say how to run them. In the right
// place a missing feature is a failure, never a skip.
package testenv

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/integration/vm"
)

// HostMarker is set to 1 by make test-host.
const HostMarker = "ENGINE_TEST_HOST"

// BinEnv names the directory of the built binaries.
const BinEnv = "ENGINE_BIN"

// cgroupMount is where both the test machine and a host that qualifies have the
// hierarchy.
const cgroupMount = "/sys/fs/cgroup"

// InVM reports whether this is the test machine.
func InVM() bool { return os.Getenv(vm.Marker) == "1" }

// RequireVM skips the test unless it runs in the test machine or on a host set
// apart for it. There it fails without root or pure cgroup v2.
func RequireVM(t testing.TB) {
	t.Helper()
	if !InVM() && os.Getenv(HostMarker) != "1" {
		t.Skip("changes the machine it runs on: run it with make test-vm, or make test-host")
	}
	if os.Geteuid() != 0 {
		t.Fatalf("uid = %d, want root", os.Geteuid())
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(cgroupMount, &fs); err != nil {
		t.Fatalf("cannot look at %s: %v", cgroupMount, err)
	}
	if fs.Type != unix.CGROUP2_SUPER_MAGIC {
		t.Fatalf("%s is no cgroup v2 mount (file system type %#x)", cgroupMount, fs.Type)
	}
}

// RequireRoot skips the test for an ordinary user. In the test machine everybody
// is root, so there it fails.
func RequireRoot(t testing.TB) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case InVM():
		t.Fatalf("uid = %d in the test machine, want root", os.Geteuid())
	default:
		t.Skip("needs root")
	}
}

// RequireCgroup fails the test unless groups below the root may use the named
// controllers. It implies RequireVM.
func RequireCgroup(t testing.TB, controllers ...string) {
	t.Helper()
	RequireVM(t)
	file := filepath.Join(cgroupMount, "cgroup.subtree_control")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	have := strings.Fields(string(data))
	for _, c := range controllers {
		if !slices.Contains(have, c) {
			t.Fatalf("the %s controller is not in %s: %q", c, file, have)
		}
	}
}

// Runtimes are the names that --runtime knows, without auto.
func Runtimes() []string { return []string{"direct", "embedded", "runc", "crun", "runsc"} }

// EachRuntime runs f as a subtest under each runtime. A runtime that is missing
// fails its subtest.
func EachRuntime(t *testing.T, f func(t *testing.T, runtime string)) {
	t.Helper()
	for _, runtime := range Runtimes() {
		t.Run(runtime, func(t *testing.T) {
			if program := runtimeProgram(runtime); program != "" {
				Binary(t, program)
			}
			f(t, runtime)
		})
	}
}

// Binary returns the path of a program: in $ENGINE_BIN, in the module's bin/, or
// on PATH. It fails the test if there is none.
func Binary(t testing.TB, name string) string {
	t.Helper()
	dirs := []string{os.Getenv(BinEnv)}
	if wd, err := os.Getwd(); err == nil {
		for ; wd != "/"; wd = filepath.Dir(wd) {
			if _, err := os.Stat(filepath.Join(wd, "go.mod")); err == nil {
				dirs = append(dirs, filepath.Join(wd, "bin"))
				break
			}
		}
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if dir != "" && unix.Access(path, unix.X_OK) == nil {
			return path
		}
	}
	path, err := exec.LookPath(name)
	if err != nil && !errors.Is(err, exec.ErrDot) {
		t.Fatalf("cannot find %s in %q or on PATH: run make build tools", name, dirs)
	}
	return path
}
