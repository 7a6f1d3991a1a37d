package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/spelling"
)

// Root gives the first command of a program what all of them are to have: errors that
// are returned and not printed, flags that explain themselves, and a help command that
// knows no command that is not there.
func Root(root *cobra.Command) *cobra.Command {
	root.Args, root.RunE = UnknownCommand, help
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(helpCommand(root))
	root.PersistentFlags().SortFlags = false
	return root
}

// Group is a command that only has subcommands.
func Group(use, short string, subcommands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: UnknownCommand, RunE: help}
	cmd.AddCommand(subcommands...)
	return cmd
}

func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "say what a command does, and its flags",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil {
				return err
			}
			if cmd.DisableFlagParsing {
				return cmd.RunE(cmd, rest) // it has no help of its own here
			}
			if len(rest) > 0 && cmd.HasSubCommands() {
				return UnknownCommand(cmd, rest)
			}
			cmd.InitDefaultHelpFlag() // or it is missing from the flags that are shown
			return cmd.Help()
		},
	}
}

// UnknownCommand is the check of arguments of a command that only has subcommands: any
// argument is the name of one that does not exist.
func UnknownCommand(cmd *cobra.Command, args []string) error {
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
	if best := spelling.Nearest(args[0], names); best != "" {
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
	var invalid *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	switch {
	case errors.As(err, &unknown):
		return unknownFlag(cmd, unknown).WithFix(nearestFlag(cmd, unknown, help))
	case errors.As(err, &invalid):
		return engine.Refused("bad_flag", "cannot accept --%s=%q: want %s", invalid.GetFlag().Name, invalid.GetValue(), wanted(invalid.GetFlag())).WithFix(help)
	case errors.As(err, &missing):
		return engine.Refused("bad_flag", "cannot accept --%s: it has no value", missing.GetFlag().Name).WithFix(help)
	}
	return engine.Refused("bad_flag", "cannot read the flags: %w", err).WithFix(help)
}

// wanted names what a flag of a plain type takes.
func wanted(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "bool":
		return "true, false, or no value"
	case "int", "int64", "uint", "uint64":
		return "a whole number"
	case "duration":
		return "a time like 10m or 1h30m"
	}
	return "another value"
}

func unknownFlag(cmd *cobra.Command, err *pflag.NotExistError) *engine.Error {
	dashes := "--"
	if err.GetSpecifiedShortnames() != "" {
		dashes = "-"
	}
	return engine.Refused("unknown_flag", "cannot accept %s%s: %s has no such flag", dashes, err.GetSpecifiedName(), cmd.CommandPath())
}

func nearestFlag(cmd *cobra.Command, err *pflag.NotExistError, otherwise string) string {
	if err.GetSpecifiedShortnames() != "" {
		return otherwise
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if best := spelling.Nearest(err.GetSpecifiedName(), names); best != "" {
		return "did you mean --" + best + "?"
	}
	return otherwise
}

// Exactly checks that a command got the arguments that its usage line names.
func Exactly(n int) cobra.PositionalArgs { return Between(n, n) }

// AtLeastOne checks that a command got something to work on.
func AtLeastOne(cmd *cobra.Command, args []string) error {
	return Between(1, len(args))(cmd, args)
}

// Between checks that a command got the arguments that its usage line names, of which
// the last may be left out.
func Between(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		return engine.Refused("bad_arguments", "cannot accept %s: want %s", arguments(len(args)), cmd.UseLine())
	}
}

func arguments(n int) string {
	switch n {
	case 0:
		return "no arguments"
	case 1:
		return "1 argument"
	}
	return fmt.Sprintf("%d arguments", n)
}
