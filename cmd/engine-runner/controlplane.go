package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/capability/review"
	"github.com/direct-oci/engine/capability/signed"
	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/cmd/engine-runner/link/devplane"
	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
)

// planeFlags are those of all commands of controlplane.
type planeFlags struct {
	dir    string
	runner string
}

// dialledFlags are those of a call through a control plane.
type dialledFlags struct {
	*planeFlags
	id          string
	environment string
	approval    string
	key         string
	approver    string
	yes         bool
	receipt     string
	quiet       bool
}

func (a *app) controlplaneCommand() *cobra.Command {
	f := &planeFlags{}
	group := cli.Group("controlplane", "a control plane for development, and calls through it",
		a.planeDevCommand(f), a.planeRunnersCommand(f), a.planeReviewCommand(f), a.planeCallCommand(f), a.planeCancelCommand(f))
	group.PersistentFlags().StringVar(&f.dir, "dir", "controlplane", "`DIR` of the control plane")
	return group
}

func (a *app) planeDevCommand(f *planeFlags) *cobra.Command {
	listen, plain := "", false
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "serve a control plane for development on this machine",
		Long: "dev serves a control plane on a loopback address until it is interrupted, and keeps\n" +
			"what it needs in --dir: a signing secret and a certificate for the config of a runner,\n" +
			"and a token for the other commands. It prints the part of the config that leads to it.",
		Args: cli.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			dir, err := filepath.Abs(f.dir)
			if err != nil {
				return engine.Refused("bad_flag", "cannot find --dir=%s: %w", f.dir, err)
			}
			o := devplane.Options{Dir: dir, Listen: listen, Plain: plain, Log: slog.New(slog.NewTextHandler(a.stderr, nil))}
			return devplane.Serve(ctx, o, func(url string) { a.Print(planeConfig(dir, url, plain)) })
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:7443", "loopback `ADDRESS` and port to listen at")
	cmd.Flags().BoolVar(&plain, "plain", false, "without TLS")
	return cmd
}

// planeConfig is the part of a runner's config that leads to a control plane.
func planeConfig(dir, url string, plain bool) string {
	text := "controlPlane:\n  url: " + devplane.RunnerURL(url) + "\n  identity: dev\n" +
		"  signingSecret: {file: " + filepath.Join(dir, devplane.SecretFile) + "}\n"
	if !plain {
		text += "  caFile: " + filepath.Join(dir, devplane.CAFile) + "\n"
	}
	return text
}

func (a *app) planeRunnersCommand(f *planeFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "runners",
		Short: "list the runners that were connected, and what they offer",
		Args:  cli.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := devplane.Dial(f.dir)
			if err != nil {
				return err
			}
			list, err := client.Runners(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.PrintJSON(list)
			}
			var b strings.Builder
			for _, r := range list {
				state := map[bool]string{true: "connected", false: "gone"}[r.Connected]
				fmt.Fprintf(&b, "%s  %s since %s, version %s, %d of %d running\n", r.Identity, state, r.Since.Local().Format(time.DateTime), review.Line(r.Version), r.Capacity.Running, r.Capacity.Max)
				for _, c := range r.Capabilities {
					fmt.Fprintf(&b, "  [%s] %s  [%s/%s]  %s\n", review.Line(c.Project), review.Line(c.Name), c.Kind, c.Hazard, review.Line(c.Description))
				}
			}
			return a.Print(b.String())
		},
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON, with the schemas of the arguments")
	return cmd
}

func (a *app) planeReviewCommand(f *planeFlags) *cobra.Command {
	d := &dialledFlags{planeFlags: f}
	cmd := &cobra.Command{
		Use:   "review PROJECT NAME [JSON|@FILE|-]",
		Short: "show what a call would do, as its runner says",
		Args:  cli.Between(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, ask, err := a.dialled(d, args)
			if err != nil {
				return err
			}
			r, err := client.Review(cmd.Context(), ask)
			if err != nil {
				return err
			}
			if a.json {
				return a.PrintJSON(r)
			}
			return a.Print(visibleLines(r.Text))
		},
	}
	d.common(cmd)
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON, with all that an approval would bind")
	return cmd
}

