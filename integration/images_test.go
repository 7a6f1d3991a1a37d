package integration

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/integration/testenv"
)

// engineDirs are the places that the engine or a runtime mounts on or writes to.
var engineDirs = []string{"dev", "proc", "sys", "tmp", "run", "workload", ".engine"}

// hostile is an image that holds something else at the places that matter.
type hostile struct {
	name  string
	build func(t *testing.T, dir, bait string)
}

var hostiles = []hostile{
	{"links to a directory of the host", func(t *testing.T, dir, bait string) {
		for _, name := range engineDirs {
			must(t, os.Symlink(bait, filepath.Join(dir, name)))
		}
		must(t, os.Symlink(bait, filepath.Join(dir, "etc")))
	}},
	{"links that climb out", func(t *testing.T, dir, bait string) {
		for _, name := range engineDirs {
			must(t, os.Symlink(strings.Repeat("../", 12)+bait, filepath.Join(dir, name)))
		}
		must(t, os.Mkdir(filepath.Join(dir, "etc"), 0o755))
		for _, name := range []string{"resolv.conf", "hosts", "hostname", "passwd", "group", "nsswitch.conf"} {
			must(t, os.Symlink(strings.Repeat("../", 12)+bait+"/secret", filepath.Join(dir, "etc", name)))
		}
	}},
	{"files in the place of directories", func(t *testing.T, dir, bait string) {
		for _, name := range append([]string{"etc"}, engineDirs...) {
			must(t, os.WriteFile(filepath.Join(dir, name), []byte("CANARY\n"), 0o644))
		}
	}},
	{"links below them, to the kernel's files", func(t *testing.T, dir, bait string) {
		for _, name := range append([]string{"etc", "sys/fs", "run/secrets"}, engineDirs...) {
			must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
		}
		for link, target := range map[string]string{
			"dev/null": "/proc/sys/kernel/core_pattern", "dev/shm": bait, "dev/zero": bait + "/secret", "dev/pts": bait,
			"proc/self": bait, "proc/sys": "/", "proc/cpuinfo": bait + "/secret", "proc/meminfo": "/proc/sysrq-trigger", "proc/stat": bait + "/secret",
			"sys/fs/cgroup": bait, "etc/resolv.conf": "/etc/shadow", "etc/passwd": bait + "/secret", ".engine/init": bait + "/secret",
		} {
			must(t, os.Symlink(target, filepath.Join(dir, link)))
		}
	}},
	{"pipes and devices", func(t *testing.T, dir, bait string) {
		for _, name := range append([]string{"etc"}, engineDirs...) {
			must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
		}
		for name, dev := range map[string][2]uint32{"memory": {1, 1}, "dev/null": {1, 1}, "kmsg": {1, 11}, "zero": {1, 5}, "disk": {254, 0}} {
			must(t, unix.Mknod(filepath.Join(dir, name), unix.S_IFCHR|0o666, int(unix.Mkdev(dev[0], dev[1]))))
		}
		for _, name := range []string{"etc/resolv.conf", "etc/passwd", ".engine/init", "pipe"} {
			must(t, unix.Mkfifo(filepath.Join(dir, name), 0o666))
		}
	}},
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newRoot is a root of the test's own that holds the probe alone: no shell, no library.
func newRoot(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	must(t, copyFile(root+"/probe", dir+"/probe", 0o755))
	return dir
}

// listing describes every file below dir, contents included.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	var lines []string
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s %v %d %v", path, info.Mode(), info.Size(), info.ModTime().UnixNano())
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", data[:min(len(data), 64)])
		}
		lines = append(lines, line)
		return nil
	}))
	return lines
}

// TestHostileImages proves that what an image has at the places that the engine mounts
// on, or whose files it writes, leads nowhere: neither is anything of the host read or
// changed, nor is the sandbox another than usual.
func TestHostileImages(t *testing.T) {
	begin(t)
	bait := t.TempDir()
	must(t, os.Chmod(bait, 0o755))
	must(t, os.WriteFile(filepath.Join(bait, "secret"), []byte("CANARY of the host\n"), 0o644))
	kernel := []string{"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname"}
	state := func() []string {
		lines := listing(t, bait)
		for _, path := range kernel {
			data, err := os.ReadFile(path)
			lines = append(lines, fmt.Sprintf("%s %q %v", path, data, err))
		}
		return lines
	}
	before := state()
	// What can be read inside, of the places that led to the host.
	looks := []string{
		"/etc/secret", "/dev/secret", "/proc/secret", "/sys/secret", "/tmp/secret", "/run/secret", "/workload/secret", "/.engine/secret",
		"/dev/shm/secret", "/sys/fs/cgroup/secret", "/run/secrets/secret", "/etc/shadow", "/memory", "/kmsg", "/disk", bait + "/secret",
	}
	eachRuntime(t, func(t *testing.T, runtime string) {
		for _, h := range hostiles {
			dir := newRoot(t)
			h.build(t, dir, bait)
			image := listing(t, dir+"/probe")
			r := run(t, runtime, []string{"--rootfs", dir}, slices.Concat([]string{"/probe", "posture", "+", "masked"}, looks)...)
			if r.Reason == nil || *r.Reason != "exited" {
				t.Errorf("%s: %s\nwant a run as usual", h.name, r)
				continue
			}
			in := inside{runtime: runtime, sections: sections(r.Stdout)}
			in.report = parse(in.sections["posture"])
			checkMounts(t, in)
			checkEnvironment(t, in)
			for line := range strings.Lines(in.sections["masked"]) {
				if f := strings.Fields(line); f[1] != "error" {
					t.Errorf("%s: %s can be read", h.name, strings.TrimSpace(line))
				}
			}
			if strings.Contains(r.call.Stdout, "CANARY") {
				t.Errorf("%s: %s\nshows a file of the host", h.name, r)
			}
			same(t, "the image after the run", listing(t, dir+"/probe"), image)
		}
	})
	same(t, "the host after the runs", state(), before)
}

