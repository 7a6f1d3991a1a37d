package integration

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/integration/testenv"
)

// TestSecretsAreNowhere proves that a program gets its secrets, and that no copy of them
// can be found on the host, neither while it runs nor afterwards.
func TestSecretsAreNowhere(t *testing.T) {
	begin(t)
	dir := t.TempDir()
	canary := fmt.Sprintf("canary-%d-%d", os.Getpid(), len(dir))
	line := canary + " of one line"
	lines := canary + " of\nseveral lines\n"
	must(t, os.WriteFile(dir+"/line", []byte(line+"\n"), 0o600))
	must(t, os.WriteFile(dir+"/lines", []byte(lines), 0o600))
	sum := func(s string) string {
		h := fnv.New64a()
		h.Write([]byte(s))
		return fmt.Sprintf("%016x", h.Sum64())
	}
	want := fmt.Sprintf("ONE variable %d fnv %s\nMANY file /run/secrets/MANY mode 0400 uid 65532 read %d fnv %s end 0\n",
		len(line), sum(line), len(lines), sum(lines))
	eachRuntimeInTurn(t, func(t *testing.T, runtime string) {
		l := start(t, runtime, []string{"--secret", "ONE=@" + dir + "/line", "--secret", "MANY=@" + dir + "/lines"},
			"/probe", "secret", "ONE", "MANY", "+", "hold")
		out := l.says(t, "ready")
		if got := sections(out)["secret"] + "\n"; got != want {
			t.Errorf("the program sees %q, want %q", got, want)
		}
		searched := searchProcesses(t, canary) + searchFiles(t, canary)
		if searched < 20 {
			t.Errorf("searched %d places, want the engine's files and processes at least", searched)
		}
		if kill := testenv.Exec(t, "kill", l.id); kill.Status != 0 {
			t.Error(kill)
		}
		r := l.end(t)
		r.want(t, "cancelled", 130)
		if strings.Contains(r.call.Stdout+r.call.Stderr+testenv.Exec(t, "inspect", l.id).Stdout, canary) {
			t.Errorf("%s\nshows a secret", r)
		}
		searchFiles(t, canary)
		searchKernelLog(t, canary)
	})
}

// searchProcesses looks at the command lines and environments of all processes but the
// program itself, and returns how many it saw.
func searchProcesses(t *testing.T, canary string) (seen int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/*")
	must(t, err)
	for _, path := range files {
		name := filepath.Base(path)
		if name != "cmdline" && name != "environ" {
			continue
		}
		if exe, err := os.Readlink(filepath.Dir(path) + "/exe"); err != nil || filepath.Base(exe) == "probe" {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			continue // ended
		}
		seen++
		if bytes.Contains(data, []byte(canary)) {
			t.Errorf("%s holds a secret", path)
		}
	}
	return seen
}

// searchFiles looks into every file that the engine and its runtimes can have left, and
// returns how many there were.
func searchFiles(t *testing.T, canary string) (seen int) {
	t.Helper()
	dirs := []string{testenv.StateDir, testenv.RunDir}
	if testenv.InVM() { // where all of the machine is the engine's
		dirs = []string{testenv.StateDir, "/run", "/var/log", "/var/tmp", "/tmp", "/dev/shm", "/root", "/etc"}
	}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil // gone meanwhile, or nothing to read
			}
			info, err := d.Info()
			if err != nil || info.Size() > 32<<20 || isSource(path) {
				return nil
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return nil
			}
			seen++
			if bytes.Contains(data, []byte(canary)) {
				t.Errorf("%s holds a secret", path)
			}
			return nil
		})
		must(t, err)
	}
	return seen
}

// isSource tells the files that a secret was read from.
func isSource(path string) bool {
	return strings.Contains(path, "TestSecretsAreNowhere") && (strings.HasSuffix(path, "/line") || strings.HasSuffix(path, "/lines"))
}

func searchKernelLog(t *testing.T, canary string) {
	t.Helper()
	buf := make([]byte, 1<<20)
	n, err := unix.Klogctl(3, buf) // SYSLOG_ACTION_READ_ALL
	if err != nil {
		t.Errorf("cannot read the kernel's log: %v", err)
		return
	}
	if bytes.Contains(buf[:n], []byte(canary)) {
		t.Error("the kernel's log holds a secret")
	}
}

// TestSecretsThatAreRefused proves that a value on the command line is not accepted,
// nor repeated, and that no empty or broken secret is passed off as one.
func TestSecretsThatAreRefused(t *testing.T) {
	begin(t)
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/huge", make([]byte, 1<<20+1), 0o600))
	for _, value := range []string{"NAME=hunter2", "NAME", "bad-name=@" + dir + "/huge", "NAME=@" + dir + "/huge", "NAME=@" + dir + "/absent"} {
		r := run(t, "embedded", []string{"--secret", value}, "/probe", "leave", "0")
		r.want(t, "null", 125)
		if r.Error.Class != "request" || strings.Contains(r.call.Stdout+r.call.Stderr, "hunter2") {
			t.Errorf("%s\nwant a refusal that does not repeat the value", r)
		}
	}
}
