package install

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/capability/dependency"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/job"
)

// TestNothingIsSealedTooEarly gives the sealing program a whole archive, and takes it
// back before its end: an installer that fails in the end has installed nothing.
func TestNothingIsSealedTooEarly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a layer")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(filepath.Dir(self), "engine-image"), "github.com/direct-oci/engine/cmd/engine-image")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build engine-image: %v\n%s", err, out)
	}
	store := image.Store{Dir: filepath.Join(t.TempDir(), "store")}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "node_modules/", Typeflag: tar.TypeDir, Mode: 0o755}), w.Close()); err != nil {
		t.Fatal(err)
	}
	for _, whole := range []bool{false, true} {
		s, err := startSealing(context.Background(), job.Job{Do: job.Seal, Store: store.Dir, Name: "x", Top: "node_modules", MaxBytes: 1 << 20, MaxEntries: 10, Quiet: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write(archive.Bytes()); err != nil {
			t.Fatal(err)
		}
		if whole {
			err = s.finish()
		} else {
			// It has taken the archive out of the pipe, and could go on.
			deadline := time.Now().Add(20 * time.Second)
			for left, _ := filepath.Glob(filepath.Join(store.Dir, ".tmp-*/layer-*/tree/node_modules")); len(left) == 0; left, _ = filepath.Glob(filepath.Join(store.Dir, ".tmp-*/layer-*/tree/node_modules")) {
				if time.Now().After(deadline) {
					t.Fatal("nothing was unpacked")
				}
				<-time.After(5 * time.Millisecond)
			}
			s.abort()
		}
		_, openErr := store.Open("x")
		if err != nil || (openErr == nil) != whole {
			t.Errorf("whole = %v: %v, and the layer is there: %v", whole, err, openErr == nil)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	r := &dependency.Registry{URL: "https://registry.example.org/"}
	needs := map[string]string{"package.json": `{"dependencies":{"a":"1"}}`}
	pip := map[string]string{"requirements.txt": "a==1\n"}
	lock := `{"lockfileVersion":3,"packages":{"":{}}}`
	for _, tt := range []struct {
		name            string
		in              *Installer
		files           map[string]string
		python, scripts bool
		want            string // kind, or how many sets
	}{
		{"no installer", nil, needs, false, false, "no_dependencies"},
		{"no installer, nothing to install", nil, map[string]string{"package.json": `{"type":"module"}`}, false, false, "0"},
		{"another kind", &Installer{Pip: r}, needs, false, false, "no_dependencies"},
		{"no lock", &Installer{NPM: r}, needs, false, false, "no_lock"},
		{"no lock is allowed", &Installer{NPM: r, Unlocked: true}, needs, false, false, "1"},
		{"a lock", &Installer{NPM: r}, map[string]string{"package.json": needs["package.json"], "package-lock.json": lock}, false, false, "1"},
		{"scripts", &Installer{NPM: r, Unlocked: true}, needs, false, true, "no_scripts"},
		{"a bad lock", &Installer{NPM: r}, map[string]string{"package.json": needs["package.json"], "package-lock.json": "{}"}, false, false, "bad_lock"},
		{"requirements of no Python", nil, pip, false, false, "0"},
		{"requirements", &Installer{Pip: r, Unlocked: true}, pip, true, false, "1"},
		{"both", &Installer{NPM: r, Pip: r, Unlocked: true}, map[string]string{"package.json": needs["package.json"], "requirements.txt": "a"}, true, false, "2"},
	} {
		sets, err := tt.in.Read(tt.files, tt.python, tt.scripts)
		got := string(rune('0' + len(sets)))
		var e *engine.Error
		if errors.As(err, &e) {
			got = e.Kind
		}
		if got != tt.want {
			t.Errorf("%s: %s, %v, want %s", tt.name, got, err, tt.want)
		}
	}
}

// TestFailure proves that whoever reads why learns what the installer said last.
func TestFailure(t *testing.T) {
	said := &tail{}
	for range 20 {
		said.add(strings.Repeat("x", 500))
	}
	said.add("the end \xff")
	status, timeout := 127, engine.ReasonTimeout
	text := failure(dependency.NPM, engine.Result{ExitCode: &status, Network: engine.NetworkInfo{Denied: []engine.Denied{{Host: "elsewhere.example", Port: 443, Rule: "not-allowed"}}}}, said.text())
	for _, want := range []string{"exit status 127", "the end \ufffd; elsewhere.example port 443 was out of reach"} {
		if !strings.Contains(text.Error(), want) || len(text.Error()) > 4000 {
			t.Errorf("%d bytes: %s\nwant %q", len(text.Error()), text, want)
		}
	}
	if e := engine.AsError(failure(dependency.Pip, engine.Result{Reason: &timeout}, "")); e.Class != engine.ClassEngine || !strings.Contains(e.Message, "timeout") {
		t.Errorf("a deadline: %+v", e)
	}
}
