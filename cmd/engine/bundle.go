package main

import (
	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/engine"
)

func (a *app) bundleCommand() *cobra.Command {
	r := newRequest()
	var dir string
	cmd := &cobra.Command{
		Use:   "bundle [flags] -o DIR [--] [COMMAND [ARG...]]",
		Short: "write the bundle that run would use, and stop",
		Long: "bundle writes an OCI bundle that another runtime can run by itself: the command in\n" +
			"place of the engine's own init, the seccomp profile in config.json, and no secrets.",
		Example: "  engine bundle -o /tmp/bundle --image debian -- sh -c 'echo hello'\n  runc run --bundle /tmp/bundle try",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.setCommand(cmd, args); err != nil {
				return err
			}
			return a.bundle(cmd, r, dir)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.SetInterspersed(false)
	flags.StringVarP(&dir, "output", "o", "", "`DIR` to write, which must not exist")
	r.addProgramFlags(flags)
	r.addLimitFlags(flags)
	return cmd
}

func (a *app) bundle(cmd *cobra.Command, r *request, dir string) error {
	if dir == "" {
		return engine.Refused("bad_arguments", "cannot write a bundle nowhere: want %s", cmd.UseLine())
	}
	if len(r.secrets) > 0 {
		return engine.Refused("bad_secret", "cannot accept --secret=%s: a bundle holds no secrets", r.secrets[0].Name)
	}
	if err := r.finish(); err != nil {
		return err
	}
	return a.host.Bundle(cmd.Context(), r.Request, dir)
}
