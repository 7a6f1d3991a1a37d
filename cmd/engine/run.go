package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/engine"
)

func (a *app) runCommand() *cobra.Command {
	r := newRequest()
	cmd := &cobra.Command{
		Use:   "run [flags] [--] [COMMAND [ARG...]]",
		Short: "run one command in a fresh sandbox",
		Long: "run starts one command in a fresh sandbox, passes its standard streams through,\n" +
			"and exits as it did. With --json it prints the result instead. Without COMMAND\n" +
			"it starts what the image names.\n\n" +
			"Exit status: the command's own; 124 at the deadline; 130 cancelled; 137 out of\n" +
			"memory; 153 too much output; 128+n ended by signal n; 126 or 127 when the command\n" +
			"cannot be run or is not found; 125 when the request was refused or the engine failed.\n\n" +
			"The run does not depend on this program: when it is killed, engine logs -f and\n" +
			"engine wait take up the run again, and so does the same command with the same --id.",
		Example: "  engine run --image debian -- sh -c 'echo hello'\n" +
			"  engine run --rootfs /srv/root --memory 64MiB --timeout 5s --json -- python3 job.py",
		Annotations: map[string]string{printsResult: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.setCommand(cmd, args); err != nil {
				return err
			}
			return a.run(cmd.Context(), r)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.SetInterspersed(false)
	r.addProgramFlags(flags)
	r.addLimitFlags(flags)
	a.addStartFlags(cmd)
	return cmd
}

// setCommand takes what there is to run. Only an image may name it itself.
func (r *request) setCommand(cmd *cobra.Command, args []string) error {
	r.Command = args
	if len(args) > 0 || r.Image != "" {
		return nil
	}
	return engine.Refused("bad_command", "cannot %s nothing: want %s", cmd.Name(), cmd.UseLine())
}

// addStartFlags defines the flags of a command that starts a run.
func (a *app) addStartFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&a.detach, "detach", false, "print the run's id and leave it to itself, without input; see engine logs and engine wait")
	minimumFlag(flags, &a.host.MinFreeDisk, "min-free-disk", "free space below which no run starts, in the state and the run directory; 0 for none")
	minimumFlag(flags, &a.host.MinFreeMemory, "min-free-memory", "available memory of the host below which no run starts; 0 for none")
	a.addOutputFlags(cmd)
}

// addOutputFlags defines --json and --quiet of a command that ends in a result.
func (a *app) addOutputFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.json, "json", false, "print one JSON result instead of the program's output")
	cmd.Flags().BoolVar(&a.Quiet, "quiet", false, "print nothing of the engine's own on stderr")
}

// run starts the request and follows it to its end.
func (a *app) run(ctx context.Context, r *request) error {
	if err := r.finish(); err != nil {
		return err
	}
	stdio := engine.Stdio{In: a.stdin, Out: a.stdout, Err: a.stderr}
	if a.json {
		stdio.Out, stdio.Err = nil, nil // the result has them
	}
	if a.detach {
		run, err := a.host.Start(ctx, r.Request, r.secrets, engine.Stdio{})
		if err != nil {
			return err
		}
		return a.printStarted(run.ID())
	}
	// Signals are taken from here on: one that comes while the run is being
	// started ends it as soon as there is something to end.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	run, err := a.host.Start(ctx, r.Request, r.secrets, stdio)
	if err != nil {
		return err
	}
	go cancelOn(signals, run)
	if run.Joined() && !a.json {
		// The output went to whoever started the run.
		if err := a.logs(ctx, logs{follow: true, raw: true, streams: [2]bool{true, true}}, run.ID(), ""); err != nil {
			return err
		}
	}
	res, err := run.Wait()
	if err != nil {
		return err
	}
	return a.report(res, r.Limits)
}

// printStarted tells the id of a run that is left to itself.
func (a *app) printStarted(id string) error {
	if !a.json {
		return a.Print(id + "\n")
	}
	return a.PrintJSON(struct {
		ID string `json:"id"`
	}{id})
}

// cancelOn ends the run at the first signal. At the second one it ends this
// process; the run is still brought to its end, by its monitor.
func cancelOn(signals <-chan os.Signal, run *engine.Run) {
	<-signals
	go run.Cancel()
	<-signals
	os.Exit(statusCancelled)
}
