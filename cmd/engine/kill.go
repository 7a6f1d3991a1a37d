package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
)

func (a *app) killCommand() *cobra.Command {
	return a.addEachFlags(&cobra.Command{
		Use:   "kill ID...",
		Short: "end runs, with reason cancelled",
		Args:  cli.AtLeastOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(args, func(id string) error { return a.host.Kill(cmd.Context(), id) })
		},
	})
}

func (a *app) rmCommand() *cobra.Command {
	var older time.Duration
	cmd := a.addEachFlags(&cobra.Command{
		Use:     "rm [--older-than DURATION | ID...]",
		Short:   "delete what is on record about runs that have ended",
		Example: "  engine rm 4dl2 kpgo\n  engine rm --older-than 168h",
		RunE: func(cmd *cobra.Command, args []string) error {
			if (older > 0) == (len(args) > 0) {
				return engine.Refused("bad_arguments", "cannot choose what to delete: want ids, or --older-than, and not both")
			}
			if older > 0 {
				var err error
				if args, err = a.host.Over(cmd.Context(), time.Now().Add(-older)); err != nil {
					return err
				}
			}
			return a.each(args, func(id string) error { return a.remove(cmd.Context(), id) })
		},
	})
	durationFlag(cmd.Flags(), &older, "older-than", "all runs that have been over for longer than this, but no sandboxes that stay")
	return cmd
}

// teardownTime bounds how long a monitor needs for what the caller of a run was
// not kept waiting for.
const teardownTime = 10 * time.Second

// remove deletes the record of a run that has ended. A monitor may still be
// tearing down a run whose result is known already: that is waited for.
func (a *app) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, teardownTime)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := a.host.Remove(id)
		var e *engine.Error
		if !errors.As(err, &e) || e.Kind != "running" {
			return err
		}
		if record, loadErr := a.host.Load(id); loadErr != nil || record.Result == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// each does something to everything that is named, and goes on past what it
// fails for.
func (a *app) each(names []string, do func(name string) error) error {
	failed, err := a.Each(names, a.json, do)
	if failed {
		a.status = statusRefused
	}
	return err
}

// addEachFlags defines the flags of a command that does something to all it names.
func (a *app) addEachFlags(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&a.json, "json", false, "print what became of each as one JSON array of name and error")
	return cmd
}
