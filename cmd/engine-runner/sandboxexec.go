package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/oci"
)

// statusCancelled is the exit status of a command that was interrupted.
const statusCancelled = 130

// keptByDefault is how much of each stream goes on record of a program that is followed
// here. What follows it reads the record, so what is not kept is not seen: it is more than
// the service's own default.
const keptByDefault = 64 << 20

type execFlags struct {
	ask      wire.ExecRequest
	stdin    bool
	terminal bool
	detach   bool
	timeout  time.Duration
}

func (a *app) sandboxExecCommand(f *serviceFlags) *cobra.Command {
	o := &execFlags{ask: wire.ExecRequest{OutputKeptBytes: keptByDefault}}
	cmd := &cobra.Command{
		Use:   "exec [flags] NAME [--] COMMAND [ARG...]",
		Short: "start a program in a sandbox and follow it",
		Long: "exec starts a program, passes on what it writes, and exits as it did. With -i it reads our\n" +
			"stdin to its end; with -t it has a terminal, whose size and signals follow ours.\n\n" +
			"The program does not depend on this one. Without -t Ctrl-C ends only this one, with\n" +
			"status 130: engine sandbox logs -f takes the program up again, and so does exec with the\n" +
			"same --id; engine sandbox kill ends it. With -t keys are the program's, Ctrl-C too.\n" +
			"A service that is restarted meanwhile is waited for, and no output is lost.\n\n" +
			"Output goes through the record, of which --output-limit is the end: more is counted and\n" +
			"not shown.\n\n" +
			"Exit status: the program's own; 124 at its deadline; 128+n ended by signal n; 126 or 127\n" +
			"when the command cannot be run or is not found; 125 when it was refused or the engine failed.",
		Example: "  engine sandbox exec -it dev -- bash\n" +
			"  tar c src | engine sandbox exec -i dev -- tar x -C /workload\n" +
			"  id=$(engine sandbox exec --detach dev -- make); engine sandbox logs -f dev $id",
		RunE: a.onService(f, func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) > 1 && args[1] == "--" {
				args = append(args[:1:1], args[2:]...)
			}
			if len(args) < 2 {
				return engine.Refused("bad_command", "cannot start nothing: want engine sandbox exec NAME -- COMMAND [ARG...]")
			}
			o.ask.Command = args[1:]
			return a.execIn(ctx, c, o, args[0])
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.SetInterspersed(false)
	flags.BoolVarP(&o.stdin, "interactive", "i", false, "pass stdin on, to its end")
	flags.BoolVarP(&o.terminal, "tty", "t", false, "give the program a terminal")
	pairsFlag(flags, &o.ask.Env, "env", "`K=V`: environment variable, beside the sandbox's; repeatable")
	flags.StringVar(&o.ask.Workdir, "workdir", "", "`DIR` inside where it starts (default the sandbox's)")
	timeFlag(flags, &o.timeout, "timeout", "`DURATION` after which it is ended (default the sandbox's end)")
	flags.BoolVar(&o.detach, "detach", false, "print the program's id and leave it to itself, without input")
	flags.StringVar(&o.ask.ID, "id", "", "`ID` of the program: given twice it is the same one, started once")
	flags.Func("output-limit", "`SIZE` of the output kept and passed on, of each stream (default 64MiB, at most 1GiB)", func(text string) error {
		n, err := oci.ParseSize(text)
		if err != nil || n == 0 {
			return engine.Refused("bad_limit", "cannot accept --output-limit=%.40q: want a size up to 1GiB", text)
		}
		o.ask.OutputKeptBytes = n
		return nil
	})
	return cmd
}

// check refuses what does not go together, and completes the request.
func (o *execFlags) check(a *app) error {
	if o.detach && (o.stdin || o.terminal) {
		return engine.Refused("bad_flag", "cannot accept --detach with -i or -t: nobody is there to type")
	}
	o.ask.Stdin, o.ask.TimeoutSeconds = o.stdin, o.timeout.Seconds()
	if !o.terminal {
		return nil
	}
	if o.stdin && !cli.IsTerminal(a.stdin.Fd()) {
		return engine.Refused("bad_flag", "cannot accept -t: stdin is no terminal").WithFix("leave -t out to pass on a pipe or a file")
	}
	size := windowSize(a.stdout, a.stdin)
	o.ask.TTY = &size
	return nil
}

func (a *app) execIn(ctx context.Context, c *client.Client, o *execFlags, name string) error {
	if err := o.check(a); err != nil {
		return err
	}
	e, err := c.StartExec(ctx, name, o.ask)
	if err != nil {
		return a.notStarted(fromService(err))
	}
	if o.detach {
		return a.Print(e.ID + "\n")
	}
	c.Patience = client.DefaultPatience // the program is there: a service that went away is waited for
	p := &followed{app: a, client: c, sandbox: name, id: e.ID, streams: cli.NewStreams(&a.Output, a.stdout, a.stderr, true)}
	if o.terminal {
		err = p.onTerminal(ctx, o.stdin)
	} else {
		err = p.plainly(ctx, o.stdin)
	}
	switch {
	case errors.Is(err, errInterrupted):
		a.status = statusCancelled
		a.Say("exec "+e.ID+" goes on in sandbox "+name, p.again()+", or end it with engine sandbox kill "+name+" "+e.ID)
		return nil
	case err != nil:
		return p.lost(err)
	}
	return p.report()
}

// notStarted gives the statuses of a shell to a command that is not there.
func (a *app) notStarted(err error) error {
	var e *engine.Error
	if errors.As(err, &e) {
		a.failStatus = engine.ExitStatus(engine.Result{Error: e})
	}
	return err
}

// lost says how to go on after a failure to follow the program, which does not end by it.
func (p *followed) lost(err error) error {
	var known *engine.Error // which says so already
	if errors.As(err, &known) {
		return err
	}
	e := cli.AsError(fromService(err))
	if e.Kind == "no_service" {
		e.Fix = p.again() + " once there is a service"
	}
	return e
}

// again is how to go on with a program that is followed no longer.
func (p *followed) again() string {
	return "follow it with engine sandbox logs -f " + p.sandbox + " " + p.id
}

// errInterrupted is that a signal told this program to end.
var errInterrupted = errors.New("interrupted")

// followed is a program in a sandbox whose output is passed on.
type followed struct {
	app         *app
	client      *client.Client
	sandbox, id string
	streams     *cli.Streams

	cursor string // behind what was passed on
	over   bool   // it has exited
	result *wire.ExecResult
}

// take passes on one event.
func (p *followed) take(ev wire.ExecEvent) error {
	p.cursor = ev.Cursor
	if ev.Kind == "exit" {
		p.over, p.result = true, ev.Result
		return p.streams.End()
	}
	return p.streams.Add(pieceOf(ev))
}

func pieceOf(ev wire.ExecEvent) cli.Piece {
	return cli.Piece{Stderr: ev.Stream == "stderr", Data: ev.Data, Dropped: ev.Dropped, Tail: ev.Kind == "tail"}
}

// rest follows the program to its end.
func (p *followed) rest(ctx context.Context) error {
	for ev, err := range p.client.FollowExec(ctx, p.sandbox, p.id, p.cursor) {
		if err == nil {
			err = p.take(ev)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// plainly follows a program without a terminal.
func (p *followed) plainly(ctx context.Context, stdin bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		<-signals
		signal.Stop(signals) // a second one ends us, whatever holds us up
		cancel(errInterrupted)
	}()
	if stdin {
		go func() {
			if err := p.pipe(ctx); err != nil {
				cancel(err)
			}
		}()
	}
	err := p.rest(ctx)
	if cause := context.Cause(ctx); cause != nil && !p.over {
		return cause
	}
	return err
}

// pipe passes our stdin on, in pieces that are each acknowledged, and then its end.
// A service that cannot have seen a piece is asked again; if it may have, nobody knows how
// much of it the program read, and half must not be taken for the whole.
func (p *followed) pipe(ctx context.Context) error {
	buffer := make([]byte, 256<<10)
	for {
		n, readErr := p.app.stdin.Read(buffer)
		if readErr != nil && readErr != io.EOF {
			return engine.Failed("no_input", "cannot read stdin: %w", readErr)
		}
		_, err := p.client.WriteStdin(ctx, p.sandbox, p.id, bytes.NewReader(buffer[:n]), readErr == io.EOF)
		if client.IsKind(err, "not_running") {
			return nil // its exit is on the way
		}
		var told *client.Error
		if err != nil && (!errors.As(err, &told) || told.Kind == "draining") {
			return engine.Failed("no_service", "cannot pass stdin on: the service went away, and nobody knows how much of it exec=%s has read: %w", p.id, err).
				WithFix("end the program with engine sandbox kill, and start it anew")
		}
		if err != nil || readErr == io.EOF {
			return err
		}
	}
}

// report makes our exit status of what became of the program.
func (p *followed) report() error {
	if p.result == nil {
		return engine.Failed("lost", "cannot tell what became of exec=%s in sandbox=%s: the sandbox ended before the program had", p.id, p.sandbox).
			WithFix("see engine sandbox inspect " + p.sandbox)
	}
	if e := p.result.Error; e != nil {
		return p.app.notStarted(fromWire(*e))
	}
	reason := engine.Reason(p.result.Reason)
	p.app.status = engine.ExitStatus(engine.Result{Reason: &reason, ExitCode: p.result.ExitCode, Signal: &p.result.Signal})
	if p.result.TimedOut {
		p.app.Say("exec "+p.id+" was ended at its deadline", "")
	}
	return nil
}

func (a *app) sandboxKillCommand(f *serviceFlags) *cobra.Command {
	name := "KILL"
	cmd := &cobra.Command{
		Use:     "kill NAME EXEC",
		Short:   "send a signal to a program in a sandbox and to its process group",
		Example: "  engine sandbox kill --signal TERM dev $id",
		Args:    cli.Exactly(2),
		RunE: a.onService(f, func(ctx context.Context, c *client.Client, args []string) error {
			return c.SignalExec(ctx, args[0], args[1], name)
		}),
	}
	cmd.Flags().StringVar(&name, "signal", name, "`NAME` or number")
	return cmd
}

type sandboxLogs struct {
	follow, raw bool
}

func (a *app) sandboxLogsCommand(f *serviceFlags) *cobra.Command {
	l := sandboxLogs{}
	cmd := &cobra.Command{
		Use:   "logs [flags] NAME EXEC",
		Short: "print what a program in a sandbox wrote, as far as it was kept",
		Long: "logs prints the output on record: the program's stdout on stdout, its stderr on stderr.\n" +
			"What was not kept is told on stderr. On a terminal control characters are shown, not\n" +
			"obeyed. engine sandbox inspect lists the programs of a sandbox.\n\n" +
			"With --json each piece is one line, the API's event: {\"cursor\",\"kind\",\"stream\",\"seq\",\n" +
			"\"time\",\"data\",\"dropped\",\"result\"}.",
		Args: cli.Exactly(2),
		RunE: a.onService(f, func(ctx context.Context, c *client.Client, args []string) error {
			return a.sandboxLogs(ctx, c, l, args[0], args[1])
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVarP(&l.follow, "follow", "f", false, "go on until the program has ended")
	flags.BoolVar(&l.raw, "raw", false, "print control characters as they are, also on a terminal")
	flags.BoolVar(&a.json, "json", false, "print each piece as a line of JSON")
	return cmd
}

func (a *app) sandboxLogs(ctx context.Context, c *client.Client, l sandboxLogs, name, id string) error {
	streams := cli.NewStreams(&a.Output, a.stdout, a.stderr, l.raw)
	show := func(ev wire.ExecEvent) error {
		if a.json {
			return a.PrintJSON(ev)
		}
		return streams.Add(pieceOf(ev))
	}
	if l.follow {
		if _, err := c.Exec(ctx, name, id); err != nil { // soon told, if there is no service
			return err
		}
		c.Patience = client.DefaultPatience
		for ev, err := range c.FollowExec(ctx, name, id, "") {
			if err == nil {
				err = show(ev)
			}
			if err != nil {
				return err
			}
		}
		return streams.End()
	}
	for cursor := ""; ; {
		page, err := c.ExecEvents(ctx, name, id, cursor)
		if err != nil {
			return err
		}
		for _, ev := range page.Events {
			if err := show(ev); err != nil {
				return err
			}
		}
		if cursor = page.Next; page.Done || len(page.Events) == 0 {
			return streams.End()
		}
	}
}
