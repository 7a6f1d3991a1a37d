package testenv

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Version is that of the built programs, which a test that starts runs by itself has to
// say as well.
func Version(t testing.TB) string {
	t.Helper()
	out, err := exec.Command(Binary(t, "engine"), "version", "--json").Output()
	var v struct{ Version string }
	if err == nil {
		err = json.Unmarshal(out, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v.Version
}

// runtimeProgram is the program that a runtime needs, "" for one that needs none.
func runtimeProgram(runtime string) string {
	switch runtime {
	case "embedded":
		return ""
	case "direct":
		return "engine-launch"
	}
	return runtime
}

// InstallBeside puts the program of a runtime where the running test, as the engine's
// caller, looks first.
func InstallBeside(t testing.TB, runtime string) {
	t.Helper()
	program := runtimeProgram(runtime)
	if program == "" {
		return
	}
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(Binary(t, program), filepath.Join(filepath.Dir(self), program))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
}

// MonitorOf is the pid of a run's monitor, 0 when there is none.
func MonitorOf(t testing.TB, id string) int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		cmdline, err := os.ReadFile(dir + "/cmdline")
		if err == nil && strings.HasPrefix(string(cmdline), "engine-monitor\x00"+id) {
			if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
				return pid
			}
		}
	}
	return 0
}
