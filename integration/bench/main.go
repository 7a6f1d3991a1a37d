// Command bench measures the engine beside the bare runtimes, alternating, on the
// host that it runs on: what a sandbox costs from start to end, where the time goes,
// how fast the monitor starts and how fast output flows.
//
//	bench -bin bin -work build/bench -run /run/engine-bench
//
// hack/bench.sh starts it, as root and in a mount namespace of its own in which
// cgroup v2 is at /sys/fs/cgroup and the run directory is a tmpfs. Every sample also
// goes to WORK/samples.txt, in the format that benchstat reads.
//
// Only figures of one invocation may be compared with each other.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// bench is what every measurement needs.
type bench struct {
	bin, work, run string
	n              int
	samples        *os.File
	serial         int // of containers' names
}

func main() {
	b := bench{}
	flag.StringVar(&b.bin, "bin", "bin", "`directory` of the binaries")
	flag.StringVar(&b.work, "work", "build/bench", "`directory` on a disk")
	flag.StringVar(&b.run, "run", "/run/engine-bench", "`directory` on a tmpfs")
	flag.IntVar(&b.n, "n", 40, "samples of each start")
	flag.Parse()
	if err := b.all(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) all() error {
	if err := b.prepare(); err != nil {
		return err
	}
	defer b.samples.Close()
	for _, step := range []func() error{b.cold, b.coldGVisor, b.phases, b.monitorStart, b.stdout} {
		if err := step(); err != nil {
			return err
		}
	}
	fmt.Printf("\nsamples: %s\n", b.samples.Name())
	return nil
}

// prepare makes a root with busybox alone, a bare bundle of it, and the file for
// the samples.
func (b *bench) prepare() (err error) {
	for _, p := range []*string{&b.bin, &b.work, &b.run} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(b.root(), "bin"), 0o755); err != nil {
		return err
	}
	if err := b.forget(); err != nil {
		return err
	}
	if b.samples, err = os.Create(filepath.Join(b.work, "samples.txt")); err != nil {
		return err
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.root(), "bin/busybox"), busybox, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"true", "dd"} {
		if err := os.Symlink("busybox", filepath.Join(b.root(), "bin", name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return b.writeBundle()
}

func (b *bench) root() string { return filepath.Join(b.work, "root") }

// engine is a run of the engine with everything on; flags go before the command.
func (b *bench) engine(runtime string, argv []string, flags ...string) *exec.Cmd {
	args := []string{
		"run", "--state-dir", filepath.Join(b.work, "state"), "--run-dir", filepath.Join(b.run, "engine"), "--cgroup-root", "engine-bench",
		"--runtime", runtime, "--network", "none", "--rootfs", b.root(), "--quiet",
	}
	if !canLimit() {
		args = append(args, "--best-effort-limits")
	}
	args = append(append(args, flags...), "--")
	return exec.Command(filepath.Join(b.bin, "engine"), append(args, argv...)...)
}

// canLimit reports whether this host's cgroup v2 has what the limits need.
func canLimit() bool {
	data, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	has := strings.Fields(string(data))
	return err == nil && slices.Contains(has, "cpu") && slices.Contains(has, "memory") && slices.Contains(has, "pids")
}

// cold compares the engine's own launcher and the linked-in library with runc and a
// bundle that has no user namespace, no seccomp filter and no limits.
func (b *bench) cold() error {
	fmt.Println("cold start to exit of /bin/true, static busybox")
	for _, runtime := range []string{"direct", "embedded"} {
		pair, err := b.alternate(b.n, "Cold/runc-bare", "Cold/engine-"+runtime,
			func() *exec.Cmd {
				return exec.Command(filepath.Join(b.bin, "runc"), "--root", filepath.Join(b.run, "runc"), "run", "--bundle", b.bundle(), b.name())
			},
			func() *exec.Cmd { return b.engine(runtime, []string{"/bin/true"}) })
		if err != nil {
			return err
		}
		pair.print("runc run, bare bundle", "engine run, "+runtime)
		most := 0.85
		if runtime == "embedded" {
			most = 1.1 // the same library, with everything on
		}
		target(pair.ratio() <= most, "engine / runc %.2f, to be %.2f or less", pair.ratio(), most)
	}
	return nil
}

// coldGVisor compares the engine's use of runsc with runsc and the same bare bundle.
func (b *bench) coldGVisor() error {
	pair, err := b.alternate(max(b.n/2, 5), "Cold/runsc-bare", "Cold/engine-runsc",
		func() *exec.Cmd {
			return exec.Command(filepath.Join(b.bin, "runsc"), "--root", filepath.Join(b.run, "runsc"),
				"--network=none", "--ignore-cgroups", "run", "--bundle", b.bundle(), b.name())
		},
		func() *exec.Cmd { return b.engine("runsc", []string{"/bin/true"}) })
	if err != nil {
		return err
	}
	fmt.Println("\nthe same under gVisor")
	pair.print("runsc run, bare bundle", "engine run, runsc")
	more := millis(median(pair.b) - median(pair.a))
	target(more <= 15, "engine - runsc %+.1f ms, to be 15 or less", more)
	return nil
}

func (b *bench) name() string {
	b.serial++
	return fmt.Sprintf("bench-%d-%d", os.Getpid(), b.serial)
}

// target says whether a target was met.
func target(met bool, format string, args ...any) {
	verdict := "met"
	if !met {
		verdict = "MISSED"
	}
	fmt.Printf("  %-7s %s\n", verdict, fmt.Sprintf(format, args...))
}

func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
