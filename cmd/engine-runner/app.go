package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/review"
	"github.com/direct-oci/engine/cmd/engine-runner/config"
	"github.com/direct-oci/engine/engine"
)

// Exit statuses of our own.
const (
	statusFailed  = 1   // the answer is no: a log does not hold, a program failed
	statusRefused = 125 // the request was refused, or the engine or host failed
)

// app is one invocation of the program.
type app struct {
	stdin, stdout, stderr *os.File

	inline     []byte // the config, if it was all in the environment
	configPath string
	stateDir   string // from the command line; "": the config's
	runDir     string
	cgroupRoot string
	json       bool
	status     int
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
	if err := root.Execute(); err != nil {
		if end := slices.Index(args, "--"); end >= 0 {
			args = args[:end]
		}
		a.json = a.json || slices.Contains(args, "--json")
		return a.refuse(err)
	}
	return a.status
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:               "engine",
		Short:             "the governed runner's commands",
		Args:              noCommand,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return engine.Refused("bad_flag", "cannot read the flags: %w", err).WithFix("see " + cmd.CommandPath() + " --help")
	})
	flags := root.PersistentFlags()
	flags.SortFlags = false
	flags.StringVar(&a.configPath, "config", "", "`FILE` of the config (default $"+config.Variable+" or "+config.DefaultPath+")")
	flags.StringVar(&a.stateDir, "state-dir", "", "`DIR` of records and images, instead of the config's")
	flags.StringVar(&a.runDir, "run-dir", "", "`DIR` of what does not outlive a boot, instead of the config's")
	flags.StringVar(&a.cgroupRoot, "cgroup-root", "", "`DIR` of the cgroups of all runs, instead of the config's")
	root.AddCommand(
		a.capabilitiesCommand(), a.callCommand(), a.digestCommand(), a.approveCommand(),
		a.verifyCommand(), a.auditCommand(), a.actionCommand(), a.configCommand(),
	)
	return root
}

func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return engine.Refused("unknown_command", "cannot do %q: %s has no such command", args[0], cmd.CommandPath()).
		WithFix("see " + cmd.CommandPath() + " --help")
}

// group is a command that only has subcommands.
func group(use, short string, subcommands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(subcommands...)
	return cmd
}

// between checks the number of arguments.
func between(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		return engine.Refused("bad_arguments", "cannot accept %d arguments: want %s", len(args), cmd.UseLine())
	}
}

// refuse reports an error, in JSON on stdout if that is where the answer would be.
func (a *app) refuse(err error) int {
	e := asError(err)
	var violations capability.Violations
	errors.As(err, &violations)
	a.say(e.Message, e.Fix)
	if a.json {
		v := struct {
			Error      *engine.Error         `json:"error"`
			Violations capability.Violations `json:"violations,omitempty"`
		}{e, violations}
		if err := a.printJSON(v); err != nil {
			a.say(err.Error(), "")
		}
	}
	return statusRefused
}

// asError makes an *engine.Error of whatever a command returned.
func asError(err error) *engine.Error {
	var bad *config.Error
	if errors.As(err, &bad) {
		return engine.Refused("bad_config", "%w", err)
	}
	return engine.AsError(err)
}

// say prints one message of the runner's own.
func (a *app) say(message, fix string) {
	text := "engine: " + review.Visible(message) + "\n"
	if fix != "" {
		text += "  fix: " + review.Visible(fix) + "\n"
	}
	// There is nowhere left to report that stderr cannot be written.
	_, _ = io.WriteString(a.stderr, text)
}

// printJSON prints v on one line of stdout.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return written(enc.Encode(v))
}

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

// maxInput bounds what is read from a file or from stdin.
const maxInput = 128 << 20

// input reads an argument: JSON as it is, @file, or - for stdin. "" is nothing.
func (a *app) input(arg string) ([]byte, error) {
	from := io.Reader(a.stdin)
	switch path, isFile := strings.CutPrefix(arg, "@"); {
	case isFile:
		f, err := os.Open(path)
		if err != nil {
			return nil, engine.Refused("bad_arguments", "cannot read the arguments: %w", err)
		}
		defer f.Close()
		from = f
	case arg != "-":
		return []byte(arg), nil
	}
	data, err := io.ReadAll(io.LimitReader(from, maxInput+1))
	if err != nil {
		return nil, engine.Refused("bad_arguments", "cannot read the arguments: %w", err)
	}
	if len(data) > maxInput {
		return nil, engine.Refused("bad_arguments", "cannot read more than %d bytes of arguments", maxInput)
	}
	return data, nil
}

// loadConfig reads the config, with the directories of the command line in it.
func (a *app) loadConfig() (config.Config, error) {
	c, err := a.readConfig()
	if err != nil {
		return config.Config{}, err
	}
	for _, d := range []struct {
		flag string
		dir  *string
	}{{a.stateDir, &c.StateDir}, {a.runDir, &c.RunDir}, {a.cgroupRoot, &c.CgroupRoot}} {
		if d.flag != "" {
			*d.dir = d.flag
		}
	}
	return c, nil
}

func (a *app) readConfig() (config.Config, error) {
	if a.configPath == "" && a.inline != nil {
		return config.Parse("$"+config.Variable, a.inline)
	}
	return config.Load(a.configPath)
}

// runner makes a runner of the config.
func (a *app) runner() (*capability.Runner, config.Config, error) {
	c, err := a.loadConfig()
	if err != nil {
		return nil, c, err
	}
	key, err := receiptKey(c)
	if err != nil {
		return nil, c, err
	}
	return c.Runner(key, os.Getenv("CREDENTIALS_DIRECTORY")), c, nil
}

// optional returns args[i], or "".
func optional(args []string, i int) string {
	if i < len(args) {
		return args[i]
	}
	return ""
}
