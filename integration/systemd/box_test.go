package systemd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/integration/testenv"
	"github.com/direct-oci/engine/integration/vm"
)

// Where the Debian is: a directory, or the image that hack/systemd.sh makes. Without it
// the tests are left out.
const debianVariable = "ENGINE_SYSTEMD"

const (
	socket    = "/run/engine/api.sock"
	sandboxes = "engine.slice/engine-sandboxes.service" // the cgroup, below the box's
	config    = "/etc/engine/config.yaml"
)

// theBox is booted by the first test that needs it.
var theBox *box

func TestMain(m *testing.M) {
	status := m.Run()
	if theBox != nil {
		if err := theBox.close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	os.Exit(status)
}

// box is a Debian with systemd and the engine.
type box struct {
	root   string // seen from here, before it is booted
	group  string
	pid    int    // of its systemd
	remove string // a directory that goes with it
	limits bool   // there are controllers
}

// boot returns the box, with the service started and nothing else.
func boot(t *testing.T) *box {
	t.Helper()
	debian := os.Getenv(debianVariable)
	if debian == "" {
		t.Skipf("set %s to the image of hack/systemd.sh: make test-systemd does", debianVariable)
	}
	testenv.RequireRoot(t)
	if theBox == nil {
		b := &box{root: debian}
		theBox = b
		if err := b.start(); err != nil {
			t.Fatal(err)
		}
	}
	if theBox.pid == 0 {
		t.Fatal("the box did not boot")
	}
	theBox.run(t, "systemctl", "reset-failed")
	theBox.run(t, "systemctl", "start", "engine.socket", "engine.service")
	return theBox
}

func (b *box) start() error {
	if info, err := os.Stat(b.root); err != nil {
		return err
	} else if !info.IsDir() {
		if err := b.unpack(); err != nil {
			return err
		}
	}
	if err := b.install(programs()); err != nil {
		return err
	}
	mount, err := cgroup2()
	if err != nil {
		return err
	}
	if mount == "/sys/fs/cgroup" {
		data, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
		if err != nil {
			return err
		}
		b.limits = bytes.Contains(data, []byte("memory"))
	}
	if !b.limits {
		if err := b.configure("service: {bestEffortLimits: true}\n"); err != nil {
			return err
		}
	}
	if err := b.makeRoot(); err != nil {
		return err
	}
	b.group = filepath.Join(mount, fmt.Sprintf("systemd-%d", os.Getpid()))
	out, err := output(exec.Command("bash", "testdata/boot.sh", b.root, b.group))
	if err != nil {
		return err
	}
	b.pid, err = strconv.Atoi(strings.TrimSpace(out))
	return err
}

// unpack makes a directory of the image.
func (b *box) unpack() error {
	dir, err := os.MkdirTemp("/var/tmp", "engine-systemd-")
	if err != nil {
		return err
	}
	cmd := exec.Command("debugfs", "-R", "rdump / "+dir, b.root)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	b.root, b.remove = dir, dir
	if _, err := output(cmd); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// programs is where the engine's programs are, and next where those of another version.
func programs() string { return os.Getenv("ENGINE_BIN") }

func next() string { return filepath.Join(top(), "build/next") }

// top is where the module's files are.
func top() string {
	if testenv.InVM() {
		return vm.JobDir
	}
	return "../.."
}

// install does what make install does, with the programs of dir.
func (b *box) install(dir string) error {
	cmd := exec.Command(filepath.Join(top(), "hack/install.sh"), dir)
	cmd.Env = append(os.Environ(), "DESTDIR="+b.inside("/"))
	_, err := output(cmd)
	return err
}

// inside is the path of a file of the box, seen from here.
func (b *box) inside(path string) string {
	if b.pid == 0 {
		return filepath.Join(b.root, path)
	}
	return filepath.Join(fmt.Sprintf("/proc/%d/root", b.pid), path)
}

// configure writes the config that make install has written, and more.
func (b *box) configure(more string) error {
	data, err := os.ReadFile(filepath.Join(top(), "systemd/config.yaml"))
	if err != nil {
		return err
	}
	return os.WriteFile(b.inside(config), append(data, more...), 0o600)
}

// makeRoot makes a root for sandboxes in the box.
func (b *box) makeRoot() error {
	bin := filepath.Join(b.root, "srv/root/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	data, err := os.ReadFile("/usr/bin/busybox")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bin, "busybox"), data, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"sh", "sleep"} {
		if err := os.Symlink("busybox", filepath.Join(bin, name)); err != nil && !os.IsExist(err) {
			return err
		}
	}
	return nil
}

// close ends everything in the box, at once.
func (b *box) close() error {
	if b.group != "" {
		if err := os.WriteFile(filepath.Join(b.group, "cgroup.kill"), []byte("1"), 0); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	deadline := time.Now().Add(time.Minute)
	for b.group != "" {
		err := removeGroups(b.group)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the box does not end: %w", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if b.remove != "" {
		return os.RemoveAll(b.remove)
	}
	return nil
}

func removeGroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroups(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

// cgroup2 is where the host's cgroup2 is mounted.
func cgroup2() (string, error) {
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("found no cgroup2 mount")
}

// command is a command in the box.
func (b *box) command(args ...string) *exec.Cmd {
	args = append([]string{"--target", strconv.Itoa(b.pid), "--all", "--", "env", "-i", "HOME=/root", "PATH=/usr/local/bin:/usr/sbin:/usr/bin"}, args...)
	return exec.Command("nsenter", args...)
}

// run runs a command in the box that has to succeed, and returns what it prints.
func (b *box) run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := output(b.command(args...))
	if err != nil {
		t.Fatalf("%v\n%s", err, b.journal())
	}
	return strings.TrimSpace(out)
}

// journal is the end of what the units have said.
func (b *box) journal() string {
	out, err := output(b.command("journalctl", "--no-pager", "-o", "cat", "-n", "40", "-u", "engine*"))
	if err != nil {
		return err.Error()
	}
	return out
}

// output runs a command within a bound.
func output(cmd *exec.Cmd) (string, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &errs, time.Second
	if err := cmd.Start(); err != nil {
		return "", err
	}
	timer := time.AfterFunc(2*testenv.Patience, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s%s", strings.Join(cmd.Args, " "), err, out.String(), errs.String())
	}
	return out.String(), nil
}

// show is one property of a unit.
func (b *box) show(t testing.TB, unit, property string) string {
	t.Helper()
	return b.run(t, "systemctl", "show", unit, "--value", "-p", property)
}

// client speaks to the service in the box.
func (b *box) client(t testing.TB) *client.Client {
	t.Helper()
	c := client.Unix(b.inside(socket))
	c.Patience = testenv.Patience
	t.Cleanup(c.Close)
	return c
}

// within is a context of one test.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
