// Command vm runs commands, programs and Go tests in the test machine.
//
//	vm run  [flags] 'SHELL COMMAND'   one command; its output and exit status are ours
//	vm exec [flags] PROGRAM [ARG...]  one program of the host (for go test -exec)
//	vm test [flags] PACKAGE...        the tests of Go packages, all in one machine
//
// Exit status: the command's own; 124 past the deadline; 125 when the machine
// could not be had or died; 130 interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/direct-oci/engine/integration/vm"
)

const usage = `usage: vm run|exec|test [flags] ARG...
  vm run  'SHELL COMMAND'    run it as root, with the files of -bin on PATH
  vm exec PROGRAM [ARG...]   run a program of the host
  vm test PACKAGE...         run the tests of Go packages
flags:
`

// Exit statuses of our own.
const (
	statusDeadline    = 124
	statusMachine     = 125
	statusInterrupted = 130
)

func main() { os.Exit(run(os.Args[1:])) }

// options are the flags.
type options struct {
	config         vm.Config
	timeout        time.Duration
	stdin, verbose bool
	env            list
	run            string // pattern of tests
	flags          *flag.FlagSet
}

// list is a flag that may be repeated.
type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func parse(args []string) (*options, error) {
	o := &options{flags: flag.NewFlagSet("vm", flag.ContinueOnError)}
	var files, disks list
	o.flags.Usage = func() {
		fmt.Fprint(o.flags.Output(), usage)
		o.flags.PrintDefaults()
	}
	here, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o.flags.StringVar(&o.config.Cache, "cache", filepath.Dir(here), "`directory` for kernel and images")
	o.flags.StringVar(&o.config.Guest, "guest", filepath.Join(filepath.Dir(here), "guest"), "the guest's first process, a static `program`")
	o.flags.StringVar(&o.config.Bin, "bin", filepath.Join(filepath.Dir(here), "../../bin"), "`directory` whose files are on the guest's PATH")
	o.flags.IntVar(&o.config.MemoryMiB, "memory", 2048, "memory in `MiB`")
	o.flags.IntVar(&o.config.CPUs, "cpus", 2, "virtual CPUs")
	o.flags.DurationVar(&o.timeout, "timeout", 10*time.Minute, "`time` after which the machine is killed and the status is 124")
	o.flags.BoolVar(&o.stdin, "i", false, "pass stdin on (run and exec)")
	o.flags.BoolVar(&o.verbose, "v", false, "tell on stderr how long each step took")
	o.flags.StringVar(&o.run, "run", "", "only the tests that match the `pattern` (test)")
	o.flags.Var(&o.env, "env", "`K=V` added to the environment; repeatable")
	o.flags.Var(&files, "add", "`FILE[:NAME]`, file or directory put at "+vm.JobDir+"/NAME; repeatable")
	o.flags.Var(&disks, "disk", "`IMAGE:MOUNT`, ext4 image mounted in the guest; repeatable")
	if err := o.flags.Parse(args); err != nil {
		return nil, err
	}
	for _, f := range files {
		host, name, _ := strings.Cut(f, ":")
		o.config.Files = append(o.config.Files, vm.File{Host: host, Name: name})
	}
	for _, d := range disks {
		image, mount, ok := strings.Cut(d, ":")
		if !ok {
			return nil, fmt.Errorf("-disk %s: want IMAGE:MOUNT", d)
		}
		o.config.Disks = append(o.config.Disks, vm.Disk{Image: image, Mount: mount})
	}
	return o, nil
}

func run(args []string) int {
	if len(args) == 0 {
		args = []string{"help"}
	}
	o, err := parse(args[1:])
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "vm:", err)
		}
		return statusMachine
	}
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeout(interrupted, o.timeout)
	defer cancel()

	var status int
	switch rest := o.flags.Args(); {
	case args[0] == "run" && len(rest) == 1:
		status, err = o.command(ctx, vm.Shell(rest[0]))
	case args[0] == "exec" && len(rest) > 0:
		status, err = o.program(ctx, rest)
	case args[0] == "test" && len(rest) > 0:
		status, err = o.tests(ctx, rest)
	default:
		o.flags.Usage()
		return statusMachine
	}
	switch {
	case err == nil:
		return status
	case interrupted.Err() != nil:
		fmt.Fprintln(os.Stderr, "vm: interrupted")
		return statusInterrupted
	case errors.Is(err, context.DeadlineExceeded):
		fmt.Fprintf(os.Stderr, "vm: not done after %v: %v\n", o.timeout, err)
		return statusDeadline
	}
	fmt.Fprintln(os.Stderr, "vm:", err)
	var remedied interface{ Remedy() string }
	if errors.As(err, &remedied) {
		fmt.Fprintln(os.Stderr, "  fix:", remedied.Remedy())
	}
	return statusMachine
}

// command boots a machine for one command.
func (o *options) command(ctx context.Context, argv []string) (int, error) {
	return o.job(ctx, vm.Job{Argv: argv})
}

// program puts a program of the host into a machine and runs it there, with the
// files of its package: go test starts it in the package's directory.
func (o *options) program(ctx context.Context, argv []string) (int, error) {
	o.config.Files = append(o.config.Files, vm.File{Host: argv[0], Name: "program"})
	if _, err := os.Stat("testdata"); err == nil {
		o.config.Files = append(o.config.Files, vm.File{Host: "testdata"})
	}
	return o.job(ctx, vm.Job{Argv: append([]string{vm.JobDir + "/program"}, argv[1:]...), Dir: vm.JobDir})
}

func (o *options) job(ctx context.Context, job vm.Job) (status int, err error) {
	start := time.Now()
	m, err := vm.Boot(ctx, o.config)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	o.tell("booted", start)
	job.Env, job.Stdout, job.Stderr = o.env, os.Stdout, os.Stderr
	if o.stdin {
		job.Stdin = os.Stdin
	}
	start = time.Now()
	status, err = m.Run(job)
	o.tell("ran", start)
	return status, err
}

func (o *options) tell(what string, since time.Time) {
	if o.verbose {
		fmt.Fprintf(os.Stderr, "vm: %s in %.1f s\n", what, time.Since(since).Seconds())
	}
}
