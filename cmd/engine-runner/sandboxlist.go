package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
)

// filterFlags defines the flags that choose sandboxes.
func filterFlags(flags *pflag.FlagSet, filter *client.SandboxFilter) {
	flags.StringVar(&filter.Owner, "owner", "", "only those of this `NAME`")
	pairsFlag(flags, &filter.Labels, "label", "`K=V`: only those with this label; repeatable")
	flags.StringArrayVar(&filter.States, "state", nil, "only those in this `STATE`: queued, starting, ready, paused or ended; repeatable")
}

func (a *app) sandboxListCommand(f *serviceFlags) *cobra.Command {
	filter := client.SandboxFilter{}
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "list sandboxes, the newest first",
		Example: "  engine sandbox ls --state ready --label team=data\n  engine sandbox ls --json | jq -r '.[].name'",
		Args:    cli.Exactly(0),
		RunE: a.onService(f, func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := c.Sandboxes(ctx, filter)
			if err != nil {
				return err
			}
			if a.json {
				return a.PrintJSON(list.Sandboxes)
			}
			return a.Print(sandboxTable(list.Sandboxes, time.Now()))
		}),
	}
	cmd.Flags().SortFlags = false
	filterFlags(cmd.Flags(), &filter)
	cmd.Flags().BoolVar(&a.json, "json", false, "print the sandboxes as one JSON array")
	return cmd
}

// sandboxTable shows sandboxes as they are at now.
func sandboxTable(list []wire.Sandbox, now time.Time) string {
	rows := [][]string{{"NAME", "ID", "OWNER", "STATE", "IMAGE", "CPUS", "MEMORY", "AGE", "LEFT", "LABELS"}}
	for _, s := range list {
		left := "-"
		if s.Alive && s.Deadline != nil {
			left = cli.Age(s.Deadline.Sub(now))
		}
		rows = append(rows, []string{
			cli.Cell(s.Name), cli.Cell(s.ID), cli.Cell(s.Owner), cli.Cell(stateOf(s)), cli.Cell(s.Image + s.Rootfs),
			fmt.Sprintf("%g", s.Limits.CPUs), fmt.Sprintf("%dMiB", s.Limits.MemoryMB), cli.Age(now.Sub(s.CreatedAt)), left, cli.Cell(labelsOf(s)),
		})
	}
	return cli.Table(rows)
}

// stateOf is a sandbox's state, and why it ended.
func stateOf(s wire.Sandbox) string {
	if s.Result == nil || s.Result.Reason == nil {
		return s.State
	}
	return s.State + " (" + *s.Result.Reason + ")"
}

func labelsOf(s wire.Sandbox) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		pairs = append(pairs, key+"="+s.Labels[key])
	}
	return strings.Join(pairs, ",")
}

func (a *app) sandboxInspectCommand(f *serviceFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect NAME",
		Short: "print all that is known of a sandbox and of its programs, as JSON",
		Args:  cli.Exactly(1),
		RunE: a.onService(f, func(ctx context.Context, c *client.Client, args []string) error {
			one, err := c.Sandbox(ctx, args[0])
			if err != nil {
				return err
			}
			list, err := c.Execs(ctx, one.ID)
			if err != nil {
				return err
			}
			show := a.PrintIndented
			if a.json {
				show = a.PrintJSON
			}
			return show(struct {
				wire.Sandbox
				Execs []wire.Exec `json:"execs"`
			}{one, list.Execs})
		}),
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print it on one line")
	return cmd
}

func (a *app) sandboxStatsCommand(f *serviceFlags) *cobra.Command {
	follow := false
	cmd := &cobra.Command{
		Use:   "stats NAME",
		Short: "say what a sandbox used until now, and uses now",
		Long: "stats prints processor time, memory, processes and bytes of the network, as the host's\n" +
			"kernel counts them. What it does not count is -.",
		Args: cli.Exactly(1),
		RunE: a.onService(f, func(ctx context.Context, c *client.Client, args []string) error {
			if !follow {
				now, err := c.SandboxStats(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printStats(now, true)
			}
			return a.followStats(ctx, c, args[0])
		}),
	}
	cmd.Flags().BoolVar(&follow, "follow", false, "print them every second until the sandbox ends")
	cmd.Flags().BoolVar(&a.json, "json", false, "print each as a line of JSON")
	return cmd
}

func (a *app) followStats(ctx context.Context, c *client.Client, name string) error {
	first := true
	for now, err := range c.FollowStats(ctx, name) {
		if client.IsKind(err, "not_running") && !first {
			return nil // it has ended
		}
		if err != nil {
			return err
		}
		if err := a.printStats(now, first); err != nil {
			return err
		}
		first = false
	}
	return nil
}

const statsForm = "%-8s  %10s  %10s  %10s  %6s  %10s  %10s  %s\n"

func (a *app) printStats(s wire.Stats, head bool) error {
	if a.json {
		return a.PrintJSON(s)
	}
	text := ""
	if head {
		text = fmt.Sprintf(statsForm, "TIME", "CPU", "MEMORY", "PEAK", "PIDS", "RECEIVED", "SENT", "STATE")
	}
	state := "ready"
	if s.Paused {
		state = "paused"
	}
	u := s.Usage
	return a.Print(text + fmt.Sprintf(statsForm, s.Time.Local().Format(time.TimeOnly), figure(u.BusyCPUSecs, "%.2fs"),
		bytesText(s.MemoryBytes), bytesText(u.PeakMemBytes), figure(s.Pids, "%d"), bytesText(u.RxBytes), bytesText(u.TxBytes), state))
}

// figure writes one that may not be known.
func figure[T any](p *T, form string) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprintf(form, *p)
}

