package main

import (
	"github.com/spf13/cobra"
)

func (a *app) killCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kill ID...",
		Short: "end runs, with reason cancelled",
		Args:  atLeastOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(args, func(id string) error { return a.host.Kill(cmd.Context(), id) })
		},
	}
}

func (a *app) rmCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm ID...",
		Short: "delete what is on record about runs that have ended",
		Args:  atLeastOne,
		RunE:  func(_ *cobra.Command, args []string) error { return a.each(args, a.host.Remove) },
	}
}

// each does something to everything that is named, and goes on past what it
// fails for.
func (a *app) each(names []string, do func(name string) error) error {
	for _, name := range names {
		if err := do(name); err != nil {
			e := asError(err)
			a.say(e.Message, e.Fix)
			a.status = statusRefused
			continue
		}
		if err := a.print(name + "\n"); err != nil {
			return err
		}
	}
	return nil
}
