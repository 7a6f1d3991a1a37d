package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
)

func (a *app) gcCommand() *cobra.Command {
	dryRun := false
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "reclaim what dead runs left on the host",
		Args:  cli.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			actions, err := a.host.GC(cmd.Context(), dryRun)
			if err != nil && len(actions) == 0 {
				return err
			}
			// What was done is told, even if not all of it could be.
			if printErr := a.printActions(actions); printErr != nil {
				return printErr
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be done")
	cmd.Flags().BoolVar(&a.json, "json", false, "print what was done as one JSON array")
	return cmd
}

func (a *app) printActions(actions []engine.GCAction) error {
	if a.json {
		if actions == nil {
			actions = []engine.GCAction{}
		}
		return a.PrintJSON(actions)
	}
	var b strings.Builder
	for _, act := range actions {
		fmt.Fprintf(&b, "%s  %s %s: %s\n", cli.Cell(act.ID), cli.Escape(act.Action), cli.Escape(act.Object), cli.Escape(act.Why))
	}
	return a.Print(b.String())
}
