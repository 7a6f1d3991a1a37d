package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The tests of this package run the real engine-guest, built from cmd/engine-guest, as a
// child of theirs: it needs nothing of a sandbox. That it does the same inside one, under
// every runtime, is what the tests of integration show.

const bound = 30 * time.Second // for anything that must not hang

var built struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// program returns the path of engine-guest.
func program(t testing.TB) string {
	t.Helper()
	if _, err := exec.LookPath("musl-gcc"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("cannot build engine-guest: musl-gcc is missing")
		}
		t.Skip("musl-gcc is missing: install musl-tools")
	}
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "engine-guest"); built.err != nil {
			return
		}
		out, err := exec.Command("make", "-s", "-C", "../../cmd/engine-guest", "OUT="+built.dir+"/engine-guest").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatalf("cannot build engine-guest: %v", built.err)
	}
	return filepath.Join(built.dir, "engine-guest")
}

// pipes are a program's stdin and stdout as one connection.
type pipes struct {
	io.Reader
	io.WriteCloser
	close func()
}

func (p pipes) Close() error {
	err := p.WriteCloser.Close()
	p.close()
	return err
}

// guestCommand is a guest that does not outlive the test by much.
func guestCommand(t testing.TB, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 2*bound)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, program(t), args...)
}

// newFiles starts a guest and speaks to it.
func newFiles(t testing.TB) *Files {
	t.Helper()
	cmd := guestCommand(t, "files")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	ended := make(chan error, 1)
	f := NewFiles(pipes{out, in, func() { once.Do(func() { ended <- cmd.Wait() }) }})
	t.Cleanup(func() {
		f.Close()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the guest ended with %v", err)
			}
		case <-time.After(bound):
			cmd.Process.Kill()
			t.Error("the guest does not end with its stdin")
		}
	})
	return f
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErrno wants the kernel's own answer.
func wantErrno(t testing.TB, what string, err error, want syscall.Errno) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Errno != want {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}
