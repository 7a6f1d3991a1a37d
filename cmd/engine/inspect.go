package main

import (
	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/cmd/cli"
)

func (a *app) inspectCommand() *cobra.Command {
	return &cobra.Command{
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
			return a.PrintIndented(record)
		},
	}
}
