package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
	stdin, stdout, stderr *os.File

	host   engine.Host
	json   bool
	quiet  bool
	detach bool
	status int // what the program exits with when nothing failed

	failStatus int // what it exits with when something did; 0: the usual one
}

func newApp(stdin, stdout, stderr *os.File) *app {
	return &app{stdin: stdin, stdout: stdout, stderr: stderr}
}

// main runs the command that args name and returns the exit status.
func (a *app) main(args []string) int {
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
	a.json = a.json || given(args, "--json")
	a.quiet = a.quiet || given(args, "--quiet")
	return a.refuse(cmd, err)
}

// given says whether a flag without a value stands among the engine's own
// arguments, as far as that can be told without having parsed them.
func given(args []string, flag string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, flag)
}

// refuse reports an error. A command that prints a result prints one about the
// refusal too, so that its reader finds the same object whatever happens.
func (a *app) refuse(cmd *cobra.Command, err error) int {
	e := asError(err)
	a.complain(e.Message, e.Fix)
	if a.json {
		var v any = struct {
			Error *engine.Error `json:"error"`
		}{e}
		if cmd.Annotations[printsResult] != "" {
			v = refusal(e)
		}
		if err := a.printJSON(v); err != nil {
			a.say(err.Error(), "")
		}
	}
	if a.failStatus != 0 {
		return a.failStatus
	}
	return statusRefused
}

// asError makes an *engine.Error of what a command or the flag parser returned.
func asError(err error) *engine.Error {
	var e *engine.Error
	if errors.As(err, &e) {
		return e
	}
	var cured interface{ Remedy() string }
	if errors.As(err, &cured) {
		return engine.Failed("failed", "%w", err)
	}
	return engine.AsError(err)
}

// complain prints an error. --quiet keeps it off only where --json has it.
func (a *app) complain(message, fix string) {
	a.quiet = a.quiet && a.json
	a.say(message, fix)
}

// say prints one message of the engine's own, unless it is to be quiet.
func (a *app) say(message, fix string) {
	if a.quiet {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "engine: %s\n", escape(message))
	if fix != "" {
		fmt.Fprintf(&b, "  fix: %s\n", escape(fix))
	}
	// There is nowhere left to report that stderr cannot be written.
	_, _ = io.WriteString(a.stderr, b.String())
}

// printJSON prints v on one line of stdout.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return written(enc.Encode(v))
}

// print prints text on stdout.
func (a *app) print(text string) error {
	_, err := io.WriteString(a.stdout, text)
	return written(err)
}

func written(err error) error {
	if err != nil {
		return engine.Failed("no_output", "cannot print the answer: %w", err)
	}
	return nil
}

// printsResult is the annotation of commands whose --json prints a result.
const printsResult = "prints-result"

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "engine",
		Short: "run untrusted programs in sandboxes, on a host without a container daemon",
		Long: "engine runs untrusted programs in sandboxes of their own, on a host without a\n" +
			"container daemon, and says what came of them and what they used.",
		Args:              unknownCommand,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetFlagErrorFunc(flagError)
	flags := root.PersistentFlags()
	flags.SortFlags = false
	flags.StringVar(&a.host.StateDir, "state-dir", "/var/lib/engine", "`DIR` of records and images")
	flags.StringVar(&a.host.RunDir, "run-dir", "/run/engine", "`DIR` of what does not outlive a boot")
	flags.StringVar(&a.host.CgroupRoot, "cgroup-root", "", "`DIR` of the cgroups of all runs (default engine, below the cgroup2 mount)")
	later(flags, "config", "FILE", "no command of this version reads a configuration file")
	root.AddCommand(
		a.runCommand(), a.execCommand(), a.bundleCommand(), a.netCommand(), a.imageCommand(),
		a.psCommand(), a.inspectCommand(), a.logsCommand(), a.waitCommand(),
		a.killCommand(), a.rmCommand(), a.gcCommand(),
		a.doctorCommand(), a.versionCommand(),
	)
	root.AddCommand(absentCommands()...)
	return root
}

// group is a command that only has subcommands.
func group(use, short string, subcommands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  unknownCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(subcommands...)
	return cmd
}

// unknownCommand is the check of arguments of a command that only has
// subcommands: any argument is the name of one that does not exist.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	e := engine.Refused("unknown_command", "cannot do %q: %s has no such command", args[0], cmd.CommandPath())
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	if best := nearest(args[0], names); best != "" {
		return e.WithFix("did you mean " + cmd.CommandPath() + " " + best + "?")
	}
	return e.WithFix("see " + cmd.CommandPath() + " --help")
}

// flagError explains what the flag parser did not like.
func flagError(cmd *cobra.Command, err error) error {
	var e *engine.Error
	if errors.As(err, &e) {
		return e
	}
	help := "see " + cmd.CommandPath() + " --help"
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return engine.Refused("bad_flag", "cannot read the flags: %w", err).WithFix(help)
	}
	name := unknown.GetSpecifiedName()
	if unknown.GetSpecifiedShortnames() != "" {
		return engine.Refused("unknown_flag", "cannot accept -%s: %s has no such flag", name, cmd.CommandPath()).WithFix(help)
	}
	e = engine.Refused("unknown_flag", "cannot accept --%s: %s has no such flag", name, cmd.CommandPath())
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if best := nearest(name, names); best != "" {
		return e.WithFix("did you mean --" + best + "?")
	}
	return e.WithFix(help)
}

// exactly checks that a command got the arguments that its usage line names.
func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return engine.Refused("bad_arguments", "cannot accept %d arguments: want %s", len(args), cmd.UseLine())
	}
}

// between checks that a command got the arguments that its usage line names, of which
// the last may be left out.
func between(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		return engine.Refused("bad_arguments", "cannot accept %d arguments: want %s", len(args), cmd.UseLine())
	}
}

// atLeastOne checks that a command got something to work on.
func atLeastOne(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return nil
	}
	return engine.Refused("bad_arguments", "cannot accept no arguments: want %s", cmd.UseLine())
}
