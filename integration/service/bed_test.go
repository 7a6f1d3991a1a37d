package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/integration/testenv"
)

// bed is a host with a config and an image, and a service that may be killed.
type bed struct {
	t      testing.TB
	dir    string
	groups cgroups.Hierarchy
	cmd    *exec.Cmd
	log    *safeBuffer // of all services together
	env    []string
}

// safeBuffer is written by a process and read by the test.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf.Len() > 64<<20 {
		b.buf.Next(32 << 20) // a service that lives for a day says a lot
	}
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// newBed makes a bed; service is that part of the config.
func newBed(t testing.TB, service string) *bed {
	t.Helper()
	testenv.RequireRoot(t)
	dir, err := os.MkdirTemp("", "service-")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, dir: dir, log: &safeBuffer{}}
	t.Cleanup(b.remove)
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if b.groups, err = cgroups.Open(filepath.Base(dir)); err != nil {
		t.Fatal(err)
	}
	b.configure(service)
	call := testenv.Exec(t, "image", "import", "--state-dir", b.path("state"), testenv.BusyboxRoot(t), "box")
	if call.Status != 0 {
		t.Fatalf("%s", call)
	}
	return b
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

// configure writes the config.
func (b *bed) configure(service string) {
	b.t.Helper()
	text := fmt.Sprintf(`stateDir: %s
runDir: %s
cgroupRoot: %s
development: true
projects:
  shop: {secrets: {TOKEN: canary-secret-of-shop}}
sandbox: {image: box, runtime: embedded, bestEffortLimits: true}
service:
  bestEffortLimits: true
%s`, b.path("state"), b.path("run"), b.groups.Root, service)
	if err := os.WriteFile(b.path("config.yaml"), []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) socket() string { return b.path("run/api.sock") }

// start starts the service, and returns once it answers.
func (b *bed) start() *client.Client {
	b.t.Helper()
	b.launch()
	c := client.Unix(b.socket())
	b.t.Cleanup(c.Close)
	b.until("the service answers", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c.Patience = -1
		_, err := c.Version(ctx)
		return err == nil
	})
	c.Patience = 0
	return c
}

// launch starts the service and does not wait.
func (b *bed) launch() {
	b.t.Helper()
	b.cmd = exec.Command(testenv.Binary(b.t, "engine"), "serve", "--verbose", "--config", b.path("config.yaml"))
	b.cmd.Stderr = b.log
	b.cmd.Env = append(os.Environ(), b.env...)
	if err := b.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
}

// kill ends the service as a crash would.
func (b *bed) kill() {
	if b.cmd == nil {
		return
	}
	b.cmd.Process.Kill()
	b.cmd.Wait()
	b.cmd = nil
}

// stop tells the service to end, which it must do well.
func (b *bed) stop() {
	b.t.Helper()
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		b.t.Fatal(err)
	}
	if err := b.cmd.Wait(); err != nil {
		b.t.Errorf("the service ended with %v\n%s", err, b.log)
	}
	b.cmd = nil
}

func (b *bed) until(what string, done func() bool) {
	b.t.Helper()
	end := time.Now().Add(testenv.Patience)
	for !done() {
		if time.Now().After(end) {
			b.t.Fatalf("waited in vain: %s\n%s", what, b.log)
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the pause of a bounded wait
	}
}

// script asks for a run of a shell script in the bed's image.
func script(text string) wire.RunRequest {
	return wire.RunRequest{Image: "box", Runtime: "embedded", Command: []string{"sh", "-c", text}}
}

// remove ends whatever a failed test has left.
func (b *bed) remove() {
	b.kill()
	b.groups.Group("").Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := errors.Join(b.groups.Group("").WaitEmpty(ctx), b.groups.Group("").Remove(), os.RemoveAll(b.dir))
	if err != nil {
		b.t.Errorf("cannot remove the bed: %v", err)
	}
	if strings.Contains(b.log.String(), `"msg":"panic"`) {
		b.t.Errorf("the service met a bug:\n%s", b.log)
	}
}

func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	t.Cleanup(cancel)
	return ctx
}
