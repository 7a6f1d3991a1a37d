// Package vm boots a small Linux machine in seconds and runs commands in it as
// root. The tests need it because they want what a developer's host may lack: a
// kernel of known version, root, and a pure cgroup v2 hierarchy.
//
// It needs QEMU, mkfs.ext4 and, once, apt to download Debian's kernel package
// (nothing is installed). No privilege is needed, no network, and no KVM: that is
// used only after a probe has shown that it works here. What it builds is kept in
// Config.Cache and keyed by its content. A machine is thrown away after use; its
// disks are snapshots, so nothing it writes stays, except on a Disk with Keep.
//
// Files of an image belong in the guest to whoever owns them on the host.
package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/direct-oci/engine/integration/vm/wire"
)

// BinDir is where Config.Bin appears in the guest.
const BinDir = "/opt/engine/bin"

// JobDir is where Config.Files appear in the guest unless they name a place.
const JobDir = "/job"

// Marker is set to 1 in the environment of every job: a program that finds it may
// do as it likes with the machine it is on.
const Marker = "ENGINE_TEST_VM"

// Path is the PATH of the guest.
const Path = BinDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Config describes a machine.
type Config struct {
	Cache     string // required: directory for kernel and images
	Guest     string // required: static binary of cmd/guest
	Bin       string // directory whose files are put in BinDir; empty for none
	Files     []File // put into the guest for this machine alone
	Disks     []Disk // images made by somebody else
	MemoryMiB int    // 0 means 2048
	CPUs      int    // 0 means 2
}

// File is a file or directory of the host to be put into the guest.
type File struct {
	Host string
	Name string // below JobDir; empty means the base name of Host
}

// Disk is an ext4 image of the host. The guest may write to it; that is forgotten,
// unless it is to be kept. What the guest's kernel had not given to a disk that is
// kept when the machine was closed is lost, as in a power cut.
type Disk struct {
	Image string
	Mount string // absolute path in the guest
	Keep  bool
}

// Job is one command of a machine.
type Job struct {
	Argv   []string
	Env    []string // added to PATH, HOME and what a root shell has
	Dir    string   // empty means /
	Stdin  io.Reader
	Stdout io.Writer // nil discards
	Stderr io.Writer // nil discards
}

// Shell returns the arguments that run a shell command.
func Shell(command string) []string { return []string{"/bin/bash", "-c", command} }

// DeadError reports a machine that ended before it reported a job's status.
type DeadError struct {
	Doing   string // "booting", "running [true]"
	Cause   error
	Console string // the last lines on its console
}

func (e *DeadError) Error() string {
	return fmt.Sprintf("the machine died while %s: %v; its console ended with:\n%s", e.Doing, e.Cause, e.Console)
}

func (e *DeadError) Unwrap() error { return e.Cause }

// MissingError reports a tool that the host lacks.
type MissingError struct{ Tool, Package string }

func (e *MissingError) Error() string { return "cannot find " + e.Tool + " on this host" }

// Remedy tells how to get the tool.
func (e *MissingError) Remedy() string {
	return "run make setup, or install the Debian package " + e.Package
}

// Machine is a running machine. Its methods, but for Close, must not be called
// concurrently.
type Machine struct {
	q     *qemu
	mu    sync.Mutex // guards writes to the port
	scrap string     // image of this machine alone
}

// Boot starts a machine and returns once it can take jobs. The machine lives no
// longer than ctx; Close ends it earlier.
func Boot(ctx context.Context, c Config) (*Machine, error) {
	if err := os.MkdirAll(c.Cache, 0o755); err != nil {
		return nil, err
	}
	if err := checkTools(); err != nil {
		return nil, err
	}
	k, err := findKernel(c.Cache)
	if err != nil {
		return nil, err
	}
	initrd, err := initramfs(c.Cache, c.Guest, k)
	if err != nil {
		return nil, err
	}
	m := &Machine{}
	drives, err := m.drives(c, k)
	if err != nil {
		return nil, errors.Join(err, m.removeScrap())
	}
	spec := spec{
		program: program, kernel: k.vmlinux, initrd: initrd, drives: drives,
		memory: orDefault(c.MemoryMiB, 2048), cpus: orDefault(c.CPUs, 2),
	}
	if spec.accel, err = acceleration(ctx, c.Cache, spec); err != nil {
		return nil, errors.Join(err, m.removeScrap())
	}
	for tries := 1; ; tries++ {
		if m.q, err = launch(ctx, spec); err != nil {
			return nil, errors.Join(err, m.removeScrap())
		}
		if err = m.greet(drives); err == nil {
			return m, nil
		}
		err = m.dead("booting", err)
		var dead *DeadError
		if tries == bootTries || !errors.As(err, &dead) {
			return nil, errors.Join(err, m.Close())
		}
	}
}

// bootTries is how often a machine is started that dies before it has been given
// anything to do: emulated kernels were seen, about once in a hundred boots, to trip
// over an instruction of their own that they were patching.
const bootTries = 3

