package intake_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/intake"
)

// programEnv names the directory of the programs that the tests have built, for the
// processes that they start.
const programEnv = "ENGINE_INTAKE_TEST_PROGRAMS"

func TestMain(m *testing.M) { os.Exit(withPrograms(m)) }

// withPrograms builds engine-image, as it is built for use: without cgo.
func withPrograms(m *testing.M) int {
	if os.Getenv(programEnv) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "intake-test-")
	if err == nil {
		defer os.RemoveAll(dir)
		cmd := exec.Command("go", "build", "-buildvcs=false", "-o", dir, "github.com/direct-oci/engine/cmd/engine-image")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		err = cmd.Run()
	}
	if err == nil {
		err = os.Setenv(programEnv, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot build engine-image:", err)
		return 1
	}
	return m.Run()
}

func unpacker() intake.Unpacker {
	return intake.Unpacker{Program: filepath.Join(os.Getenv(programEnv), "engine-image")}
}

// take imports src into the store, with the options that change sets.
func take(ctx context.Context, s image.Store, src, name string, change ...func(*intake.Options)) (image.Image, error) {
	o := intake.Options{Store: s, Unpacker: unpacker(), Name: name}
	for _, c := range change {
		c(&o)
	}
	return intake.Import(ctx, o, src)
}

// waitFor waits for a condition, with a bound.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}
