package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
)

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  cli.Exactly(0),
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.PrintJSON(struct {
					Version string `json:"version"`
					Go      string `json:"go"`
					Arch    string `json:"arch"`
				}{engine.Version, runtime.Version(), runtime.GOARCH})
			}
			return a.Print(fmt.Sprintf("engine %s %s linux/%s\n", engine.Version, runtime.Version(), runtime.GOARCH))
		},
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return cmd
}