func (d *dialledFlags) common(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&d.runner, "runner", "", "`IDENTITY` of the runner, where there are several")
	flags.StringVar(&d.environment, "environment", "", "`NAME` of the project's environment, where it has several")
}

func (a *app) planeCallCommand(f *planeFlags) *cobra.Command {
	d := &dialledFlags{planeFlags: f}
	cmd := &cobra.Command{
		Use:   "call PROJECT NAME [JSON|@FILE|-]",
		Short: "have a runner do one thing, and print its JSON result",
		Long: "call asks a runner through the control plane, and prints progress on stderr and the\n" +
			"result on stdout, as engine call does, with the same exit statuses. With --key it\n" +
			"first shows what would be done, asks, and signs an approval of exactly that. A call\n" +
			"goes on when this command is interrupted: the same --id follows it again.",
		Example: "  engine controlplane call shop hello '{\"name\":\"Ada\"}'\n" +
			"  engine controlplane call shop workload.execute @job.json --key alice.pem --approver alice",
		Args: cli.Between(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error { return a.planeCall(cmd.Context(), d, args) },
	}
	d.common(cmd)
	flags := cmd.Flags()
	flags.StringVar(&d.id, "id", "", "`ID` of the invocation; the same one again is the same invocation")
	flags.StringVar(&d.approval, "approval", "", "`FILE` of an approval")
	flags.StringVar(&d.key, "key", "", "`FILE` of your private key: show, ask, and approve")
	flags.StringVar(&d.approver, "approver", "", "your `NAME` among the approvers in the runner's config")
	flags.BoolVar(&d.yes, "yes", false, "approve without being asked")
	flags.StringVar(&d.receipt, "receipt", "", "write the receipt to `FILE`")
	flags.BoolVar(&d.quiet, "quiet", false, "no progress on stderr")
	flags.BoolVar(&a.json, "json", false, "print errors as JSON on stdout too")
	return cmd
}

func (a *app) planeCancelCommand(f *planeFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel ID",
		Short: "end an invocation",
		Args:  cli.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := devplane.Dial(f.dir)
			if err != nil {
				return err
			}
			_, err = client.Cancel(cmd.Context(), args[0])
			return err
		},
	}
}

// dialled makes of flags and arguments what is asked of a control plane.
func (a *app) dialled(d *dialledFlags, args []string) (*devplane.Client, devplane.Ask, error) {
	client, err := devplane.Dial(d.dir)
	if err != nil {
		return nil, devplane.Ask{}, err
	}
	input, err := a.input(optional(args, 2))
	if err != nil {
		return nil, devplane.Ask{}, err
	}
	if len(input) > 0 && !json.Valid(input) {
		return nil, devplane.Ask{}, engine.Refused("bad_arguments", "cannot read the arguments: they are not JSON")
	}
	caller := fmt.Sprintf("uid %d", os.Getuid())
	if u, err := user.Current(); err == nil {
		caller = u.Username
	}
	ask := devplane.Ask{ID: d.id, Runner: d.runner, Call: wire.Call{
		Project: args[0], Capability: args[1], Environment: d.environment, Args: input, Caller: caller,
	}}
	if d.approval == "" {
		return client, ask, nil
	}
	envelope, err := readEnvelope(d.approval)
	if err != nil {
		return nil, ask, engine.Refused("approval_refused", "cannot read approval=%s: %w", d.approval, err)
	}
	ask.Call.Approval = &envelope
	return client, ask, nil
}

