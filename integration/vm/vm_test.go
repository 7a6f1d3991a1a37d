package vm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/integration/vm"
)

// tool is the built command, and guest what it boots.
var tool, guest string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "vm-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-buildvcs=false", "-o", dir, "./cmd/vm", "./cmd/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build the harness: %v\n%s", err, out)
		return 1
	}
	tool, guest = filepath.Join(dir, "vm"), filepath.Join(dir, "guest")
	return m.Run()
}

// cache returns the module's own cache, so that the kernel is downloaded once.
func cache(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("there is no qemu-system-x86_64 here: make setup installs it")
	}
	dir, err := filepath.Abs("../../build/vm")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// call runs the command and returns its output and status.
func call(t *testing.T, stdin string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	args = slices.Insert(args, 1, "-cache", cache(t), "-bin", "")
	cmd := exec.Command(tool, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("vm %q: %v", args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func boot(t *testing.T, c vm.Config) *vm.Machine {
	t.Helper()
	c.Cache, c.Guest = cache(t), guest
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	m, err := vm.Boot(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestOutputAndStatusAreTheCommands(t *testing.T) {
	t.Parallel()
	stdout, stderr, status := call(t, "", "run", "echo out; echo err >&2; exit 7")
	if stdout != "out\n" || stderr != "err\n" || status != 7 {
		t.Errorf("stdout = %q, stderr = %q, status = %d, want out, err and 7", stdout, stderr, status)
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	_, stderr, status := call(t, "", "run", "-timeout", "15s", "sleep 600")
	if status != 124 || !strings.Contains(stderr, "not done after 15s") {
		t.Errorf("status = %d, stderr = %q, want 124 and the deadline named", status, stderr)
	}
}

func TestDeadMachineShowsItsConsole(t *testing.T) {
	t.Parallel()
	_, stderr, status := call(t, "", "run", "echo c >/proc/sysrq-trigger; sleep 60")
	if status != 125 || !strings.Contains(stderr, "Kernel panic") {
		t.Errorf("status = %d, stderr = %q, want 125 and the panic", status, stderr)
	}
}

func TestMissingQEMUIsNamed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	out, err := exec.Command(tool, "run", "-cache", t.TempDir(), "true").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 125 || !strings.Contains(string(out), "cannot find qemu-system-x86_64") ||
		!strings.Contains(string(out), "fix: run make setup") {
		t.Errorf("vm run: %v, output %q, want status 125, the missing program and the remedy", err, out)
	}
}

// TestMachine asks one machine many things: a boot costs seconds.
func TestMachine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "greeting"), []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("0123456789abcde\n", 1<<18) // 4 MiB
	m := boot(t, vm.Config{Files: []vm.File{{Host: dir, Name: "given"}}})
	tests := []struct {
		name, command  string
		stdin          string
		stdout, stderr string
		status         int
	}{
		{name: "files are where they were asked for", command: "cat /job/given/greeting", stdout: "hello"},
		{name: "a signal is 128 and its number", command: "kill -9 $$", status: 137},
		{name: "a command that is not there", command: "exec /no/such/program", stderr: "/bin/bash: line 1: /no/such/program: No such file or directory\n", status: 127},
		{name: "stdin and output of any size", command: "cat", stdin: big, stdout: big},
		{name: "stdin that is not read to its end", command: "head -c 3", stdin: big, stdout: "012"},
		{name: "stdin of the next job is its own", command: "cat", stdin: "fresh", stdout: "fresh"},
		{name: "no stdin reads as empty", command: "cat", stdout: ""},
		{name: "stdout can be opened again", command: "echo one >/dev/stdout; echo two >/dev/stderr", stdout: "one\n", stderr: "two\n"},
		{name: "a background process does not hold the job", command: "sleep 600 & echo gone", stdout: "gone\n"},
		{name: "cgroup v2 alone, with all that limits need", command: `
			cd /sys/fs/cgroup; stat -f -c %T .; for c in cpu cpuset io memory pids; do grep -qw $c cgroup.subtree_control || echo no $c; done`, stdout: "cgroup2fs\n"},
		{name: "user namespaces", command: "unshare -Ur id -u", stdout: "0\n"},
		{name: "overlay, loaded when it is needed", command: `
			mkdir -p /o/l /o/u /o/w /o/m; echo lower >/o/l/f; mount -t overlay o -o lowerdir=/o/l,upperdir=/o/u,workdir=/o/w /o/m && cat /o/m/f`, stdout: "lower\n"},
		{name: "nftables, veth and namespaces", command: `
			ip netns add n && ip link add v0 type veth peer name v1 netns n && nft add table inet t && nft list tables`, stdout: "table inet t\n"},
		{name: "loopback is up", command: "ip -o link show lo up | wc -l", stdout: "1\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			job := vm.Job{Argv: vm.Shell(tt.command), Stdout: &stdout, Stderr: &stderr}
			if tt.stdin != "" {
				job.Stdin = strings.NewReader(tt.stdin)
			}
			status, err := m.Run(job)
			if err != nil {
				t.Fatal(err)
			}
			if status != tt.status {
				t.Errorf("status = %d, want %d", status, tt.status)
			}
			if got := stdout.String(); got != tt.stdout {
				t.Errorf("stdout = %s, want %s", short(got), short(tt.stdout))
			}
			if got := stderr.String(); got != tt.stderr {
				t.Errorf("stderr = %s, want %s", short(got), short(tt.stderr))
			}
		})
	}
}

func short(s string) string {
	if len(s) > 200 {
		return fmt.Sprintf("%q... (%d bytes)", s[:200], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// TestDiskIsForgotten writes to a disk of the caller's and wants it unchanged.
func TestDiskIsForgotten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	image := filepath.Join(dir, "extra.ext4")
	tree := filepath.Join(dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "f"), []byte("on disk"), 0o644); err != nil {
		t.Fatal(err)
	}
	mkfs := exec.Command("mkfs.ext4", "-q", "-d", tree, image, "8M")
	mkfs.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if out, err := mkfs.CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	before, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, status := call(t, "", "run", "-disk", image+":/mnt/extra", "cd /mnt/extra && cat f && echo x >g && sync && ls g")
	if status != 0 || stdout != "on diskg\n" {
		t.Errorf("status = %d, stdout = %q, stderr = %q, want 0 and the file", status, stdout, stderr)
	}
	after, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("the image has changed")
	}
}

func TestPackageWithoutTestsFails(t *testing.T) {
	t.Parallel()
	stdout, _, status := call(t, "", "test", "-run", "NoSuchTest", "./wire")
	if status == 0 || !strings.Contains(stdout, "FAIL: no test ran") {
		t.Errorf("status = %d, stdout = %q, want a failure that says no test ran", status, stdout)
	}
}

func TestPackageInTheMachine(t *testing.T) {
	t.Parallel()
	stdout, stderr, status := call(t, "", "test", "./wire")
	if status != 0 || !strings.Contains(stdout, "--- PASS: TestFramesKeepTheirOrder") || !strings.HasSuffix(stdout, "\nPASS\n") {
		t.Errorf("status = %d, stdout = %q, stderr = %q, want the test's verdict and PASS", status, stdout, stderr)
	}
}
