package testenv

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Patience bounds every wait of a test for the engine. Under emulation all is some
// ten times slower, and a loaded host adds its part.
const Patience = 2 * time.Minute

// Result is how one call of a program ended.
type Result struct {
	Args           []string
	Stdout, Stderr string
	Status         int // as a shell would report it
	Duration       time.Duration
}

// Exec runs engine with the given arguments and no input.
func Exec(t testing.TB, args ...string) Result {
	t.Helper()
	return ExecInput(t, nil, args...)
}

// ExecInput runs engine with the given arguments and stdin.
func ExecInput(t testing.TB, stdin io.Reader, args ...string) Result {
	t.Helper()
	p := Start(t, stdin, append([]string{"engine"}, args...)...)
	return p.Wait(t)
}

// Process is a program that a test has started.
type Process struct {
	Cmd            *exec.Cmd
	start          time.Time
	stdout, stderr bytes.Buffer
	cancel         context.CancelFunc
}

// Start starts one of the built programs, or one on PATH, and does not wait. It is
// killed at the test's end, or when Patience is over.
func Start(t testing.TB, stdin io.Reader, args ...string) *Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	p := &Process{cancel: cancel}
	p.Cmd = exec.CommandContext(ctx, Binary(t, args[0]), args[1:]...)
	p.Cmd.Stdin, p.Cmd.Stdout, p.Cmd.Stderr = stdin, &p.stdout, &p.stderr
	// Whoever keeps the pipes open after the program's end is a bug to be seen as
	// such, by the process that HostState lists, not as a test that hangs.
	p.Cmd.WaitDelay = 5 * time.Second
	p.start = time.Now()
	if err := p.Cmd.Start(); err != nil {
		cancel()
		t.Fatalf("cannot start %q: %v", args, err)
	}
	t.Cleanup(cancel)
	return p
}

// Signal sends a signal to the program.
func (p *Process) Signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := p.Cmd.Process.Signal(sig); err != nil {
		t.Fatalf("cannot send %v to %q: %v", sig, p.Cmd.Args, err)
	}
}

// Wait waits for the program's end. The test fails if that takes longer than
// Patience, or if somebody else holds its output open.
func (p *Process) Wait(t testing.TB) Result {
	t.Helper()
	defer p.cancel()
	err := p.Cmd.Wait()
	res := Result{
		Args: p.Cmd.Args, Stdout: p.stdout.String(), Stderr: p.stderr.String(),
		Duration: time.Since(p.start), Status: p.Cmd.ProcessState.ExitCode(),
	}
	if ws, ok := p.Cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		res.Status = 128 + int(ws.Signal())
	}
	var exit *exec.ExitError
	switch {
	case err == nil || errors.As(err, &exit) && res.Duration < Patience:
	case res.Duration >= Patience:
		t.Fatalf("%s\nwas killed: not done after %v", res, Patience)
	default:
		t.Fatalf("%s\n%v", res, err)
	}
	return res
}

// String shows the whole result, for failure messages.
func (r Result) String() string {
	var b strings.Builder
	b.WriteString("$ " + strings.Join(r.Args, " ") + "\n")
	for _, s := range []struct{ name, text string }{{"stdout", r.Stdout}, {"stderr", r.Stderr}} {
		if s.text != "" {
			b.WriteString("-- " + s.name + " --\n" + strings.TrimSuffix(s.text, "\n") + "\n")
		}
	}
	b.WriteString("-- status " + strconv.Itoa(r.Status) + " after " + r.Duration.Round(time.Millisecond).String())
	return b.String()
}