func (a *app) planeCall(ctx context.Context, d *dialledFlags, args []string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	client, ask, err := a.dialled(d, args)
	if err != nil {
		return err
	}
	if d.key != "" {
		if ask.Call.Approval, err = a.approveDialled(ctx, d, client, ask); err != nil {
			return err
		}
	}
	shown, err := client.Call(ctx, ask)
	if err != nil {
		return err
	}
	a.progress(d.quiet)("invocation " + shown.ID + " for runner " + shown.Runner)
	if !connected(ctx, client, shown.Runner) {
		a.progress(d.quiet)("runner " + shown.Runner + " is not connected: waiting for it")
	}
	id := shown.ID
	shown, err = client.Follow(ctx, id, a.progress(d.quiet))
	if ctx.Err() != nil {
		return engine.Failed("cancelled", "cannot follow invocation=%s any more: interrupted", id).
			WithFix("it goes on: follow it by the same command with --id " + id + ", or end it with engine controlplane cancel " + id)
	}
	if err != nil {
		return err
	}
	if shown.Error != nil {
		return shown.Error
	}
	return a.printResult(d, *shown.Result)
}

// connected tells whether a runner has a connection; also if that cannot be told.
func connected(ctx context.Context, client *devplane.Client, runner string) bool {
	list, err := client.Runners(ctx)
	return err != nil || slices.ContainsFunc(list, func(r devplane.Runner) bool { return r.Identity == runner && r.Connected })
}

// printResult prints what came of an invocation, and keeps its receipt.
func (a *app) printResult(d *dialledFlags, r wire.Result) error {
	if d.receipt != "" && r.Receipt != nil {
		if err := replaceFile(d.receipt, r.Receipt.Encode(), 0o600); err != nil {
			return engine.Failed("no_receipt", "cannot write receipt=%s: %w", d.receipt, err)
		}
	}
	if r.Error != nil {
		return r.Error
	}
	var program struct {
		OK *bool `json:"ok"`
	}
	if json.Unmarshal(r.Output, &program) == nil && program.OK != nil && !*program.OK {
		a.status = statusFailed
	}
	return a.Print(string(r.Output) + "\n")
}

// approveDialled shows what a runner says that it would do, asks, and signs. It returns
// nil for a read, which needs no approval.
//
// SECURITY: the approval is of what was shown.
// A control plane that could exchange the two would have anything approved.
// Holds because: what is signed is what the runner bound, and the runner compares it with
// what it is about to run. Not covered: the text itself comes through the plane, which could
// show another one: who does not trust it approves on the runner's host, with engine approve.
// Checked by: TestLinkEndToEnd.
func (a *app) approveDialled(ctx context.Context, d *dialledFlags, client *devplane.Client, ask devplane.Ask) (*signed.Envelope, error) {
	data, err := os.ReadFile(d.key)
	if err != nil {
		return nil, engine.Refused("no_key", "cannot read --key: %w", err)
	}
	key, err := signed.ParsePrivateKey(data)
	if err != nil {
		return nil, engine.Refused("no_key", "cannot use --key=%s: %w", d.key, err)
	}
	r, err := client.Review(ctx, ask)
	if err != nil || r.Hazard == capability.Read {
		return nil, err
	}
	if d.approver == "" {
		return nil, engine.Refused("no_approver", "cannot approve as nobody").WithFix("name yourself with --approver, as the runner's config does")
	}
	if _, err := io.WriteString(a.stderr, visibleLines(r.Text)); err != nil {
		return nil, engine.Failed("no_output", "cannot show what would be done: %w", err)
	}
	if !d.yes && !a.agreed() {
		return nil, engine.Refused("not_approved", "cannot go on: you did not approve").WithFix("answer yes, or give --yes")
	}
	now := time.Now()
	s, err := approval.New(r.Bound, r.Title, d.approver, now.Add(-time.Minute), now.Add(time.Hour), 1)
	if err != nil {
		return nil, engine.Refused("bad_arguments", "cannot approve: %w", err)
	}
	envelope, err := s.Sign(key)
	return &envelope, err
}

// agreed asks on stderr, and reads the answer from stdin.
func (a *app) agreed() bool {
	io.WriteString(a.stderr, "\nApprove exactly this, once? yes or no: ")
	line, _ := bufio.NewReader(io.LimitReader(a.stdin, 100)).ReadString('\n') // no answer is no
	return strings.TrimSpace(line) == "yes"
}

// visibleLines makes text of several lines safe for a terminal.
func visibleLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(review.Visible(strings.TrimSuffix(line, "\n")) + "\n")
	}
	return b.String()
}
