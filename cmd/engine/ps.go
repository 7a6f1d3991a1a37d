package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
)

func (a *app) psCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "list the runs on record, the newest first",
		Args:  cli.Exactly(0),
		RunE: func(*cobra.Command, []string) error {
			records, err := a.host.List()
			if err != nil {
				return err
			}
			if a.json {
				if records == nil {
					records = []engine.Record{}
				}
				return a.PrintJSON(records)
			}
			if err := a.Print(table(records, time.Now())); err != nil {
				return err
			}
			for _, r := range records {
				for _, p := range r.Problems {
					a.Say(p, "see engine inspect "+r.ID)
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print the records as one JSON array")
	return cmd
}

// table shows the records as they were at now.
func table(records []engine.Record, now time.Time) string {
	rows := [][]string{{"ID", "STATE", "REASON", "RUNTIME", "IMAGE", "AGE", "DURATION", "COMMAND"}}
	for _, r := range records {
		rows = append(rows, []string{
			r.ID, string(r.State), reason(r), runtimeOf(r), cli.Cell(imageOf(r)), cli.Age(now.Sub(r.Created)), duration(r, now), cli.Cell(command(r)),
		})
	}
	return cli.Table(rows)
}

// command is what runs, or that it is a session.
func command(r engine.Record) string {
	if r.Request.Session != nil {
		return "(session)"
	}
	return strings.Join(r.Request.Command, " ")
}

// reason is why the run stopped, or why it never will by itself.
func reason(r engine.Record) string {
	switch {
	case r.Result == nil && !r.Alive:
		return "no monitor"
	case r.Result == nil:
		return "-"
	case r.Result.Reason == nil:
		return "refused"
	case r.Result.ExitCode != nil:
		return fmt.Sprintf("%s %d", *r.Result.Reason, *r.Result.ExitCode)
	case r.Result.Signal != nil:
		return fmt.Sprintf("%s %s", *r.Result.Reason, *r.Result.Signal)
	}
	return string(*r.Result.Reason)
}

func runtimeOf(r engine.Record) string {
	if r.Result != nil && r.Result.Runtime.Name != "" {
		return r.Result.Runtime.Name
	}
	return r.Request.Runtime
}

func imageOf(r engine.Record) string {
	if r.Request.Image != "" {
		return r.Request.Image
	}
	return r.Request.Rootfs
}

// duration is how long the program ran, or has been running.
func duration(r engine.Record, now time.Time) string {
	switch {
	case r.Result != nil:
		return short(time.Duration(r.Result.DurationMs * float64(time.Millisecond)))
	case r.Started != nil && r.Alive:
		return short(now.Sub(*r.Started))
	}
	return "-"
}

// short writes a time with two or three digits that matter.
func short(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond / 10).String()
	case d < time.Minute:
		return d.Round(time.Second / 10).String()
	}
	return d.Round(time.Second).String()
}
