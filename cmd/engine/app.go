package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
)

// Exit statuses of the engine's own. A run's are engine.ExitStatus.
const (
	statusOK        = 0
	statusUnfit     = 1 // doctor: no run would work on this host
	statusCancelled = 130
	statusRefused   = 125 // the request was refused, or the engine or host failed
)

// app is one invocation of the program.
type app struct {
	cli.Output
	stdin, stdout, stderr *os.File

	args   []string
	host   engine.Host
	json   bool
	detach bool
	status int // what the program exits with when nothing failed

	failStatus int // what it exits with when something did; 0: the usual one
}

func newApp(stdin, stdout, stderr *os.File) *app {
	return &app{Output: cli.Output{Stdout: stdout, Stderr: stderr}, stdin: stdin, stdout: stdout, stderr: stderr}
}

// main runs the command that args name and returns the exit status.
func (a *app) main(args []string) int {
	a.args = args
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return a.status
	}
	// Parsing may have stopped at the wrong flag, before it came to these.
	a.json = a.json || cli.Given(args, "--json")
	a.Quiet = a.Quiet || cli.Given(args, "--quiet")
	return a.refuse(cmd, err)
}

// refuse reports an error. A command that prints a result prints one about the
// refusal too, so that its reader finds the same object whatever happens.
func (a *app) refuse(cmd *cobra.Command, err error) int {
	e := cli.AsError(err)
	a.complain(e.Message, e.Fix)
	if a.json {
		var v any = struct {
			Error *engine.Error `json:"error"`
		}{e}
		if cmd.Annotations[printsResult] != "" {
			v = refusal(e)
		}
		if err := a.PrintJSON(v); err != nil {
			a.Say(err.Error(), "")
		}
	}
	if a.failStatus != 0 {
		return a.failStatus
	}
	return statusRefused
}

// complain prints an error. --quiet keeps it off only where --json has it.
func (a *app) complain(message, fix string) {
	a.Quiet = a.Quiet && a.json
	a.Say(message, fix)
}

// printsResult is the annotation of commands whose --json prints a result.
const printsResult = "prints-result"

func (a *app) rootCommand() *cobra.Command {
	root := cli.Root(&cobra.Command{
		Use:   "engine",
		Short: "run untrusted programs in sandboxes, on a host without a container daemon",
		Long: "engine runs untrusted programs in sandboxes of their own, on a host without a\n" +
			"container daemon, and says what came of them and what they used.",
	})
	flags := root.PersistentFlags()
	a.host.StateDir, a.host.RunDir = "/var/lib/engine", "/run/engine"
	dirFlag(flags, &a.host.StateDir, "state-dir", "DIR of records and images")
	dirFlag(flags, &a.host.RunDir, "run-dir", "DIR of what does not outlive a boot")
	dirFlag(flags, &a.host.CgroupRoot, "cgroup-root", "DIR of the cgroups of all runs (default engine, below the cgroup2 mount)")
	later(flags, "config", "FILE", "only the governed runner reads a configuration file")
	root.AddCommand(
		a.runCommand(), a.execCommand(), a.bundleCommand(), a.netCommand(), a.imageCommand(),
		a.psCommand(), a.inspectCommand(), a.logsCommand(), a.waitCommand(),
		a.killCommand(), a.rmCommand(), a.gcCommand(),
		a.doctorCommand(), a.versionCommand(),
	)
	root.AddCommand(a.handedOverCommands()...)
	root.AddCommand(absentCommands()...)
	return root
}
