package engine

import (
	"encoding/json"
	"strings"
	"syscall"
	"time"

	"github.com/direct-oci/engine/engine/initwire"
	"github.com/direct-oci/engine/engine/journal"
)

// Session makes a run one without a program of its own: its sandbox stays, and
// programs are started in it by Host.Exec, any number and many at once. It ends when
// it is killed, when its time to live is over (Limits.Timeout, counted from the moment
// it is ready, or from the last Host.Renew), or when it was idle for too long.
type Session struct {
	// IdleTimeout ends the session after so long without a program that runs and
	// without a call that starts, follows or changes something. Zero: never.
	IdleTimeout time.Duration `json:"idleTimeout"` // nanoseconds
}

// Exec is a program to be started in a session. It is written to the record as it
// stands, so it never holds a secret: those are the session's.
type Exec struct {
	// ID is chosen by the caller: a letter or digit, then at most 127 of those and of
	// "._:-". Empty: one is chosen. An exec happens once for each id that is on record:
	// another with the same id joins it, or is refused where it asks for something else.
	// An id whose exec was the oldest of more than a thousand that have ended is free
	// again.
	ID      string        `json:"id"`
	Command []string      `json:"command"`           // argv, searched on the PATH inside
	Env     []string      `json:"env,omitempty"`     // K=V, added to the session's
	Workdir string        `json:"workdir,omitempty"` // absolute path inside; empty: the session's
	Timeout time.Duration `json:"timeout"`           // nanoseconds from its start; 0: the session's end
	// TTY gives the program a terminal of this size. Its output is all stdout then.
	TTY *WindowSize `json:"tty,omitempty"`
	// Stdin is what ExecConn.Write writes to; without it the program reads /dev/null.
	Stdin bool `json:"stdin,omitempty"`
	// OutputKept is how much is kept of each stream's beginning, in bytes; its last
	// 64 KiB, or less if this is less, are kept as well. 0: DefaultLimits' OutputKept.
	OutputKept int64 `json:"outputKept"`
	// Raw hands stdin and stdout to the one caller who started the exec: its ExecConn
	// reads and writes the program's pipes themselves, and nothing of it is on record
	// but what the program writes to stderr.
	Raw bool `json:"raw,omitempty"`
}

// WindowSize is a terminal's, in characters.
type WindowSize struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// ExecResult is what an exec came to. A nil pointer is unknown or does not apply.
type ExecResult struct {
	// Reason is why it ended: exited, signal, timeout, or why its session did, first
	// of them cancelled, oom, lost and interrupted. Empty: it was never started, and
	// Error says why.
	Reason          Reason   `json:"reason"`
	ExitCode        *int     `json:"exitCode"`
	Signal          string   `json:"signal"` // "SIGSEGV"
	TimedOut        bool     `json:"timedOut"`
	StdoutBytes     int64    `json:"stdoutBytes"` // as written by the program, not counting what a raw exec's caller read
	StderrBytes     int64    `json:"stderrBytes"`
	StdoutTruncated bool     `json:"stdoutTruncated"`
	StderrTruncated bool     `json:"stderrTruncated"`
	DurationMs      float64  `json:"durationMs"`
	CPUSecs         *float64 `json:"cpuSecs"` // of the program and those of its children that it waited for
	Error           *Error   `json:"error"`
}

// ExecRecord is what is known of one exec.
type ExecRecord struct {
	ID      string      `json:"id"`
	Exec    Exec        `json:"exec"`
	Started time.Time   `json:"started"` // when it went on record, right before its start
	Result  *ExecResult `json:"result"`  // nil while it runs
}

const maxKept = 1 << 30

// validateSession checks what makes a request one of a session.
func (r Request) validateSession() error {
	if r.Session == nil {
		return nil
	}
	if len(r.Command) > 0 {
		return Refused("bad_session", "cannot accept command=%q: a session has none of its own", r.Command).
			WithFix("start it in the session, with an exec")
	}
	if idle := r.Session.IdleTimeout; idle != 0 && (idle < time.Millisecond || idle > maxTimeout) {
		return Refused("bad_session", "cannot accept idle-timeout=%v: want 0 for none, or 1ms to %v", idle, maxTimeout)
	}
	return nil
}

// validate reports the first thing that is wrong with the exec, as an *Error of class
// request.
func (e Exec) validate() error {
	if e.ID != "" && !journal.ValidExecID(e.ID) {
		return Refused("bad_id", "cannot accept exec=%q: want a letter or digit, then at most 127 of those and of \"._:-\"", e.ID)
	}
	if len(e.Command) == 0 {
		return Refused("bad_command", "cannot start nothing: the exec names no command")
	}
	if len(e.Env) > initwire.MaxExecEnv {
		return Refused("bad_env", "cannot accept %d variables: the limit is %d", len(e.Env), initwire.MaxExecEnv)
	}
	if err := (Request{Command: e.Command, Env: e.Env, Workdir: e.Workdir}).validateProgram(); err != nil {
		return err
	}
	if e.Timeout < 0 || e.Timeout > maxTimeout {
		return Refused("bad_limit", "cannot accept timeout=%v: want 0 for none, or at most %v", e.Timeout, maxTimeout)
	}
	if e.OutputKept < 0 || e.OutputKept > maxKept {
		return Refused("bad_limit", "cannot accept output-limit=%d: want 0 to %d", e.OutputKept, maxKept)
	}
	if e.TTY != nil && e.Raw {
		return Refused("bad_session", "cannot start exec=%q: a terminal's output cannot be raw", e.ID)
	}
	return nil
}

// settle completes an exec before it goes on record.
func (e Exec) settle() Exec {
	if e.ID == "" {
		e.ID = journal.NewID()
	}
	if e.OutputKept == 0 {
		e.OutputKept = DefaultLimits().OutputKept
	}
	e.Env = environ(e.Env)
	if e.Raw || e.TTY != nil {
		e.Stdin = true
	}
	return e
}

// sameExec compares what would be on record of two execs.
func sameExec(a, b Exec) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// validSignal reports whether a program can be sent this signal.
func validSignal(sig syscall.Signal) error {
	if sig < 1 || sig > 64 {
		return Refused("bad_signal", "cannot send signal=%d: want 1 to 64", int(sig))
	}
	return nil
}

// name is what messages call the exec's program.
func (e Exec) name() string { return strings.ToValidUTF8(e.Command[0], "\uFFFD") }
