package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/direct-oci/engine/integration/testenv"
)

// TestBareRuntimes runs a plain bundle by each command-line runtime without the
// engine: when this fails it is the machine's or the runtime's fault, not ours.
func TestBareRuntimes(t *testing.T) {
	testenv.RequireCgroup(t, "cpu", "memory", "pids")
	for _, runtime := range []string{"runc", "crun", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			out, status := runBundle(t, runtime, 0, "echo running as $(id -u)")
			if out != "running as 0\n" || status != 0 {
				t.Errorf("output = %q, status = %d, want running as 0 and 0", out, status)
			}
			const limit = 32 << 20
			out, status = runBundle(t, runtime, limit, "exec busybox dd if=/dev/zero of=/dev/null bs=100M count=1")
			if status != 137 {
				t.Errorf("with a limit of %d bytes: output = %q, status = %d, want status 137", limit, out, status)
			}
		})
	}
}

// runBundle runs a shell command in a container of nothing but busybox.
func runBundle(t *testing.T, runtime string, memory int64, command string) (output string, status int) {
	t.Helper()
	root := testenv.CopyOfRoot(t)
	for _, point := range []string{"proc", "dev"} {
		if err := os.Mkdir(filepath.Join(root, point), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	spec := specs.Spec{
		Version: "1.0.2", // what the oldest of the runtimes accepts
		Root:    &specs.Root{Path: root},
		Process: &specs.Process{Args: []string{"/bin/busybox", "sh", "-c", command}, Env: []string{"PATH=/bin"}, Cwd: "/"},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "dev", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace},
		}},
	}
	if memory > 0 {
		spec.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory}}
	}
	config, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"run", "--bundle", dir, "bare"}
	if runtime == "runsc" {
		args = append([]string{"--network=none"}, args...)
	}
	cmd := exec.Command(testenv.Binary(t, runtime), args...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}
