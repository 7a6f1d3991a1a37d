package main

import (
	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/cmd/cli"
)

func (a *app) inspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect ID",
		Short: "print all that is on record about a run, as JSON",
		Args:  cli.Exactly(1),
		RunE: func(_ *cobra.Command, args []string) error {
			record, err := a.host.Load(args[0])
			if err != nil {
				return err
			}
			if record.Result != nil {
				a.host.FillOutput(record.Result)
			}
			return a.show(record)
		},
	}
	a.addShowFlags(cmd)
	return cmd
}

// addShowFlags defines the flags of a command that prints JSON anyway.
func (a *app) addShowFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.json, "json", false, "print it on one line")
}

// show prints v as JSON, for people unless it is to be on one line.
func (a *app) show(v any) error {
	if a.json {
		return a.PrintJSON(v)
	}
	return a.PrintIndented(v)
}
