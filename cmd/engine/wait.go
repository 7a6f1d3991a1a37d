package main

import (
	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/cmd/cli"
)

func (a *app) waitCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:         "wait [flags] ID",
		Short:       "wait for a run to end, and exit as engine run would have",
		Annotations: map[string]string{printsResult: "yes"},
		Args:        cli.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			record, err := a.host.Await(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.report(*record.Result, record.Request.Limits)
		},
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print the JSON result")
	cmd.Flags().BoolVar(&a.Quiet, "quiet", false, "print nothing of the engine's own on stderr")
	return cmd
}
