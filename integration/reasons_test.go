package integration

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/direct-oci/engine/integration/testenv"
)

// slack is how late a run may end that was ended. The promise is half a second; a
// machine in software has no clock that could hold it to that.
func slack() time.Duration {
	if testenv.InVM() {
		return 20 * time.Second
	}
	return 500 * time.Millisecond
}

// TestReasonExited proves that a program's own exit status comes out, in the result
// and as the command line's own.
func TestReasonExited(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		for _, code := range []int{0, 1, 42, 255} {
			r := run(t, runtime, nil, "/probe", "leave", strconv.Itoa(code))
			r.want(t, "exited", code)
			if r.Runtime.Name != runtime || r.Runtime.Version == "" {
				t.Errorf("runtime = %+v, want %s and its version", r.Runtime, runtime)
			}
		}
	})
}

// TestReasonSignal proves that the death of a program by a signal is told from an exit
// status, and a SIGKILL of its own from one for memory.
func TestReasonSignal(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		for name, number := range map[string]int{"SIGSEGV": 11, "SIGKILL": 9, "SIGTERM": 15} {
			r := run(t, runtime, nil, "/probe", "raise", strconv.Itoa(number))
			r.want(t, "signal", 128+number)
			if r.Signal != nil && *r.Signal != name {
				t.Errorf("signal = %q, want %q", *r.Signal, name)
			}
		}
	})
}

// TestReasonTimeout proves that the deadline ends a whole tree of processes, whatever
// it does to survive, and that the call returns soon after.
func TestReasonTimeout(t *testing.T) {
	begin(t)
	tests := []struct {
		name    string
		command []string
		stdout  string
	}{
		{"a program that sleeps", []string{"/probe", "hold"}, "ready\n"},
		{"grandchildren with sessions of their own, deaf to signals, that hold the output", []string{"/probe", "shrug"}, "here\n"},
		{"a fork bomb", []string{"/probe", "bomb"}, "bombing\n"},
	}
	deadline := 1500 * time.Millisecond
	if testenv.InVM() {
		deadline = 5 * time.Second // a program takes longer to begin
	}
	ms := float64(deadline.Milliseconds())
	eachRuntime(t, func(t *testing.T, runtime string) {
		for _, tt := range tests {
			if tt.name == "a fork bomb" && !controlled() {
				continue // nothing on this host would bound it
			}
			r := run(t, runtime, []string{"--timeout", deadline.String(), "--pids", "64"}, tt.command...)
			r.want(t, "timeout", 124)
			if r.Stdout != tt.stdout {
				t.Errorf("%s: stdout = %q, want %q", tt.name, r.Stdout, tt.stdout)
			}
			if r.DurationMs < ms || r.DurationMs > ms+float64(slack().Milliseconds()) {
				t.Errorf("%s: ran for %.0f ms, want %.0f and little more", tt.name, r.DurationMs, ms)
			}
			late := r.call.Duration - time.Duration((*r.Timing.SandboxMs+ms)*float64(time.Millisecond))
			if late > slack() {
				t.Errorf("%s: the call returned %v after the deadline, want at most %v", tt.name, late, slack())
			}
			if got := r.Limits.TimeoutSeconds; got != deadline.Seconds() {
				t.Errorf("%s: timeoutSeconds = %v, want %v", tt.name, got, deadline.Seconds())
			}
		}
	})
}

// TestGrandchildrenEndWithTheProgram proves that a program's exit ends what it left
// running, even where that holds the output open.
func TestGrandchildrenEndWithTheProgram(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		r := run(t, runtime, []string{"--timeout", "60s"}, "/probe", "shrug", "leave")
		r.want(t, "exited", 0)
		if r.Stdout != "here\n" || r.DurationMs > 30_000 {
			t.Errorf("stdout = %q after %.0f ms, want \"here\\n\" long before the deadline", r.Stdout, r.DurationMs)
		}
	})
}

