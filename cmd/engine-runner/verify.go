package main

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/audit"
	"github.com/direct-oci/engine/capability/review"
	"github.com/direct-oci/engine/capability/signed"
	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/cmd/engine-runner/config"
	"github.com/direct-oci/engine/engine"
)

func (a *app) verifyCommand() *cobra.Command {
	key := ""
	cmd := &cobra.Command{
		Use:   "verify RECEIPT",
		Short: "verify the receipt of a governed run, without the runner",
		Long: "verify checks that a receipt was signed by the runner whose public key it is given,\n" +
			"and prints what it says. It needs nothing but the two. Without --key it takes this\n" +
			"host's own.",
		Args: cli.Between(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			public, err := a.receiptPublicKey(key)
			if err != nil {
				return err
			}
			receipt, err := openReceipt(args[0], public)
			if err != nil {
				return err
			}
			if a.json {
				return a.PrintJSON(receipt)
			}
			return a.Print(describe(receipt))
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "`FILE` of the runner's public key, or the key itself in base64")
	cmd.Flags().BoolVar(&a.json, "json", false, "print what the receipt says as JSON")
	return cmd
}

func openReceipt(path string, key ed25519.PublicKey) (capability.Receipt, error) {
	envelope, err := readEnvelope(path)
	if err != nil {
		return capability.Receipt{}, engine.Refused("bad_receipt", "cannot read receipt=%s: %w", path, err)
	}
	receipt, err := capability.OpenReceipt(envelope, key)
	if err != nil {
		return capability.Receipt{}, engine.Refused("bad_receipt", "cannot trust receipt=%s: %w", path, err).
			WithFix("see that --key is the public key of the runner that signed it")
	}
	return receipt, nil
}

// receiptPublicKey is the key that is given, or this host's own.
func (a *app) receiptPublicKey(given string) (ed25519.PublicKey, error) {
	text, path := given, given
	if given == "" {
		path = filepath.Join(a.stateOf(), "receipts", publicKeyFile)
	}
	data, err := os.ReadFile(path)
	switch {
	case err == nil:
		text = string(data)
	case given == "" || !errors.Is(err, fs.ErrNotExist) && len(given) > 64:
		return nil, engine.Refused("no_key", "cannot read the public key of receipts: %w", err).WithFix("name it with --key")
	}
	key, err := signed.ParsePublicKey(text)
	if err != nil {
		return nil, engine.Refused("no_key", "%w", err).WithFix("name the file of the runner's public key with --key")
	}
	return key, nil
}

// stateOf is the state directory: the command line's, the config's if there is one that
// can be read, or the usual.
func (a *app) stateOf() string {
	if a.stateDir != "" {
		return a.stateDir
	}
	if c, err := a.readConfig(); err == nil {
		return c.State()
	}
	return config.DefaultStateDir
}

func describe(r capability.Receipt) string {
	var b strings.Builder
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s %s\n", label, review.Line(fmt.Sprintf(format, args...)))
	}
	line("call", "%s: %s of project %s", r.Call, r.Bound.Capability, r.Bound.Project)
	switch {
	case r.Authorised.Local:
		line("approved", "by nobody: development mode")
	case r.Authorised.Approver == "":
		line("approved", "not needed")
	default:
		line("approved", "by %s, run %d of %d", r.Authorised.Approver, r.Authorised.Run, r.Authorised.MaxRuns)
	}
	line("digest", "%s", r.Digest)
	line("stronger", "%s", r.BoundDigest)
	ended := r.Observed.Reason
	if len(r.Bound.Command) == 0 {
		line("sandbox", "none: it reads by itself")
		if ended = "well"; r.Observed.Error != "" {
			ended = "by " + r.Observed.Error
		}
	} else {
		image := "none"
		if r.Observed.Image.Digest != nil {
			image = *r.Observed.Image.Digest
		}
		line("image", "%s", image)
		line("runtime", "%s %s", r.Observed.Runtime.Name, r.Observed.Runtime.Version)
		if sum := r.Observed.Runtime.SHA256; sum != nil {
			line("program", "sha256:%s", *sum)
		}
		line("network", "%s, %d destinations denied", r.Observed.Network.Mode, len(r.Observed.Network.Denied))
	}
	line("ended", "%s at %s", ended, r.Ended.Format("2006-01-02 15:04:05 MST"))
	line("audit", "line %d, %s", r.Audit.Seq, r.Audit.Hash)
	return b.String()
}

func (a *app) auditCommand() *cobra.Command {
	receipt, key := "", ""
	verify := &cobra.Command{
		Use:   "verify [FILE]",
		Short: "check that no line of the audit log was changed, removed or put in",
		Long: "verify checks that the lines of the audit log hang together. That its end was cut\n" +
			"off is not to be seen in the log itself: keep the head that is printed, or give a\n" +
			"receipt, whose line must be in the log.\n\n" +
			"Exit status: 0 when the log holds, 1 when it does not.",
		Args: cli.Between(0, 1),
		RunE: func(_ *cobra.Command, args []string) error { return a.verifyAudit(optional(args, 0), receipt, key) },
	}
	verify.Flags().StringVar(&receipt, "receipt", "", "`FILE` of a receipt whose line must be in the log")
	verify.Flags().StringVar(&key, "key", "", "`FILE` of the runner's public key, for the receipt")
	verify.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return cli.Group("audit", "the log of everything that was asked for, decided and done", verify)
}

func (a *app) verifyAudit(path, receiptPath, key string) error {
	if path == "" {
		path = config.Config{StateDir: a.stateOf()}.AuditPath()
	}
	f, err := os.Open(path)
	if err != nil {
		return engine.Refused("no_audit", "cannot read the audit log: %w", err)
	}
	defer f.Close()
	summary, err := audit.Verify(f)
	var broken *audit.BrokenError
	if err != nil && !errors.As(err, &broken) {
		return engine.Failed("no_audit", "cannot read the audit log: %w", err)
	}
	why := ""
	if broken != nil {
		why = broken.Error()
	}
	if receiptPath != "" && why == "" {
		public, err := a.receiptPublicKey(key)
		if err != nil {
			return err
		}
		receipt, err := openReceipt(receiptPath, public)
		if err != nil {
			return err
		}
		if !summary.Has(receipt.Audit) {
			why = fmt.Sprintf("line %d of the receipt is not in it: the log was cut off or written anew", receipt.Audit.Seq)
		}
	}
	if why != "" {
		a.status = statusFailed
		a.Say("the audit log="+path+" does not hold: "+why, "")
	}
	if a.json {
		return a.PrintJSON(struct {
			OK  bool   `json:"ok"`
			Why string `json:"why"`
			audit.Summary
		}{why == "", why, summary})
	}
	if why != "" {
		return nil
	}
	return a.Print(fmt.Sprintf("%d lines hold; head %d %s\n", summary.Lines, summary.Head.Seq, summary.Head.Hash))
}
