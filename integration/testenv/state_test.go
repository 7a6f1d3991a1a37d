package testenv_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/integration/testenv"
)

// recorder is a test that remembers how it failed.
type recorder struct {
	*testing.T
	errors string
}

func (r *recorder) Errorf(format string, args ...any) { r.errors += fmt.Sprintf(format, args...) }

// TestStateSeesWhatIsLeft leaves one object of each kind on the host and wants it
// named, and the host found unchanged once it is gone.
func TestStateSeesWhatIsLeft(t *testing.T) {
	testenv.RequireVM(t)
	group := testenv.CgroupRoot + "/run/leak"
	tests := []struct {
		name  string
		leave func(t *testing.T) (undo func())
		want  string
	}{
		{"a process", func(t *testing.T) func() {
			cmd := exec.Command("sleep", "600")
			must(t, cmd.Start())
			return func() {
				must(t, cmd.Process.Kill())
				_ = cmd.Wait() // reports the signal
			}
		}, "+ process "},
		{"a mount", func(t *testing.T) func() {
			dir := t.TempDir()
			must(t, unix.Mount("leak", dir, "tmpfs", 0, ""))
			return func() { must(t, unix.Unmount(dir, 0)) }
		}, "+ mount /tmp/"},
		{"a link", func(t *testing.T) func() {
			run(t, "ip", "link", "add", "leak0", "type", "veth", "peer", "name", "leak1")
			return func() { run(t, "ip", "link", "del", "leak0") }
		}, " leak0"},
		{"a namespace that only a descriptor holds", func(t *testing.T) func() {
			run(t, "ip", "netns", "add", "leak")
			f, err := os.Open("/run/netns/leak")
			must(t, err)
			run(t, "ip", "netns", "del", "leak")
			return func() { must(t, f.Close()) }
		}, "+ namespace 40265"},
		{"a cgroup", func(t *testing.T) func() {
			must(t, os.MkdirAll(group, 0o755))
			return func() { must(t, os.Remove(group)) }
		}, "+ cgroup " + group + "\n"},
		{"an nft table", func(t *testing.T) func() {
			run(t, "nft", "add", "table", "inet", "leak")
			return func() { run(t, "nft", "delete", "table", "inet", "leak") }
		}, "+ table inet leak"},
		{"a run directory", func(t *testing.T) func() {
			must(t, os.MkdirAll(testenv.RunDir+"/abc/rootfs", 0o755))
			return func() { must(t, os.RemoveAll(testenv.RunDir+"/abc")) }
		}, "+ file " + testenv.RunDir + "/abc\n"},
		{"an unfinished run", func(t *testing.T) func() {
			dir := testenv.StateDir + "/runs/abc"
			must(t, os.MkdirAll(dir, 0o755))
			return func() { must(t, os.WriteFile(dir+"/cleaned.json", nil, 0o600)) }
		}, "+ file " + testenv.StateDir + "/runs/abc, a run without cleaned.json"},
	}
	// What a first use makes and keeps: the netns directory's mount.
	run(t, "ip", "netns", "add", "first")
	run(t, "ip", "netns", "del", "first")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := testenv.HostState(t)
			undo := tt.leave(t)
			r := &recorder{T: t}
			testenv.WaitSame(r, 0, before)
			if !strings.Contains(r.errors, tt.want) {
				t.Errorf("WaitSame says %q, want it to name %q", r.errors, tt.want)
			}
			undo()
			testenv.WaitSame(t, 5*time.Second, before)
		})
	}
}

func run(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", argv, err, out)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
