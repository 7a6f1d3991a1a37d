package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
)

// logs is what the flags of the command come to.
type logs struct {
	follow  bool
	raw     bool
	streams [2]bool // stdout, stderr
	offset  int64
}

func (a *app) logsCommand() *cobra.Command {
	l := logs{streams: [2]bool{true, true}}
	cmd := &cobra.Command{
		Use:   "logs [flags] ID [EXEC]",
		Short: "print what a run wrote, or one program of a session, as far as it was kept",
		Long: "logs prints the output on record: the program's stdout on stdout, its stderr on\n" +
			"stderr. Of a stream that was longer than --output-limit that is its beginning and\n" +
			"its last 64 KiB; the gap is told on stderr. On a terminal control characters are\n" +
			"shown, not obeyed. A session has no output of its own, but each of its execs has.\n" +
			"\n" +
			"With --json each piece is one line: {\"stream\",\"sequence\",\"time\",\"data\",\"dropped\",\n" +
			"\"offset\"}. Data is base64, dropped counts bytes that were not kept, and offset is what\n" +
			"--offset takes to go on behind this piece, also after the run or this program was killed.",
		Args: cli.Between(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.logs(cmd.Context(), l, args[0], strings.Join(args[1:], ""))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVarP(&l.follow, "follow", "f", false, "go on until the run has ended")
	flags.Var(&value{typ: "NAME", def: "both", set: func(text string) error {
		l.streams = [2]bool{text != "stderr", text != "stdout"}
		if text != "stdout" && text != "stderr" && text != "both" {
			return engine.Refused("bad_flag", "cannot accept --stream=%q: want stdout, stderr or both", text)
		}
		return nil
	}}, "stream", "stdout, stderr or both")
	flags.BoolVar(&l.raw, "raw", false, "print control characters as they are, also on a terminal")
	flags.BoolVar(&a.json, "json", false, "print each piece as a line of JSON")
	flags.Int64Var(&l.offset, "offset", 0, "go on behind the piece that --json printed this offset with")
	flags.BoolVar(&a.Quiet, "quiet", false, "do not say what is missing")
	return cmd
}

func (a *app) logs(ctx context.Context, l logs, id, exec string) error {
	if l.offset < 0 {
		return engine.Refused("bad_flag", "cannot accept --offset=%d: want 0 or an offset that --json printed", l.offset)
	}
	record, err := a.host.Load(id)
	if err != nil {
		return err
	}
	path, err := a.outputOf(record, exec)
	if err != nil {
		return err
	}
	alive := func() bool {
		ok, err := a.host.Alive(record.ID)
		return err == nil && ok
	}
	r, err := openOutput(ctx, path, l.offset, func() bool { return l.follow && alive() })
	if err != nil || r == nil {
		return err
	}
	next := r.Next
	if l.follow {
		next = func() (journal.OutputRecord, error) { return r.Follow(ctx, alive) }
	}
	if a.json {
		err = a.printPieces(l, next, r.Offset)
	} else {
		err = a.copyOutput(l, next)
	}
	err = errors.Join(err, r.Close())
	var corrupt *journal.CorruptError
	if l.offset > 0 && errors.As(err, &corrupt) {
		return engine.Refused("bad_flag", "cannot read the output of run=%s from --offset=%d: %w", record.ID, l.offset, err).
			WithFix("use an offset that --json printed for this run")
	}
	if err != nil {
		return engine.Failed("no_record", "%w", err)
	}
	return nil
}

// outputOf is where the output of a run is on record, or of a session's exec.
func (a *app) outputOf(record engine.Record, exec string) (string, error) {
	switch {
	case exec != "":
		if _, err := a.host.LoadExec(record.ID, exec); err != nil {
			return "", err
		}
		return a.host.ExecOutputPath(record.ID, exec), nil
	case record.Request.Session == nil:
		return a.host.OutputPath(record.ID), nil
	}
	execs, err := a.host.Execs(record.ID)
	if err != nil {
		return "", err
	}
	const shown = 8
	var names []string
	for _, e := range execs[max(0, len(execs)-shown):] {
		names = append(names, e.ID)
	}
	fix := "start a program in it first"
	if len(names) > 0 {
		fix = "name one of its execs, such as the last ones: " + strings.Join(names, " ")
	}
	return "", engine.Refused("bad_session", "cannot print the output of session=%s: it has none of its own", record.ID).WithFix(fix)
}

// piece is one record of output as --json prints it.
type piece struct {
	Stream   string    `json:"stream"`
	Sequence uint64    `json:"sequence"` // over both streams; 0 where bytes are missing
	Time     time.Time `json:"time"`
	Data     []byte    `json:"data"`
	Dropped  int64     `json:"dropped"`
	Offset   int64     `json:"offset"`
}

// printPieces prints records as they stand until next returns io.EOF.
func (a *app) printPieces(l logs, next func() (journal.OutputRecord, error), offset func() int64) error {
	for {
		rec, err := next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if rec.Kind == journal.KindEnd || !l.streams[rec.Stream-1] {
			continue
		}
		p := piece{rec.Stream.String(), rec.Sequence, rec.Time.UTC(), rec.Data, rec.Dropped, offset()}
		if err := a.PrintJSON(p); err != nil {
			return err
		}
	}
}

// openOutput opens the output record, waiting for it to be made as long as more
// says that it may be. A run that never wrote has none: nil.
func openOutput(ctx context.Context, path string, offset int64, more func() bool) (*journal.OutputReader, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for last := !more(); ; last = !more() {
		r, err := journal.OpenOutputAt(path, offset)
		switch {
		case err == nil:
			return r, nil
		case !errors.Is(err, fs.ErrNotExist):
			return nil, engine.Failed("no_record", "%w", err)
		case last:
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return nil, engine.Failed("cancelled", "cannot follow the output: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// copyOutput prints records until next returns io.EOF.
func (a *app) copyOutput(l logs, next func() (journal.OutputRecord, error)) error {
	streams := cli.NewStreams(&a.Output, a.stdout, a.stderr, l.raw)
	for {
		rec, err := next()
		if err == io.EOF {
			return streams.End()
		}
		if err != nil {
			return err
		}
		if rec.Kind == journal.KindEnd || !l.streams[rec.Stream-1] {
			continue
		}
		piece := cli.Piece{Stderr: rec.Stream == journal.Stderr, Data: rec.Data, Dropped: rec.Dropped, Tail: rec.Kind == journal.KindTail}
		if err := streams.Add(piece); err != nil {
			return err
		}
	}
}