// TestReasonOOM proves that memory is limited for the whole sandbox, however it is
// used up, and that this is the reason given.
func TestReasonOOM(t *testing.T) {
	begin(t)
	requireLimits(t)
	tests := []struct {
		name    string
		command []string
	}{
		{"the heap of one process", []string{"/probe", "touch", "400000000"}},
		{"many processes together", []string{"/probe", "spread", "16", "24000000"}},
		{"files in memory", []string{"/probe", "fill", "/dev/shm/x", "/tmp/x", "/workload/x"}},
	}
	eachRuntime(t, func(t *testing.T, runtime string) {
		for _, tt := range tests {
			r := run(t, runtime, []string{"--memory", "128MiB", "--tmp-size", "128MiB"}, tt.command...)
			r.want(t, "oom", 137)
			if peak := r.Actuals.PeakMemBytes; peak == nil || *peak < 120<<20 || *peak > 130<<20 {
				t.Errorf("%s: peakMemBytes = %v, want about the limit", tt.name, r.call.Stdout)
			}
			if kills := r.Actuals.OOMKills; kills == nil || *kills < 1 {
				t.Errorf("%s: oomKills = %v, want at least 1", tt.name, r.call.Stdout)
			}
		}
	})
}

// TestReasonOutput proves that --output-max ends a program that writes too much.
func TestReasonOutput(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		r := run(t, runtime, []string{"--output-max", "100kB", "--output-limit", "10kB"}, "/probe", "emit", "1000000000")
		r.want(t, "output", 153)
		if r.StdoutBytes <= 100_000 || len(r.Stdout) > 30_000 || !r.StdoutTruncated {
			t.Errorf("kept %d of %d bytes, truncated = %v: want some 10 kB of more than 100", len(r.Stdout), r.StdoutBytes, r.StdoutTruncated)
		}
	})
}

// TestReasonCancelled proves that a run is ended by a signal to its command line, and
// by engine kill, and that both wait until it has ended.
func TestReasonCancelled(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			l := start(t, runtime, nil, "/probe", "shrug")
			l.Signal(t, sig)
			l.end(t).want(t, "cancelled", 130)
		}
		l := start(t, runtime, nil, "/probe", "shrug")
		kill := testenv.Exec(t, "kill", l.id[:9])
		if kill.Status != 0 {
			t.Errorf("%s\nwant status 0", kill)
		}
		if r := inspect(t, l.id); r.Result == nil || *r.Result.Reason != "cancelled" {
			t.Errorf("after engine kill the record is %+v, want the result there", r)
		}
		l.end(t).want(t, "cancelled", 130)
	})
}

// TestReasonInternal proves that the death of the sandbox's own machinery is a failure
// of the engine or host, and no result of the program.
func TestReasonInternal(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		l := start(t, runtime, nil, "/probe", "hold")
		victim := "init"
		if runtime == "runsc" {
			victim = "runsc"
		}
		killed := 0
		for pid, exe := range l.procs(t) {
			if n, err := strconv.Atoi(pid); err == nil && (exe == victim || strings.HasPrefix(exe, victim+" ")) {
				if err := syscall.Kill(n, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
					t.Errorf("cannot kill %s %d: %v", exe, n, err)
				}
				killed++
			}
		}
		if killed == 0 {
			t.Fatalf("found no %s in %v", victim, l.procs(t))
		}
		r := l.end(t)
		r.want(t, "internal", 125)
		if r.Error != nil && (r.Error.Class != "engine" || r.Error.Kind != "sandbox_died") {
			t.Errorf("error = %+v, want class engine and kind sandbox_died", *r.Error)
		}
	})
}

// TestCommandsThatCannotRun proves the exit statuses of a shell for commands that are
// not there, or are no programs, and that they are the request's fault.
func TestCommandsThatCannotRun(t *testing.T) {
	begin(t)
	tests := []struct {
		command []string
		flags   []string
		kind    string
		status  int
	}{
		{[]string{"/nowhere"}, nil, "command_not_found", 127},
		{[]string{"nowhere"}, nil, "command_not_found", 127},
		{[]string{"/orphan"}, nil, "command_not_found", 127},
		{[]string{"/text"}, nil, "command_not_executable", 126},
		{[]string{"/broken"}, nil, "command_not_executable", 126},
		{[]string{"/bin"}, nil, "command_not_executable", 126},
		{[]string{"/probe", "leave", "0"}, []string{"--workdir", "/nowhere"}, "bad_workdir", 125},
	}
	eachRuntime(t, func(t *testing.T, runtime string) {
		for _, tt := range tests {
			if runtime != "embedded" && !slices.Contains([]string{"/nowhere", "/text"}, tt.command[0]) {
				continue // the same engine-init answers
			}
			r := run(t, runtime, tt.flags, tt.command...)
			r.want(t, "null", tt.status)
			if r.Error != nil && (r.Error.Class != "request" || r.Error.Kind != tt.kind || r.Error.Fix == "") {
				t.Errorf("%q: error = %+v, want class request, kind %s and a fix", tt.command, *r.Error, tt.kind)
			}
		}
	})
}
