package main

import (
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/cmd/cli"
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
	cli.Output
	stdin, stdout, stderr *os.File

	inline     []byte // the config, if it was all in the environment
	configPath string
	stateDir   string // from the command line; "": the config's
	runDir     string
	cgroupRoot string
	json       bool
	status     int
	failStatus int // what it exits with when something failed; 0: the usual one
}

func newApp(stdin, stdout, stderr *os.File) *app {
	return &app{Output: cli.Output{Stdout: stdout, Stderr: stderr}, stdin: stdin, stdout: stdout, stderr: stderr}
}

// main runs the command that args name and returns the exit status.
func (a *app) main(args []string) int {
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	if err := root.Execute(); err != nil {
		a.json = a.json || cli.Given(args, "--json")
		return a.refuse(err)
	}
	return a.status
}

func (a *app) rootCommand() *cobra.Command {
	root := cli.Root(&cobra.Command{Use: "engine", Short: "the governed runner's commands"})
	flags := root.PersistentFlags()
	flags.StringVar(&a.configPath, "config", "", "`FILE` of the config (default $"+config.Variable+" or "+config.DefaultPath+")")
	flags.StringVar(&a.stateDir, "state-dir", "", "`DIR` of records and images, instead of the config's")
	flags.StringVar(&a.runDir, "run-dir", "", "`DIR` of what does not outlive a boot, instead of the config's")
	flags.StringVar(&a.cgroupRoot, "cgroup-root", "", "`DIR` of the cgroups of all runs, instead of the config's")
	root.AddCommand(
		a.capabilitiesCommand(), a.callCommand(), a.digestCommand(), a.approveCommand(),
		a.verifyCommand(), a.auditCommand(), a.actionCommand(), a.configCommand(), a.serveCommand(), a.sandboxCommand(), a.controlplaneCommand(),
	)
	return root
}

// refuse reports an error, in JSON on stdout if that is where the answer would be.
func (a *app) refuse(err error) int {
	e := asError(err)
	var violations capability.Violations
	errors.As(err, &violations)
	a.Say(e.Message, e.Fix)
	if a.json {
		v := struct {
			Error      *engine.Error         `json:"error"`
			Violations capability.Violations `json:"violations,omitempty"`
		}{e, violations}
		if err := a.PrintJSON(v); err != nil {
			a.Say(err.Error(), "")
		}
	}
	if a.failStatus != 0 {
		return a.failStatus
	}
	return statusRefused
}

// asError makes an *engine.Error of whatever a command returned.
func asError(err error) *engine.Error {
	var bad *config.Error
	if errors.As(err, &bad) {
		return engine.Refused("bad_config", "%w", err)
	}
	return cli.AsError(err)
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
		if info, err := os.Stat(arg); err == nil && info.Mode().IsRegular() {
			return nil, engine.Refused("bad_arguments", "cannot read the arguments: %s is a file, not JSON", arg).
				WithFix("write @" + arg + " for what the file holds")
		}
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
		return config.Inline(a.inline)
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
