package main

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/action"
	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
)

func (a *app) actionCommand() *cobra.Command {
	create := &cobra.Command{
		Use:   "new DIR",
		Short: "write a small action that works, to be changed",
		Args:  cli.Between(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := action.New(args[0], filepath.Base(args[0])); err != nil {
				return engine.Refused("bad_arguments", "cannot write action=%s: %w", args[0], err).WithFix("name a directory that does not exist yet")
			}
			return nil
		},
	}
	check := &cobra.Command{
		Use:   "check DIR",
		Short: "say everything that is wrong with an action",
		Args:  cli.Between(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			act, err := action.Open(args[0], sandbox.Profile{}, nil)
			if err != nil {
				return engine.Refused("bad_action", "cannot use action=%s: %w", args[0], err)
			}
			info := act.Info()
			if a.json {
				return a.PrintJSON(info)
			}
			return a.Print(info.Name + "  [action/" + string(info.Hazard) + "]  " + info.Description + "\n")
		},
	}
	check.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return cli.Group("action", "capabilities of your own", create, check, a.actionTestCommand())
}

func (a *app) actionTestCommand() *cobra.Command {
	f := &callFlags{}
	project := ""
	cmd := &cobra.Command{
		Use:   "test DIR [JSON|@FILE|-]",
		Short: "run an action that is not installed yet",
		Long: "test runs an action once in a sandbox, as engine call would if it were installed.\n" +
			"Nobody approves it, so the config has to be in development mode. It has the\n" +
			"secrets of --project.",
		Args: cli.Between(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error { return a.testAction(cmd.Context(), f, project, args) },
	}
	cmd.Flags().StringVar(&project, "project", "", "`SLUG` of the project to run it for")
	cmd.Flags().StringVar(&f.environment, "environment", "", "`NAME` of the project's environment, where it has several")
	cmd.Flags().BoolVar(&f.quiet, "quiet", false, "no progress on stderr")
	cmd.Flags().BoolVar(&a.json, "json", false, "print errors as JSON on stdout too")
	return cmd
}

func (a *app) testAction(ctx context.Context, f *callFlags, project string, args []string) error {
	if project == "" {
		return engine.Refused("bad_arguments", "cannot test an action without a project: it has the secrets of one").
			WithFix("name a project of the config with --project")
	}
	r, c, err := a.runner()
	if err != nil {
		return err
	}
	p, ok := r.Projects[project]
	switch {
	case !ok:
		return engine.Refused("no_project", "cannot find project=%q in the config", project).
			WithFix("see engine capabilities for the projects of the config")
	case !c.Development:
		return engine.Refused("not_approved", "cannot test an action: this runner is not in development mode").
			WithFix("set development: true in a config for development, or install and approve the action")
	case c.Sandbox == nil:
		return engine.Refused("no_sandbox", "cannot test an action: the config has no sandbox")
	}
	act, err := action.Open(args[0], c.Profile(), c.Installer())
	if err != nil {
		return engine.Refused("bad_action", "cannot use action=%s: %w", args[0], err)
	}
	p.Built, p.Load = []capability.Capability{act}, nil
	r.Projects[project] = p
	call, err := a.readCall(f, []string{project, act.Info().Name, optional(args, 1)})
	if err != nil {
		return err
	}
	call.ApproveLocally = true
	return a.dispatch(ctx, r, c, f, call)
}
