package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
)

// windowSize is that of the first file that is a terminal.
func windowSize(files ...*os.File) wire.WindowSize {
	for _, f := range files {
		if s, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && s.Row > 0 && s.Col > 0 {
			return wire.WindowSize{Rows: s.Row, Columns: s.Col}
		}
	}
	return wire.WindowSize{Rows: 24, Columns: 80}
}

// makeRaw has a terminal pass every key on, and returns what makes it as it was.
func makeRaw(f *os.File) (restore func(), err error) {
	fd := int(f.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, engine.Failed("no_input", "cannot read the terminal's settings: %w", err)
	}
	raw := *before
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, engine.Failed("no_input", "cannot change the terminal's settings: %w", err)
	}
	return func() {
		// Of a terminal that is gone nobody misses the settings.
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, before)
	}, nil
}

// typed is one thing that goes to a program on a terminal: keys, or something said beside
// them.
type typed struct {
	keys    []byte
	control *wire.Control
}

func (k typed) send(ctx context.Context, a *client.Attached) error {
	if k.control != nil {
		return a.Control(ctx, *k.control)
	}
	return a.Write(ctx, k.keys)
}

// onTerminal follows a program that has a terminal, across broken connections.
//
// Our own terminal is raw only while this function runs. Signals that would end us are
// caught, so that it always returns.
func (p *followed) onTerminal(ctx context.Context, stdin bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	input := make(chan typed)
	defer p.passSignals(ctx, cancel, input)()
	if stdin {
		restore, err := makeRaw(p.app.stdin)
		if err != nil {
			return err
		}
		defer restore()
		go readKeys(ctx, p.app.stdin, input)
	}
	err := p.attached(ctx, input)
	if cause := context.Cause(ctx); cause != nil && !p.over {
		return cause
	}
	return err
}

// readKeys passes on what is typed until there is no more.
func readKeys(ctx context.Context, from io.Reader, input chan<- typed) {
	for {
		buffer := make([]byte, 16<<10)
		n, err := from.Read(buffer)
		if n > 0 && !say(ctx, input, typed{keys: buffer[:n]}) {
			return
		}
		if err != nil { // also that of a terminal that was hung up
			say(ctx, input, typed{control: &wire.Control{Type: "close"}})
			return
		}
	}
}

func say(ctx context.Context, input chan<- typed, k typed) bool {
	select {
	case input <- k:
		return true
	case <-ctx.Done():
		return false
	}
}

// passSignals has the program's terminal follow the size of ours, and passes on what
// others send to us. The second signal that would end us does so: a program may ignore its.
func (p *followed) passSignals(ctx context.Context, cancel context.CancelCauseFunc, input chan<- typed) (stop func()) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGWINCH, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		ends := 0
		for {
			select {
			case <-ctx.Done():
				return
			case sig := <-signals:
				control := &wire.Control{Type: "signal", Signal: unix.SignalName(sig.(syscall.Signal))}
				if sig == unix.SIGWINCH {
					size := windowSize(p.app.stdout, p.app.stdin)
					control = &wire.Control{Type: "resize", Rows: size.Rows, Columns: size.Columns}
				} else if ends++; ends > 1 {
					cancel(errInterrupted)
				}
				say(ctx, input, typed{control: control})
			}
		}
	}()
	return func() { signal.Stop(signals) }
}

// attached is the program's terminal on one connection after the other, each begun behind
// what was shown, until the program's exit.
func (p *followed) attached(ctx context.Context, input <-chan typed) error {
	var kept *typed // what a broken connection did not take
	last := time.Now()
	for {
		a, err := p.client.Attach(ctx, p.sandbox, p.id, p.cursor)
		if client.IsKind(err, "not_running") {
			return p.rest(ctx) // it ended meanwhile
		}
		if err != nil {
			return err
		}
		from := p.cursor
		kept, err = p.serve(ctx, a, input, kept)
		var broken *brokenError
		if err != nil && !errors.As(err, &broken) || ctx.Err() != nil {
			return err
		}
		if p.over {
			return nil
		}
		if p.cursor != from {
			last = time.Now()
		}
		if time.Since(last) > client.DefaultPatience {
			return engine.Failed("no_service", "cannot stay attached to exec=%s: %w", p.id, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// brokenError is the end of a connection that another can follow.
type brokenError struct{ error }

// serve passes input and output on until the connection ends.
func (p *followed) serve(ctx context.Context, a *client.Attached, input <-chan typed, kept *typed) (*typed, error) {
	ctx, cancel := context.WithCancel(ctx)
	left := make(chan *typed, 1)
	go func() { left <- passKeys(ctx, a, input, kept) }()
	err := p.show(ctx, a)
	cancel()
	a.Close()
	return <-left, err
}

// show passes on what the program's terminal shows.
func (p *followed) show(ctx context.Context, a *client.Attached) error {
	for {
		ev, err := a.Next(ctx)
		switch {
		case err == io.EOF && p.over:
			return nil
		case err != nil:
			return &brokenError{err}
		}
		if err := p.take(ev); err != nil {
			return err
		}
	}
}

// passKeys sends what is typed, and returns what could not be sent.
func passKeys(ctx context.Context, a *client.Attached, input <-chan typed, kept *typed) *typed {
	for {
		if kept == nil {
			select {
			case k := <-input:
				kept = &k
			case <-ctx.Done():
				return nil
			}
		}
		if kept.send(ctx, a) != nil {
			return kept
		}
		kept = nil
	}
}
