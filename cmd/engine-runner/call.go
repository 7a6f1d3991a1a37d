package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/review"
	"github.com/direct-oci/engine/capability/signed"
	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/cmd/engine-runner/config"
	"github.com/direct-oci/engine/engine"
)

// callFlags are those of commands that name a call.
type callFlags struct {
	environment string
	approval    string
	locally     bool
	receipt     string
	quiet       bool
}

func (a *app) callCommand() *cobra.Command {
	f := &callFlags{}
	cmd := &cobra.Command{
		Use:   "call PROJECT NAME [JSON|@FILE|-]",
		Short: "do one thing of what may be asked for, and print its JSON result",
		Long: "call does one thing of what may be asked for and prints its result, one line of\n" +
			"JSON. Progress goes to stderr. What is no read needs an approval, see engine approve.\n\n" +
			"Exit status: 0; 1 when a program ran and failed; 125 when the call was refused or\n" +
			"the engine failed, with the error on stderr and, with --json, on stdout.",
		Args: cli.Between(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error { return a.call(cmd.Context(), f, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.environment, "environment", "", "`NAME` of the project's environment, where it has several")
	flags.StringVar(&f.approval, "approval", "", "`FILE` of an approval")
	flags.BoolVar(&f.locally, "approve-locally", false, "do without an approval, where the config is in development mode")
	flags.StringVar(&f.receipt, "receipt", "", "write the receipt to `FILE` too")
	flags.BoolVar(&f.quiet, "quiet", false, "no progress on stderr")
	flags.BoolVar(&a.json, "json", false, "print errors as JSON on stdout too")
	return cmd
}

func (a *app) call(ctx context.Context, f *callFlags, args []string) error {
	r, c, err := a.runner()
	if err != nil {
		return err
	}
	defer r.Close()
	call, err := a.readCall(f, args)
	if err != nil {
		return err
	}
	return a.dispatch(ctx, r, c, f, call)
}

// dispatch does what is asked for, keeps the receipt, and prints the result.
func (a *app) dispatch(ctx context.Context, r *capability.Runner, c config.Config, f *callFlags, call capability.Call) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	reply, err := r.Call(ctx, call)
	if reply.Receipt.Payload != nil {
		err = errors.Join(err, a.keepReceipt(c, f, reply))
	}
	if err != nil {
		return err
	}
	out, err := capability.EncodeOutput(reply.Output)
	if err != nil {
		return err
	}
	if failed(reply.Output) {
		a.status = statusFailed
	}
	return a.Print(string(out))
}

// failed reports whether the output is of a program that ran and failed.
func failed(output any) bool {
	o, ok := output.(interface{ Succeeded() bool })
	return ok && !o.Succeeded()
}

// readCall makes a call of the arguments and flags.
func (a *app) readCall(f *callFlags, args []string) (capability.Call, error) {
	input, err := a.input(optional(args, 2))
	if err != nil {
		return capability.Call{}, err
	}
	call := capability.Call{
		Project: args[0], Capability: args[1], Environment: f.environment, Args: input,
		ApproveLocally: f.locally, Caller: callerName(), Log: a.progress(f.quiet),
	}
	if f.approval == "" {
		return call, nil
	}
	envelope, err := readEnvelope(f.approval)
	if err != nil {
		return capability.Call{}, engine.Refused("approval_refused", "cannot read approval=%s: %w", f.approval, err)
	}
	call.Approval = &envelope
	return call, nil
}

// maxEnvelope bounds approvals and receipts.
const maxEnvelope = 16 << 20

func readEnvelope(path string) (signed.Envelope, error) {
	f, err := os.Open(path)
	if err != nil {
		return signed.Envelope{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxEnvelope))
	if err != nil {
		return signed.Envelope{}, err
	}
	return signed.Parse(data)
}

// callerName is who calls on this host, for the audit log.
func callerName() string {
	name := fmt.Sprintf("uid %d", os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return "command line, " + name
}

// progress prints the lines that come while something runs.
func (a *app) progress(quiet bool) func(string) {
	return func(line string) {
		if !quiet {
			// The line is a program's: nothing in it may steer the terminal.
			_, _ = io.WriteString(a.stderr, review.Line(line)+"\n")
		}
	}
}

// keepReceipt writes a receipt into the state directory, and where it was asked for.
func (a *app) keepReceipt(c config.Config, f *callFlags, reply capability.Reply) error {
	paths := []string{filepath.Join(c.ReceiptDir(), reply.ID+".json")}
	if f.receipt != "" {
		paths = append(paths, f.receipt)
	}
	for _, path := range paths {
		if err := replaceFile(path, reply.Receipt.Encode(), 0o600); err != nil {
			return engine.Failed("no_receipt", "cannot write receipt=%s: %w", path, err)
		}
	}
	return nil
}