// TestSetIDFilesHaveNoEffect proves that neither set-id bits nor file capabilities of
// an image raise anybody.
func TestSetIDFilesHaveNoEffect(t *testing.T) {
	begin(t)
	dir := newRoot(t)
	must(t, copyFile(dir+"/probe", dir+"/setid", 0o755))
	must(t, os.Chown(dir+"/setid", 0, 0))
	must(t, os.Chmod(dir+"/setid", 0o755|fs.ModeSetuid|fs.ModeSetgid))
	must(t, copyFile(dir+"/probe", dir+"/caps", 0o755))
	// Version 2, effective, all capabilities of the first word permitted.
	caps := []byte{1, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	must(t, unix.Setxattr(dir+"/caps", "security.capability", caps, 0))
	eachRuntime(t, func(t *testing.T, runtime string) {
		for _, program := range []string{"/setid", "/caps"} {
			r := run(t, runtime, []string{"--rootfs", dir}, program, "posture", "+", "masked")
			r.want(t, "exited", 0)
			in := inside{runtime: runtime, report: parse(sections(r.Stdout)["posture"])}
			checkIdentity(t, in)
		}
	})
}

// TestRequestIsHonoured proves the flags that shape a program's surroundings.
func TestRequestIsHonoured(t *testing.T) {
	begin(t)
	t.Setenv("ENGINE_TEST_CANARY", "of the caller")
	eachRuntime(t, func(t *testing.T, runtime string) {
		r := run(t, runtime, []string{
			"--user", "1234:4321", "--workdir", "/bin", "--env", "A=1 = one", "--env", "HOME=/tmp", "--env", "A2=", "--label", "k=v",
		}, "/probe", "posture")
		r.want(t, "exited", 0)
		in := inside{runtime: runtime, report: parse(r.Stdout)}
		for key, want := range map[string]string{"uid": "1234 1234", "gid": "4321 4321", "groups": "0", "cwd": "/bin"} {
			same(t, key, in.report[key], []string{want})
		}
		want := slices.Clone(environment)
		want[1] = "HOME=/tmp"
		same(t, "environment", in.report["env"], append(want, "A=1 = one", "A2="))
		if got := inspect(t, r.ID).Request.Labels; len(got) != 1 || got["k"] != "v" {
			t.Errorf("labels = %v, want k=v", got)
		}
	})
}

// TestImages proves the life of an image: imported, listed, run, held while in use,
// removed.
func TestImages(t *testing.T) {
	begin(t)
	dir := newRoot(t)
	name := "suite/probe:1"
	expect := func(status int, words string, args ...string) testenv.Result {
		t.Helper()
		call := testenv.Exec(t, args...)
		if call.Status != status || !strings.Contains(call.Stdout+call.Stderr, words) {
			t.Errorf("%s\nwant status %d and %q", call, status, words)
		}
		return call
	}
	expect(0, "sha256:", "image", "import", dir, name)
	t.Cleanup(func() { testenv.Exec(t, "image", "rm", name) }) // where the test stopped half-way
	expect(125, "there", "image", "import", dir, name)
	expect(0, name, "image", "ls")
	shown := expect(0, `"digest"`, "image", "inspect", name)
	expect(125, "cannot", "image", "import", dir, "../escape")

	l := start(t, "embedded", []string{"--rootfs", "", "--image", name}, "/probe", "hold")
	expect(125, "use", "image", "rm", name)
	expect(0, l.id, "kill", l.id)
	r := l.end(t)
	r.want(t, "cancelled", 130)
	if r.Image.Ref != name || r.Image.Digest == nil || !strings.Contains(shown.Stdout, *r.Image.Digest) {
		t.Errorf("image = %+v, want %s and the digest in %s", r.Image, name, shown.Stdout)
	}
	testenv.WaitFor(t, testenv.Patience, "the image to be free", func() bool {
		return testenv.Exec(t, "image", "rm", name).Status == 0
	})
	expect(125, "cannot", "run", "--image", name, "--", "/probe", "leave", "0")
}