func orDefault(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// drives returns the disks of the machine, the root first, and makes the images
// that are not in the cache yet.
func (m *Machine) drives(c Config, k kernel) ([]drive, error) {
	root, err := rootImage(c.Cache)
	if err != nil {
		return nil, err
	}
	drives := []drive{
		{Disk{Image: root, Mount: "/"}, "root"},
		{Disk{Image: k.modules, Mount: "/usr/lib/modules"}, "modules"},
	}
	if c.Bin != "" {
		bin, err := binImage(c.Cache, c.Bin)
		if err != nil {
			return nil, err
		}
		drives = append(drives, drive{Disk{Image: bin, Mount: BinDir}, "bin"})
	}
	if len(c.Files) > 0 {
		if m.scrap, err = filesImage(c.Cache, c.Files); err != nil {
			return nil, err
		}
		drives = append(drives, drive{Disk{Image: m.scrap, Mount: JobDir}, "job"})
	}
	for i, d := range c.Disks {
		if !filepath.IsAbs(d.Mount) {
			return nil, fmt.Errorf("cannot mount disk %s at %q: an absolute path is needed", d.Image, d.Mount)
		}
		if _, err := os.Stat(d.Image); err != nil {
			return nil, fmt.Errorf("cannot use disk: %w", err)
		}
		drives = append(drives, drive{d, fmt.Sprintf("extra%d", i)})
	}
	return drives, nil
}

// greet waits for the guest, describes the machine to it and waits until it has
// mounted everything.
func (m *Machine) greet(drives []drive) error {
	if err := wait(m.q.port, wire.Hello); err != nil {
		return err
	}
	setup := wire.Machine{Now: time.Now()}
	for _, d := range drives {
		setup.Disks = append(setup.Disks, wire.Disk{Serial: d.serial, Mount: d.Mount})
	}
	if err := wire.WriteJSON(m.q.port, wire.Setup, setup); err != nil {
		return err
	}
	return wait(m.q.port, wire.Ready)
}

// wait reads one frame that must be of the given kind.
func wait(r io.Reader, want wire.Kind) error {
	kind, payload, err := wire.Read(r)
	if err != nil {
		return err
	}
	if kind == wire.Exit {
		return fmt.Errorf("the guest gave up: %s", payload)
	}
	if kind != want {
		return fmt.Errorf("got a frame of kind %d, want %d", kind, want)
	}
	return nil
}

// Run runs one job and returns its exit status: 128+n for signal n, 127 when it
// could not be started. The error is a *DeadError when no status came back, and
// wraps the context's error when the machine's context ended it. Output that the
// job's orphans write later than 2 s after its end is lost; so may be a piece of
// stdin that was read and that the job did not want.
func (m *Machine) Run(job Job) (int, error) {
	start := wire.Job{
		Argv: job.Argv, Dir: job.Dir, Stdin: job.Stdin != nil,
		Env: append([]string{"PATH=" + Path, "HOME=/root", "USER=root", "SHELL=/bin/bash", "TERM=dumb", "LANG=C.UTF-8", Marker + "=1"}, job.Env...),
	}
	doing := fmt.Sprintf("running %q", job.Argv)
	if err := m.start(start); err != nil {
		return 0, m.dead(doing, err)
	}
	if job.Stdin != nil {
		in := &input{from: job.Stdin}
		defer m.end(in)
		go m.pump(in)
	}
	for {
		kind, payload, err := wire.Read(m.q.port)
		if err != nil {
			return 0, m.dead(doing, err)
		}
		switch kind {
		case wire.Stdout:
			err = emit(job.Stdout, payload)
		case wire.Stderr:
			err = emit(job.Stderr, payload)
		case wire.Exit:
			var o wire.Outcome
			if err := json.Unmarshal(payload, &o); err != nil {
				return 0, m.dead(doing, err)
			}
			if o.Error != "" {
				err = emit(job.Stderr, []byte("vm: "+o.Error+"\n"))
			}
			return o.Status, err
		default:
			err = fmt.Errorf("got an unexpected frame of kind %d", kind)
		}
		if err != nil {
			m.q.kill() // the job goes on and nobody listens
			return 0, fmt.Errorf("cannot go on %s: %w", doing, err)
		}
	}
}

func emit(w io.Writer, p []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(p)
	return err
}

// input is the stdin of one job.
type input struct {
	from io.Reader
	over bool // the job has ended; guarded by Machine.mu
}

// end keeps what is left of a job's stdin from reaching the next job.
func (m *Machine) end(in *input) {
	m.mu.Lock()
	defer m.mu.Unlock()
	in.over = true
}

// pump sends stdin piece by piece until it ends, the job does, or the machine. A
// failed read ends the job's input too.
func (m *Machine) pump(in *input) {
	buf := make([]byte, 32<<10)
	for {
		n, err := in.from.Read(buf)
		if n > 0 && !m.feed(in, buf[:n]) {
			return
		}
		if err != nil {
			m.feed(in, nil)
			return
		}
	}
}

// feed sends one piece and reports whether more is wanted.
func (m *Machine) feed(in *input, piece []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !in.over && wire.Write(m.q.port, wire.Stdin, piece) == nil
}

func (m *Machine) start(job wire.Job) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return wire.WriteJSON(m.q.port, wire.Start, job)
}

// dead explains why the port fell silent: the context, or the machine's own end.
func (m *Machine) dead(doing string, cause error) error {
	m.q.kill()
	if err := context.Cause(m.q.outer); err != nil {
		return fmt.Errorf("stopped while %s: %w", doing, err)
	}
	return &DeadError{Doing: doing, Cause: cause, Console: m.q.console.String()}
}

// Console returns the last lines on the machine's console.
func (m *Machine) Console() string { return m.q.console.String() }

// Close cuts the machine's power. It may be called again, and while Run runs.
func (m *Machine) Close() error {
	m.q.kill()
	return m.removeScrap()
}

func (m *Machine) removeScrap() error {
	if m.scrap == "" {
		return nil
	}
	err := os.Remove(m.scrap)
	m.scrap = ""
	return err
}
