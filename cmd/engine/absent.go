package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/direct-oci/engine/engine"
)

// absent are commands whose names are taken and whose work no part of this
// version does. They are refused by name, so that a script which relies on one
// is told why it failed.
var absent = []struct{ name, what string }{
	{"stats", "figures of a run that is still going"},
	{"events", "a stream of events"},
	{"changes", "changes to a workspace"},
	{"apply", "changes to a workspace"},
	{"discard", "changes to a workspace"},
	{"step", "runs in several steps"},
}

func absentCommands() []*cobra.Command {
	var commands []*cobra.Command
	for _, c := range absent {
		commands = append(commands, absentCommand(c.name, "has no "+c.what))
	}
	return commands
}

// absentCommand refuses whatever it is given: this version <lacks>.
func absentCommand(name, lacks string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return engine.Refused("not_available", "cannot do %q: this version %s", cmd.CommandPath(), lacks)
		},
	}
}

// later defines a flag that is refused with the reason, and not shown.
func later(flags *pflag.FlagSet, name, typ, why string) *pflag.Flag {
	f := flags.VarPF(&value{typ: typ, set: func(string) error {
		return engine.Refused("not_available", "cannot accept --%s: %s", name, why)
	}}, name, "", "")
	f.Hidden = true
	return f
}
