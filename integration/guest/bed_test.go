package guest

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/integration/testenv"
)

// patience bounds a whole conversation with a sandbox, of many turns.
const patience = 4 * testenv.Patience

// bed is a place for runs of one runtime: directories, a cgroup, a root.
type bed struct {
	t       testing.TB
	runtime string
	dir     string
	groups  cgroups.Hierarchy
}

// eachRuntime runs f under every runtime that can work here.
func eachRuntime(t *testing.T, f func(t *testing.T, b *bed)) {
	t.Helper()
	testenv.RequireRoot(t)
	testenv.EachRuntime(t, func(t *testing.T, runtime string) {
		var lock unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lock); err != nil {
			t.Fatal(err)
		}
		if runtime == "crun" && lock.Max != math.MaxUint64 && !testenv.InVM() {
			t.Skipf("crun wants to lock any amount of memory, and this host lets root lock %d bytes", lock.Max)
		}
		f(t, newBed(t, runtime))
	})
}

func newBed(t testing.TB, runtime string) *bed {
	t.Helper()
	dir, err := os.MkdirTemp("", "guest-")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, runtime: runtime, dir: dir}
	t.Cleanup(b.remove)
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if b.groups, err = cgroups.Open(filepath.Base(dir)); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bed) path(elem ...string) string {
	return filepath.Join(append([]string{b.dir}, elem...)...)
}

func (b *bed) gvisor() bool { return b.runtime == "runsc" }

// command is engine with a subcommand that needs the bed's directories.
func (b *bed) command(subcommand string, args ...string) []string {
	return append([]string{
		subcommand, "--state-dir", b.path("state"), "--run-dir", b.path("run"), "--cgroup-root", b.groups.Root,
	}, args...)
}

// run is engine run in a root with these flags.
func (b *bed) run(root string, flags []string, command ...string) []string {
	args := append(b.command("run", "--rootfs", root, "--runtime", b.runtime, "--best-effort-limits", "--quiet", "--timeout", patience.String()), flags...)
	return append(append(args, "--"), command...)
}

// empty is a root without a single program.
func (b *bed) empty() string {
	b.t.Helper()
	root := b.path("empty")
	if err := os.MkdirAll(root, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "image"), []byte("of the image"), 0o644); err != nil {
		b.t.Fatal(err)
	}
	return root
}

// conversation is a run's stdin and stdout as one connection.
type conversation struct {
	io.Reader
	io.WriteCloser
}

// converse starts a run and returns its streams. wait is its exit status, once its stdin
// is closed or its program has ended.
func (b *bed) converse(args []string) (c conversation, wait func() int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, testenv.Binary(b.t, "engine"), args...)
	cmd.Stderr = os.Stderr
	var err error
	if c.WriteCloser, err = cmd.StdinPipe(); err != nil {
		b.t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	cmd.Stdout, c.Reader = w, r
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	w.Close()
	b.t.Cleanup(func() { r.Close() })
	return c, func() int {
		b.t.Helper()
		if err := cmd.Wait(); ctx.Err() != nil {
			b.t.Fatalf("engine run does not end: %v", err)
		}
		return cmd.ProcessState.ExitCode()
	}
}

// remove ends whatever a failed test has left.
func (b *bed) remove() {
	b.groups.Group("").Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := errors.Join(b.groups.Group("").WaitEmpty(ctx), b.groups.Group("").Remove(), os.RemoveAll(b.dir))
	if err != nil {
		b.t.Errorf("cannot remove the bed: %v", err)
	}
}
