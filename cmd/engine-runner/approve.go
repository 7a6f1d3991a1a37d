package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/capability/review"
	"github.com/direct-oci/engine/capability/signed"
	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
)

// approveFlags are those of approve.
type approveFlags struct {
	callFlags
	key      string
	approver string
	validFor time.Duration
	maxRuns  int
	output   string
}

func (a *app) approveCommand() *cobra.Command {
	f := &approveFlags{}
	cmd := &cobra.Command{
		Use:   "approve PROJECT NAME [JSON|@FILE|-]",
		Short: "show what a call would do, and approve exactly that",
		Long: "approve shows what a call would do: the authority it asks for, its files or their\n" +
			"difference from what was approved last under its title, and characters that are\n" +
			"not what they seem. With --key it then signs an approval of exactly that. Nothing\n" +
			"is run. Look at it without --key first.",
		Example: "  engine approve shop workload.execute @job.json\n" +
			"  engine approve shop workload.execute @job.json --key alice.pem --approver alice -o approval.json",
		Args: cli.Between(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error { return a.approve(cmd.Context(), f, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.environment, "environment", "", "`NAME` of the project's environment, where it has several")
	flags.StringVar(&f.key, "key", "", "`FILE` of your private key: sign")
	flags.StringVar(&f.approver, "approver", "", "your `NAME` among the config's approvers")
	flags.DurationVar(&f.validFor, "valid-for", 24*time.Hour, "`TIME` from now after which the approval is worth nothing")
	flags.IntVar(&f.maxRuns, "max-runs", 1, "how often it may be run")
	flags.StringVarP(&f.output, "output", "o", "", "`FILE` to write the approval to, instead of stdout")
	flags.BoolVar(&a.json, "json", false, "print the review as JSON")
	cmd.AddCommand(a.keygenCommand())
	return cmd
}

// reviewed is the review in JSON.
type reviewed struct {
	Title       string                      `json:"title"`
	Digest      string                      `json:"digest"`
	BoundDigest string                      `json:"boundDigest"`
	Bound       approval.Bound              `json:"bound"`
	Documents   []capability.Document       `json:"documents"`
	Last        *capability.Version         `json:"last"`
	Suspicious  map[string][]review.Finding `json:"suspicious"`
	Warnings    []string                    `json:"warnings"`
}

func (a *app) approve(ctx context.Context, f *approveFlags, args []string) error {
	r, _, err := a.runner()
	if err != nil {
		return err
	}
	call, err := a.readCall(&f.callFlags, args)
	if err != nil {
		return err
	}
	p, info, err := r.Prepare(ctx, call)
	if err != nil {
		return err
	}
	last, known, err := r.Approved.Last(p)
	if err != nil {
		return engine.Failed("no_record", "%w", err)
	}
	var before *capability.Version
	if known {
		before = &last
	}
	if err := a.showReview(info, p, before, f.key != ""); err != nil {
		return err
	}
	if f.key == "" {
		return nil
	}
	envelope, err := f.sign(r.Projects[call.Project], p)
	if err != nil {
		return err
	}
	if err := r.Approved.Save(p); err != nil {
		return engine.Failed("no_record", "cannot keep what was approved for the next review: %w", err)
	}
	if f.output == "" {
		return a.Print(string(envelope.Encode()))
	}
	if err := replaceFile(f.output, envelope.Encode(), 0o600); err != nil {
		return engine.Failed("no_output", "cannot write approval=%s: %w", f.output, err)
	}
	return nil
}

// showReview prints the review: on stdout, or on stderr if an approval goes to stdout.
func (a *app) showReview(info capability.Info, p capability.Prepared, last *capability.Version, signs bool) error {
	if a.json && !signs {
		strong, err := p.Bound.Strong()
		if err != nil {
			return err
		}
		return a.PrintJSON(reviewed{
			p.Title, p.Bound.Digest, strong, p.Bound, p.Documents, last, review.Suspicious(p), append([]string{}, p.Warnings...),
		})
	}
	var b strings.Builder
	if err := review.Write(&b, info, p, last); err != nil {
		return err
	}
	if !signs {
		return a.Print(b.String())
	}
	toStderr := cli.Output{Stdout: a.Stderr}
	return toStderr.Print(b.String())
}

// sign makes the approval. It refuses what the runner would refuse.
func (f *approveFlags) sign(project capability.Project, p capability.Prepared) (signed.Envelope, error) {
	data, err := os.ReadFile(f.key)
	if err != nil {
		return signed.Envelope{}, engine.Refused("no_key", "cannot read --key: %w", err)
	}
	key, err := signed.ParsePrivateKey(data)
	if err != nil {
		return signed.Envelope{}, engine.Refused("no_key", "cannot use --key=%s: %w", f.key, err)
	}
	known, ok := project.Approvers[f.approver]
	if !ok {
		return signed.Envelope{}, engine.Refused("no_approver", "cannot approve as --approver=%q: project=%s has no such approver", f.approver, project.Slug).
			WithFix("name yourself as the config does, under approvers")
	}
	if signed.KeyID(known) != signed.KeyID(key.Public().(ed25519.PublicKey)) {
		return signed.Envelope{}, engine.Refused("no_key", "cannot approve with --key=%s: it is not the key of approver %s", f.key, f.approver)
	}
	if f.validFor <= 0 {
		return signed.Envelope{}, engine.Refused("bad_arguments", "cannot approve for --valid-for=%s: it would have expired", f.validFor)
	}
	now := time.Now()
	s, err := approval.New(p.Bound, p.Title, f.approver, now.Add(-time.Minute), now.Add(f.validFor), f.maxRuns)
	if err != nil {
		return signed.Envelope{}, engine.Refused("bad_arguments", "cannot approve: %w", err)
	}
	return s.Sign(key)
}

func (a *app) keygenCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "keygen FILE",
		Short: "make a key for an approver, and print its public half for the config",
		Args:  cli.Between(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := filepath.Abs(args[0])
			if err != nil {
				return engine.Refused("bad_arguments", "cannot find file=%s: %w", args[0], err)
			}
			data, err := newKey(path)
			if errors.Is(err, fs.ErrExist) {
				return engine.Refused("exists", "cannot make key=%s: there is one already", args[0]).WithFix("name another file")
			}
			if err != nil {
				return engine.Failed("no_output", "cannot make key=%s: %w", args[0], err)
			}
			key, err := signed.ParsePrivateKey(data)
			if err != nil {
				return err
			}
			return a.Print(fmt.Sprintf("publicKey: %s\n", signed.EncodePublicKey(key.Public().(ed25519.PublicKey))))
		},
	}
}
