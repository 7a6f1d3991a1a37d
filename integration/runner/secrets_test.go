package runner

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
		b.searchHost(t, log)
	})
}

// TestCanariesOfACrash lets a program with secrets die in a way that leaves a core
// where one is allowed.
func TestCanariesOfACrash(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		spec := b.spec(`ulimit -c unlimited 2>/dev/null; test -n "$TOKEN" && test -s "$KEY" && kill -SEGV $$`, `,"secrets":["TOKEN","KEY"]`)
		log, err := os.Create(b.path("log"))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		call := b.governed(1, "call", "shop", "workload.execute", "@"+spec, "--approval", b.approve("workload.execute", spec))
		if !strings.Contains(call.Stdout, `"signal":"SIGSEGV"`) {
			t.Fatalf("%s\nwant it dead of SIGSEGV", call)
		}
		b.search(t, "after a crash")
		b.searchHost(t, log)
	})
}

// searchHost looks where a host keeps what programs leave behind, in files that have
// changed since one was made: images and what was unpacked of them, logs, cores, and the
// journal where there is one.
func (b *bed) searchHost(t *testing.T, since *os.File) {
	t.Helper()
	began, err := since.Stat()
	if err != nil {
		t.Fatal(err)
	}
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}
	dirs := []string{b.path("state"), b.path("run"), "/var/log", "/var/crash", "/var/lib/systemd/coredump"}
	if core := strings.TrimSpace(string(pattern)); strings.HasPrefix(core, "/") {
		dirs = append(dirs, filepath.Dir(core))
	}
	for _, dir := range dirs {
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil // none of its kind here, or it comes and goes
			}
			info, err := d.Info()
			if err != nil || info.Size() > 256<<20 || !strings.HasPrefix(path, b.dir) && info.ModTime().Before(began.ModTime().Add(-time.Minute)) {
				return nil
			}
			if data, err := os.ReadFile(path); err == nil && hit(data) {
				t.Errorf("a secret is in %s", path)
			}
			return nil
		})
	}
	journal, err := exec.LookPath("journalctl")
	if err != nil {
		t.Log("there is no journal here")
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, journal, "--no-pager", "-o", "export", "--since", began.ModTime().Add(-time.Minute).Format("2006-01-02 15:04:05")).Output()
	if err != nil {
		t.Logf("the journal cannot be read: %v", err)
	}
	if hit(out) {
		t.Error("a secret is in the journal")
	}
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
