// Package direct is the engine's own runtime: the steps that make a sandbox of a
// bundle are worked out here, and done by engine-launch, a small program in C that
// becomes the sandbox's first process. It understands the bundles that the engine
// renders, refuses every field it does not know, and starts in a fraction of the time
// that a general runtime takes.
package direct

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine/ociruntime"
)

// cgroupMount is where the monitor has cgroup v2.
const cgroupMount = "/sys/fs/cgroup"

// Runtime starts sandboxes with the engine-launch at Path.
type Runtime struct {
	Path    string
	Version string // of the engine, which it is a part of
}

// Info implements ociruntime.Runtime.
func (r Runtime) Info() ociruntime.Info {
	return ociruntime.Info{Name: "direct", Version: r.Version, Path: r.Path}
}

// Start implements ociruntime.Runtime. The context does not interrupt it: killing the
// run's cgroup does.
func (r Runtime) Start(_ context.Context, c ociruntime.Container) error {
	if err := r.start(c); err != nil {
		return &ociruntime.StartError{Runtime: "direct", Err: err}
	}
	return nil
}

func (r Runtime) start(c ociruntime.Container) error {
	steps, err := plan(c.Spec)
	if err != nil {
		return err
	}
	cgroup, err := makeCgroup(c.Spec)
	if err != nil {
		return err
	}
	defer cgroup.Close()
	l := launch{spec: c.Spec, guest: c.Guest, cgroup: cgroup}
	if l.plan, err = pipeOf(steps); err != nil {
		return err
	}
	defer l.plan.Close()
	if l.program, err = openProgram(r.Path); err != nil {
		return err
	}
	defer l.program.Close()
	said, report, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot make a pipe: %w", err)
	}
	defer said.Close()
	l.report = report
	err = l.start()
	report.Close()
	if err != nil {
		return err
	}
	return verdict(said)
}

// pipeOf is a pipe that holds data and then ends.
func pipeOf(data []byte) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make a pipe: %w", err)
	}
	// Nobody reads yet, so all of it has to fit.
	if err := w.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return nil, errors.Join(err, r.Close(), w.Close())
	}
	_, err = w.Write(data)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot pass on a plan of %d bytes: %w", len(data), err), r.Close())
	}
	return r, nil
}

// openProgram opens the launcher high above the descriptors that it gets, so that it
// can be executed from a directory that the sandbox's users cannot enter.
func openProgram(path string) (*os.File, error) {
	f, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open engine-launch: %w", err)
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 100)
	if err != nil {
		return nil, fmt.Errorf("cannot keep engine-launch open: %w", err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// launch is what one start of the launcher needs.
type launch struct {
	spec    *specs.Spec
	program *os.File
	cgroup  *os.File
	plan    *os.File // its descriptor 3
	guest   *os.File // 4
	report  *os.File // 5
}

// start clones the launcher from a thread that is in the sandbox's network namespace:
// one that belongs to the host's user namespace cannot be entered from below it.
func (l launch) start() error {
	done := make(chan error)
	go func() {
		// Never unlocked: the thread ends with this goroutine, and its namespace with it.
		runtime.LockOSThread()
		done <- l.clone()
	}()
	return <-done
}

func (l launch) clone() error {
	if err := enterNetwork(l.spec); err != nil {
		return err
	}
	cmd := &exec.Cmd{
		Path:       "/proc/self/fd/" + strconv.Itoa(int(l.program.Fd())),
		Args:       []string{"engine-launch"},
		Env:        []string{},
		Dir:        "/",
		ExtraFiles: []*os.File{l.plan, l.guest, l.report},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:                 unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
			UidMappings:                mappings(l.spec.Linux.UIDMappings),
			GidMappings:                mappings(l.spec.Linux.GIDMappings),
			GidMappingsEnableSetgroups: true,
			Credential:                 &syscall.Credential{},
			UseCgroupFD:                true,
			CgroupFD:                   int(l.cgroup.Fd()),
		},
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start engine-launch: %w", err)
	}
	go cmd.Wait() // reaps PID 1; how it ended is known from the guest socket and the cgroup
	return nil
}

func enterNetwork(spec *specs.Spec) error {
	for _, ns := range spec.Linux.Namespaces {
		if ns.Type != specs.NetworkNamespace {
			continue
		}
		f, err := os.Open(ns.Path)
		if err != nil {
			return fmt.Errorf("cannot open the network namespace: %w", err)
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("cannot enter the network namespace: %w", err)
		}
	}
	return nil
}

func mappings(list []specs.LinuxIDMapping) []syscall.SysProcIDMap {
	var out []syscall.SysProcIDMap
	for _, m := range list {
		out = append(out, syscall.SysProcIDMap{ContainerID: int(m.ContainerID), HostID: int(m.HostID), Size: int(m.Size)})
	}
	return out
}

// reportMax bounds what the launcher can say.
const reportMax = 4096

// verdict reads what the launcher has to say: nothing, if it became engine-init.
func verdict(said *os.File) error {
	text, err := io.ReadAll(io.LimitReader(said, reportMax))
	if err != nil {
		return fmt.Errorf("cannot read what engine-launch says: %w", err)
	}
	if len(text) == 0 {
		return nil
	}
	number, what, _ := strings.Cut(string(text), " ")
	n, err := strconv.Atoi(number)
	if err != nil {
		return fmt.Errorf("engine-launch says %q", text)
	}
	return fmt.Errorf("engine-launch %s: %w", what, syscall.Errno(n))
}

// makeCgroup makes the leaf that the spec names, with the limits that it names: they
// are those of the group above, and are repeated for who reads them inside.
func makeCgroup(spec *specs.Spec) (*os.File, error) {
	dir := filepath.Join(cgroupMount, spec.Linux.CgroupsPath)
	settings, controllers, err := cgroupSettings(spec.Linux.Resources)
	if err != nil {
		return nil, err
	}
	for _, c := range controllers {
		if err := setFile(filepath.Join(filepath.Dir(dir), "cgroup.subtree_control"), "+"+c); err != nil {
			return nil, err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make cgroup: %w", err)
	}
	for _, s := range settings {
		if err := setFile(filepath.Join(dir, s[0]), s[1]); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open cgroup: %w", err)
	}
	if err := allowDevices(dir, spec.Linux.Resources.Devices); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func setFile(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("cannot open %s: %w", filepath.Base(path), err)
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cannot write %s=%s: %w", filepath.Base(path), value, err)
	}
	return nil
}
