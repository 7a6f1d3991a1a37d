package main

import (
	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/capability/workload"
	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
)

func (a *app) digestCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "digest [JSON|@FILE|-]",
		Short: "print the digest of a workload spec",
		Long:  "digest prints the SHA-256 of the arguments of workload.execute, the same as a\nJavaScript program computes. Without an argument it reads stdin.",
		Args:  cli.Between(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			arg := optional(args, 0)
			if arg == "" {
				arg = "-"
			}
			data, err := a.input(arg)
			if err != nil {
				return err
			}
			v, err := jsjson.Parse(data)
			if err != nil {
				return engine.Refused("bad_arguments", "cannot read the spec: %w", err)
			}
			spec, err := workload.ParseSpec(v)
			if err != nil {
				return engine.Refused("bad_arguments", "%w", err)
			}
			if a.json {
				return a.PrintJSON(map[string]string{"digest": spec.Digest()})
			}
			return a.Print(spec.Digest() + "\n")
		},
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return cmd
}
