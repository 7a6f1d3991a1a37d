package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/oci"
)

// createFlags are those of create that are no field of the request as they stand.
type createFlags struct {
	ask       wire.SandboxRequest
	ttl, idle time.Duration // idle below zero: not given
}

const mebibyte = 1 << 20

func (a *app) sandboxCreateCommand(f *serviceFlags) *cobra.Command {
	o := &createFlags{idle: -1}
	cmd := &cobra.Command{
		Use:   "create [flags] NAME",
		Short: "make a sandbox, or adopt the one that its owner has under this name",
		Long: "create makes a sandbox and prints its id once programs can be started in it. One of this\n" +
			"name that lives and has the same owner is adopted as it is, which is told on stderr.",
		Example: "  engine sandbox create dev --image debian --memory 1GiB --ttl 8h --idle 30m\n" +
			"  engine sandbox create job-7 --class large --allow packages.example.com --label team=data",
		Args: cli.Exactly(1),
		RunE: a.onService(f, func(ctx context.Context, c *client.Client, args []string) error {
			return a.createSandbox(ctx, c, o, args[0])
		}),
	}
	flags, ask := cmd.Flags(), &o.ask
	flags.SortFlags = false
	flags.StringVar(&ask.Owner, "owner", "", "`NAME` of who may adopt it (default yourself)")
	flags.StringVar(&ask.Image, "image", "", "`NAME` of the image (default the service's)")
	flags.StringVar(&ask.Rootfs, "rootfs", "", "`DIR` of the service's host instead of an image; for admins alone")
	flags.StringVar(&ask.Runtime, "runtime", "", "`NAME` of the runtime: "+strings.Join(engine.Runtimes, ", ")+" (default the service's)")
	flags.StringVar(&ask.Class, "class", "", "`NAME` of a size of the service's, as small, large or heavy, instead of --cpus and --memory")
	flags.Float64Var(&ask.CPUs, "cpus", 0, "`NUMBER` of processors; 0.5 is half of one (default 1)")
	flags.Func("memory", "`SIZE` of its memory; no swap (default 512MiB)", func(text string) error {
		n, err := oci.ParseSize(text)
		if err != nil {
			return engine.Refused("bad_limit", "cannot accept --memory=%.40q: %w", text, err)
		}
		ask.MemoryMB = (n + mebibyte - 1) / mebibyte
		return nil
	})
	flags.Int64Var(&ask.Pids, "pids", 0, "`NUMBER` of processes and threads (default the service's)")
	timeFlag(flags, &o.ttl, "ttl", "`DURATION` that it lives, at most (default the service's)")
	timeFlag(flags, &o.idle, "idle", "`DURATION` without anything to do that ends it; 0 for none (default the service's)")
	pairsFlag(flags, &ask.Env, "env", "`K=V`: environment variable of every program in it; repeatable")
	pairsFlag(flags, &ask.Labels, "label", "`K=V`: label to find it by; repeatable")
	flags.StringArrayVar(&ask.Egress, "allow", nil, "`HOST[:PORT]` to reach by name, or *.DOMAIN; no port is 80 and 443; repeatable")
	flags.Func("allow-cidr", "`CIDR:PORT[/udp]` to reach, the port may be *; repeatable", func(text string) error {
		ask.Egress = append(ask.Egress, text)
		return nil
	})
	flags.Func("mount", "`WHAT` it sees of the service's stores: resource=ID, step=ID, library, references, or readonly for no step; repeatable", o.addMount)
	flags.BoolVar(&a.json, "json", false, "print all that is known of it as JSON, and whether it was adopted")
	return cmd
}

// addMount takes one part of the plan of what a sandbox sees of the host.
func (o *createFlags) addMount(text string) error {
	if o.ask.Mounts == nil {
		o.ask.Mounts = &wire.Mounts{}
	}
	m := o.ask.Mounts
	key, id, named := strings.Cut(text, "=")
	switch {
	case key == "resource" && id != "":
		m.Resource = id
	case key == "step" && id != "":
		m.Step = id
	case key == "library" && !named:
		m.Library = true
	case key == "references" && !named:
		m.References = true
	case key == "readonly" && !named:
		m.ReadOnly = true
	default:
		return engine.Refused("bad_mount", "cannot accept --mount=%q: want resource=ID, step=ID, library, references or readonly", text).
			WithFix("bring other directories in with engine sandbox cp")
	}
	return nil
}

// request is what the flags come to. A size that nobody names is that of engine run.
func (o *createFlags) request(name string) (wire.SandboxRequest, error) {
	ask := o.ask
	ask.Name, ask.TTLSeconds = name, o.ttl.Seconds()
	if o.idle >= 0 {
		ask.IdleSeconds = o.idle.Seconds()
		if o.idle == 0 {
			ask.IdleSeconds = -1
		}
	}
	if limits := engine.DefaultLimits(); ask.Class == "" {
		if ask.CPUs == 0 {
			ask.CPUs = limits.CPUs
		}
		if ask.MemoryMB == 0 {
			ask.MemoryMB = limits.Memory / mebibyte
		}
	}
	if ask.Rootfs != "" {
		abs, err := filepath.Abs(ask.Rootfs)
		if err != nil {
			return ask, engine.Failed("bad_root", "cannot find --rootfs=%q: %w", ask.Rootfs, err)
		}
		ask.Rootfs = abs
	}
	return ask, nil
}

func (a *app) createSandbox(ctx context.Context, c *client.Client, o *createFlags, name string) error {
	ask, err := o.request(name)
	if err != nil {
		return err
	}
	one, adopted, err := c.CreateOrAdopt(ctx, ask)
	if err != nil {
		return err
	}
	if adopted {
		a.Say("sandbox "+one.Name+" is adopted as it is: its owner "+one.Owner+" had it already", "")
	}
	for _, l := range one.Clamped {
		a.Say(clampedText(l), "")
	}
	if !a.json {
		return a.Print(cli.Escape(one.ID) + "\n")
	}
	return a.PrintJSON(struct {
		wire.Sandbox
		Adopted bool `json:"adopted"`
	}{one, adopted})
}

func clampedText(l wire.Clamped) string {
	return fmt.Sprintf("%s is %g and not %g: the service grants no more", l.Limit, l.Granted, l.Asked)
}
