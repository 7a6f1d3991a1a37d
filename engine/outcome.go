package engine

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine/journal"
)

// result puts together what is known, all but the output, which is on record beside it.
func (sb *sandbox) result(u cgroups.Usage) Result {
	e := sb.end
	r := newResult(sb.Request)
	r.Error = e.err
	r.Unenforced = append(r.Unenforced, sb.Plan.Unenforced...)
	r.Image = sb.image.info
	if sb.runtime != nil {
		info := sb.runtime.Info()
		r.Runtime = RuntimeInfo{Name: info.Name, Version: info.Version}
	}
	r.setReason(e.reason)
	switch e.reason {
	case ReasonExited:
		r.ExitCode = &e.code
		r.OK = e.code == 0
	case ReasonSignal:
		r.Signal = &e.signal
	}
	r.Actuals = actuals(u)
	if err := sb.network.report(&r.Network, &r.Actuals); err != nil && r.Error == nil {
		r.Error = Failed("no_usage", "cannot read what the network of run=%s carried: %w", sb.Request.ID, err)
	}
	if r.Runtime.Name == "runsc" {
		r.Actuals.PidsRefused = nil // refused inside the Sentry, which the host does not see
	}
	if sb.output != nil {
		r.StdoutBytes, r.StderrBytes = sb.output.Written(journal.Stdout), sb.output.Written(journal.Stderr)
		r.StdoutTruncated, r.StderrTruncated = sb.output.Truncated(journal.Stdout), sb.output.Truncated(journal.Stderr)
	}
	r.Timing = sb.timing()
	switch {
	case e.duration > 0:
		r.DurationMs = millis(e.duration.Nanoseconds())
	case e.started > 0:
		r.DurationMs = millis(e.stopped - e.started)
	}
	return r
}

// newResult is the result of a request of which nothing else is known.
func newResult(req Request) Result {
	layers := []LayerInfo{}
	for _, l := range req.Layers {
		layers = append(layers, LayerInfo{l.Name, l.Digest})
	}
	return Result{
		ID: req.ID,
		Limits: ResultLimits{
			CPUs:           req.Limits.CPUs,
			MemoryMB:       float64(req.Limits.Memory) / (1 << 20),
			Pids:           req.Limits.Pids,
			TimeoutSeconds: req.Limits.Timeout.Seconds(),
		},
		Timing:     Timing{Phases: []Phase{}},
		Unenforced: []string{},
		Changes:    []FileChange{},
		Layers:     layers,
		Network:    NetworkInfo{Mode: req.Egress.Mode(), Denied: []Denied{}, Allowed: []Allowed{}},
	}
}

// setReason sets the reason and what follows from it alone. "" is a run that never
// started.
func (r *Result) setReason(reason Reason) {
	if reason == "" {
		return
	}
	r.Reason = &reason
	r.TimedOut = reason == ReasonTimeout
	r.OOMKilled = reason == ReasonOOM
}

func (sb *sandbox) timing() Timing {
	t := Timing{TotalMs: sb.clock.since(bootNow()), Phases: sb.clock.phases()}
	if sb.end.ready == 0 {
		return t
	}
	ready := sb.clock.since(sb.end.ready)
	t.SandboxMs = &ready
	if sb.outputs == nil {
		return t
	}
	if first := sb.outputs.first.Load(); first > 0 {
		after := millis(max(first-sb.end.ready, 0))
		t.FirstOutputMs = &after
	}
	return t
}

// actuals converts what the kernel charged.
func actuals(u cgroups.Usage) Usage {
	return Usage{
		BusyCPUSecs:   seconds(u.CPU),
		UserCPUSecs:   seconds(u.User),
		SystemCPUSecs: seconds(u.System),
		ThrottledSecs: seconds(u.Throttled),
		PeakMemBytes:  u.MemoryPeak,
		PeakPids:      u.PidsPeak,
		PidsRefused:   u.PidsRefused,
		OOMKills:      u.OOMKills,
		IOReadBytes:   u.IORead,
		IOWriteBytes:  u.IOWrite,
	}
}

func seconds(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	s := d.Seconds()
	return &s
}

// Exit statuses that are not the program's own.
const (
	statusTimeout       = 124
	statusFailed        = 125
	statusNotExecutable = 126
	statusNotFound      = 127
	statusCancelled     = 130
	statusOOM           = 137
	statusOutput        = 153
	statusSignal        = 128 // plus the signal's number
)

// ExitStatus is the exit status that stands for a result, the program's own or one
// of the fixed ones: 124 deadline, 130 cancelled, 137 out of memory, 153 output,
// 128+n signal, 126 and 127 the command cannot be run or is not found, 125 the rest.
func ExitStatus(r Result) int {
	if r.Reason == nil {
		if r.Error != nil && r.Error.Kind == "command_not_found" {
			return statusNotFound
		}
		if r.Error != nil && r.Error.Kind == "command_not_executable" {
			return statusNotExecutable
		}
		return statusFailed
	}
	switch *r.Reason {
	case ReasonExited:
		if r.ExitCode != nil {
			return *r.ExitCode
		}
	case ReasonSignal:
		if r.Signal != nil {
			if n := signalNumber(*r.Signal); n > 0 {
				return statusSignal + n
			}
		}
	case ReasonTimeout, ReasonIdle:
		return statusTimeout
	case ReasonOOM:
		return statusOOM
	case ReasonOutput:
		return statusOutput
	case ReasonCancelled:
		return statusCancelled
	case ReasonLost, ReasonInterrupted, ReasonInternal:
	}
	return statusFailed
}

// signalNumber is the reverse of signalName.
func signalNumber(name string) int {
	for n := 1; n <= 64; n++ {
		if signalName(unix.Signal(n)) == name {
			return n
		}
	}
	return 0
}
