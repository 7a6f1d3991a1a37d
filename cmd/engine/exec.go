package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/oci"
)

func (a *app) execCommand() *cobra.Command {
	r := newRequest()
	asIs := false
	cmd := &cobra.Command{
		Use:   "exec [flags] BUNDLE/",
		Short: "run an existing OCI bundle in a sandbox",
		Long: "exec runs the program of an OCI bundle under the engine's own limits, network,\n" +
			"deadline and accounting. What the bundle asks for beyond that is refused, or\n" +
			"changed: each change is told on stderr with its reason. Streams and exit status\n" +
			"are those of engine run.",
		Example:     "  engine exec --memory 64MiB ./bundle\n  engine exec --as-is --json ./bundle",
		Annotations: map[string]string{printsResult: "yes"},
		Args:        cli.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.readBundle(r, args[0], asIs); err != nil {
				return err
			}
			return a.run(cmd.Context(), r)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&asIs, "as-is", false, "keep what the bundle says wherever no guarantee is lost by it")
	r.addLimitFlags(flags)
	addNetworkFlags(flags, &r.Egress)
	a.addStartFlags(cmd)
	return cmd
}

// readBundle makes a request of somebody's bundle, and tells what is not as the
// bundle says.
func (a *app) readBundle(r *request, dir string, asIs bool) error {
	bundle, changes, err := oci.ReadBundle(dir, asIs)
	var bad *oci.BundleError
	if errors.As(err, &bad) {
		return engine.Refused("bad_bundle", "%w", err)
	}
	if err != nil {
		return engine.Failed("bad_bundle", "%w", err)
	}
	if bundle.Umask != nil {
		changes = append(changes, oci.Change{
			Field: "process.user.umask", Was: fmt.Sprintf("%04o", *bundle.Umask), Now: "0077", Why: "every run has the engine's",
		})
	}
	if len(changes) > 0 {
		var b strings.Builder
		fmt.Fprintf(&b, "%s is run with these changes", dir)
		for _, c := range changes {
			fmt.Fprintf(&b, "\n  %s: %s instead of %s: %s", c.Field, orNothing(c.Now), orNothing(c.Was), c.Why)
		}
		a.Say(b.String(), "")
	}
	r.takeBundle(bundle)
	return nil
}

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}

// takeBundle fills in what the flags of exec leave open.
func (r *request) takeBundle(b oci.Bundle) {
	r.Rootfs, r.Command, r.Env, r.Workdir = b.Root, b.Args, b.Env, b.Cwd
	r.UID, r.GID, r.Hostname = b.UID, b.GID, b.Hostname
	for _, t := range b.Tmpfs {
		if t.Size == 0 {
			t.Size = r.Limits.Sized().TmpSize
		}
		r.Tmpfs = append(r.Tmpfs, engine.Tmpfs(t))
	}
	for _, l := range b.Rlimits {
		r.Rlimits = append(r.Rlimits, engine.Rlimit(l))
	}
}
