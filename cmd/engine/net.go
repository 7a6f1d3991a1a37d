package main

import (
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/netns"
	"github.com/direct-oci/engine/netns/egress"
)

// addNetworkFlags defines the flags that say what a program may reach. All of them
// together are one policy.
func addNetworkFlags(flags *pflag.FlagSet, policy *egress.Policy) {
	closed := false
	grant := func() error {
		if closed {
			return engine.Refused("bad_network", "cannot accept --network=none with a grant: one of them is not meant").
				WithFix("leave out --network none, or --allow and --allow-cidr")
		}
		return nil
	}
	flags.Var(&value{typ: "MODE", def: "none", set: func(text string) error {
		switch text {
		case "none":
			closed, policy.Internet = true, false
			if policy.Mode() != "none" {
				return grant()
			}
		case "internet":
			policy.Internet = true
		default:
			return engine.Refused("bad_network", "cannot accept --network=%q: want none or internet", text).
				WithFix("name hosts with --allow, and ranges of addresses with --allow-cidr")
		}
		return nil
	}}, "network", "none, or internet: everything public and nothing private")
	flags.Var(&value{typ: "HOST[:PORT]", set: func(text string) error {
		rule, err := egress.ParseAllow(text)
		if err != nil {
			return engine.Refused("bad_network", "%w", err)
		}
		policy.Names = append(policy.Names, rule)
		return grant()
	}}, "allow", "a host to reach by name, or *.DOMAIN; no port is 80 and 443; repeatable")
	flags.Var(&value{typ: "CIDR:PORT[/udp]", set: func(text string) error {
		rule, err := egress.ParseAllowCIDR(text)
		if err != nil {
			return engine.Refused("bad_network", "%w", err)
		}
		policy.CIDRs = append(policy.CIDRs, rule)
		return grant()
	}}, "allow-cidr", "addresses to reach, the port may be *; repeatable")
	l := &policy.Limits
	countFlag(flags, &l.Connections, "egress-connections", "connections open at once (default 256)")
	countFlag(flags, &l.PerSecond, "egress-rate", "new connections a second (default 1000)")
	sizeFlag(flags, &l.SendBytes, "egress-send", "", "what it may send in all, after which connections are cut (default off)")
	sizeFlag(flags, &l.ReceiveBytes, "egress-receive", "", "what it may receive in all, likewise (default off)")
}

// countFlag defines a flag of a number that is at least 1, whose zero is the default.
func countFlag(flags *pflag.FlagSet, p *int, name, usage string) {
	flags.Var(&value{typ: "NUMBER", set: func(text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return engine.Refused("bad_limit", "cannot accept --%s=%q: want a number from 1", name, text).
				WithFix("leave the flag out for the default")
		}
		*p = n
		return nil
	}}, name, usage)
}

func (a *app) netCommand() *cobra.Command {
	return cli.Group("net", "explain and change what programs may reach", a.netExplainCommand(), a.netSetCommand())
}

func (a *app) netExplainCommand() *cobra.Command {
	var policy egress.Policy
	var rules bool
	cmd := &cobra.Command{
		Use:     "explain [flags]",
		Short:   "say what a policy means, in words and as the kernel's rules",
		Example: "  engine net explain --allow example.com --allow '*.example.org:443'\n  engine net explain --rules --allow-cidr 192.0.2.0/24:5432",
		Args:    cli.Exactly(0),
		RunE: func(*cobra.Command, []string) error {
			if err := policy.Validate(); err != nil {
				return engine.Refused("bad_network", "%w", err)
			}
			text := egress.Explain(policy)
			if rules && policy.Mode() != "none" {
				nft, err := netns.Rules(netns.GatewayConfig{Policy: policy.Kernel(), Limits: policy.KernelLimits()})
				if err != nil {
					return engine.Failed("internal", "%w", err)
				}
				text += "\n" + nft
			}
			return a.Print(text)
		},
	}
	addNetworkFlags(cmd.Flags(), &policy)
	cmd.Flags().BoolVar(&rules, "rules", false, "print also the rules of the run's gateway, as nft would")
	return cmd
}

func (a *app) netSetCommand() *cobra.Command {
	var policy egress.Policy
	cmd := &cobra.Command{
		Use:   "set [flags] ID",
		Short: "replace the policy of a run that is going",
		Long: "set replaces the whole policy of a run that was started with one. What the new\n" +
			"policy forbids is closed before set returns; what it grants works from then on.",
		Example: "  engine net set --allow example.com k3v9\n  engine net set k3v9    (nothing at all)",
		Args:    cli.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.host.SetEgress(cmd.Context(), args[0], policy)
		},
	}
	addNetworkFlags(cmd.Flags(), &policy)
	return cmd
}