// bytesText writes a number of bytes with three digits that matter.
func bytesText(p *int64) string {
	if p == nil {
		return "-"
	}
	n, unit := float64(*p), 0
	for n >= 1000 && unit < 4 {
		n, unit = n/1024, unit+1
	}
	return fmt.Sprintf("%.3g%s", n, [...]string{"B", "KiB", "MiB", "GiB", "TiB"}[unit])
}

func (a *app) sandboxPauseCommand(f *serviceFlags) *cobra.Command {
	return a.eachSandbox(f, "pause", "stop every process where it stands; deadlines go on", func(ctx context.Context, c *client.Client, name string) error {
		_, err := c.PauseSandbox(ctx, name)
		return err
	})
}

func (a *app) sandboxResumeCommand(f *serviceFlags) *cobra.Command {
	return a.eachSandbox(f, "resume", "let the processes of a paused sandbox go on", func(ctx context.Context, c *client.Client, name string) error {
		_, err := c.ResumeSandbox(ctx, name)
		return err
	})
}

// eachSandbox is a command that does something to each sandbox that it names.
func (a *app) eachSandbox(f *serviceFlags, verb, short string, do func(context.Context, *client.Client, string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   verb + " NAME...",
		Short: short,
		Args:  cli.AtLeastOne,
		RunE: a.onService(f, func(ctx context.Context, c *client.Client, args []string) error {
			return a.toEach(args, func(name string) error { return do(ctx, c, name) })
		}),
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print what became of each as one JSON array of name and error")
	return cmd
}

func (a *app) toEach(names []string, do func(name string) error) error {
	failed, err := a.Each(names, a.json, func(name string) error { return fromService(do(name)) })
	if failed {
		a.status = statusRefused
	}
	return err
}

func (a *app) sandboxRenewCommand(f *serviceFlags) *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:     "renew NAME",
		Short:   "give a sandbox a time to live from now on, and print when it is over",
		Example: "  engine sandbox renew dev --ttl 8h",
		Args:    cli.Exactly(1),
		RunE: a.onService(f, func(ctx context.Context, c *client.Client, args []string) error {
			renewed, err := c.RenewSandbox(ctx, args[0], ttl)
			if err != nil {
				return err
			}
			if a.json {
				return a.PrintJSON(renewed)
			}
			return a.Print(renewed.Deadline.Format(time.RFC3339) + "\n")
		}),
	}
	timeFlag(cmd.Flags(), &ttl, "ttl", "`DURATION` (default that which it was created with)")
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return cmd
}

func (a *app) sandboxRemoveCommand(f *serviceFlags) *cobra.Command {
	filter := client.SandboxFilter{}
	cmd := &cobra.Command{
		Use:   "rm NAME... | rm --owner NAME | rm --label K=V",
		Short: "tear sandboxes down; one that is gone is a success",
		Long: "rm tears down the sandboxes that it names, or all that an owner or a label chooses; then\n" +
			"it prints how many there were.",
		Example: "  engine sandbox rm dev job-7\n  engine sandbox rm --owner wf:1 --state ended",
		RunE: a.onService(f, func(ctx context.Context, c *client.Client, args []string) error {
			chosen := filter.Owner != "" || len(filter.Labels) > 0 || len(filter.States) > 0
			if chosen == (len(args) > 0) {
				return engine.Refused("bad_arguments", "cannot tear down sandboxes: want names, or a filter").WithFix("see engine sandbox rm --help")
			}
			if !chosen {
				return a.toEach(args, func(name string) error { return c.RemoveSandbox(ctx, name) })
			}
			removed, err := c.RemoveSandboxes(ctx, filter)
			if err != nil {
				return err
			}
			if a.json {
				return a.PrintJSON(removed)
			}
			return a.Print(fmt.Sprintf("%d\n", removed.Count))
		}),
	}
	cmd.Flags().SortFlags = false
	filterFlags(cmd.Flags(), &filter)
	cmd.Flags().BoolVar(&a.json, "json", false, "print what became of each as one JSON array of name and error, or the count")
	return cmd
}
