package runner

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/direct-oci/engine/integration/testenv"
)

// TestCanaries looks for secrets on disk and in /proc while a program has them and
// after it has ended: they are in the program, and nowhere else.
func TestCanaries(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		spec := b.spec(`touch /tmp/running; echo started >&2; test -n "$TOKEN" && test -s "$KEY" && sleep 2`, `,"secrets":["TOKEN","KEY"]`)
		approval := b.approve("workload.execute", spec)
		log, err := os.Create(b.path("log"))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		p := testenv.Start(t, nil, "sh", "-c", `exec "$@" 2>`+log.Name(), "sh", testenv.Binary(t, "engine"),
			"call", "shop", "workload.execute", "@"+spec, "--approval", approval, "--config", b.path("config.yaml"))
		testenv.WaitFor(t, testenv.Patience, "the program to run", func() bool {
			data, err := os.ReadFile(log.Name())
			return err == nil && strings.Contains(string(data), "started")
		})
		b.search(t, "while it runs")
		if call := p.Wait(t); call.Status != 0 {
			t.Fatalf("%s", call)
		}
		b.search(t, "afterwards")
	})
}

// TestConfigInTheEnvironment gives the whole config, secrets included, in one
// environment variable.
func TestConfigInTheEnvironment(t *testing.T) {
	b := newBed(t, "embedded", "")
	text, err := os.ReadFile(b.path("config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	spec := b.spec(`test ${#TOKEN} = 19 && echo started >&2 && sleep 1`, `,"secrets":["TOKEN"]`)
	// It stands in for the file, of which the search knows.
	inline := strings.Replace(string(text), "{file: "+b.path("token")+"}", token, 1)
	b.write("key", inline)
	approval := b.approve("workload.execute", spec)
	log := b.path("log")
	p := testenv.Start(t, nil, "sh", "-c", `ENGINE_CONFIG="$(cat "$1")" && export ENGINE_CONFIG && shift && exec "$@" 2>`+log, "sh", b.path("key"),
		testenv.Binary(t, "engine"), "call", "shop", "workload.execute", "@"+spec, "--approval", approval)
	testenv.WaitFor(t, testenv.Patience, "the program to run", func() bool {
		data, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(data), "started")
	})
	b.search(t, "with the config in the environment")
	if call := p.Wait(t); call.Status != 0 {
		t.Fatalf("%s", call)
	}
}

var canaries = [][]byte{[]byte(token), []byte("canary-line-9b2e77")}

func hit(data []byte) bool {
	for _, c := range canaries {
		if bytes.Contains(data, c) {
			return true
		}
	}
	return false
}

// search looks through the bed's directories but for the two sources, and through the
// command lines and environments of all processes that are ours.
func (b *bed) search(t *testing.T, when string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // of a live run: it comes and goes
		}
		if d.IsDir() && d.Name() == "rootfs" {
			return fs.SkipDir // the image, and the sandbox's own view of itself
		}
		if !d.Type().IsRegular() || path == b.path("token") || path == b.path("key") {
			return nil
		}
		data, err := os.ReadFile(path)
		if err == nil && hit(data) {
			t.Errorf("%s: a secret is in %s", when, path)
		}
		files++
		return nil
	})
	if err != nil || files < 10 {
		t.Errorf("%s: only %d files were searched: %v", when, files, err)
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range processes {
		exe, err := os.Readlink(dir + "/exe")
		if err != nil || !strings.HasPrefix(filepath.Base(exe), "engine") && filepath.Base(exe) != "runsc" {
			continue
		}
		for _, name := range []string{"cmdline", "environ"} {
			if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil && hit(data) {
				t.Errorf("%s: a secret is in %s of %s", when, name, exe)
			}
		}
	}
}
