package engine

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine/initwire"
	"github.com/direct-oci/engine/engine/journal"
)

// run is a run from its intent to the point where nothing of it is left:
//
//	create    in the run's cgroup, which the caller has made with every limit in force:
//	          isolate, then network, root and files side by side, then the runtime,
//	          then engine-init ready with its job
//	watch     until the program exits, the deadline, cancel, too much output, or the
//	          sandbox's own death, whichever comes first: the first sets the reason.
//	          For a session it is serve: no program's exit ends it, being idle may
//	kill      cgroup.kill, and wait until no process is left
//	measure   read the usage from the cgroup that outlives them
//	drain     what the pipes still hold
//	record    exit.json, on disk
//	report    the caller is told, and its streams are closed
//	teardown  everything, in reverse; then cleaned.json
//
// A step that fails leads straight to kill, and everything from there on happens in
// every case.
func (sb *sandbox) run(ctx context.Context, c *caller) error {
	start, stop := context.WithTimeout(ctx, startBound)
	go func() {
		select {
		case <-c.cancelled:
			stop()
		case <-start.Done():
		}
	}()
	err := sb.create(start, c.cancel)
	if err == nil {
		stop()
		if sb.Request.Session != nil {
			err = sb.serve(c)
		} else {
			err = sb.watch(c)
		}
	}
	sb.fail(err, c, start)
	stop()
	usage := sb.finish()
	result, err := sb.writeResult(usage)
	sb.report(c, err)
	return errors.Join(err, sb.teardown(ctx, func() error {
		if err == nil {
			return nil
		}
		// What was torn down may have made room on a disk that was full.
		return sb.record.Write(journal.Exit, result, true)
	}))
}

// writeResult puts the result on record, after all the notes before it.
func (sb *sandbox) writeResult(usage cgroups.Usage) (Result, error) {
	defer sb.clock.phase("record")()
	if err := sb.notes.wait(); err != nil && sb.end.err == nil {
		sb.end.err = Failed("no_record", "%w", err)
	}
	result := sb.result(usage)
	return result, sb.record.Write(journal.Exit, result, true)
}

// report lets the caller have the last of the output and the news that the result
// is there, or why it is not.
func (sb *sandbox) report(c *caller, failed error) {
	defer sb.clock.phase("report")()
	var err *Error
	if sb.outputs != nil {
		sb.outputs.flush(c.gone, sb.patience())
		if cause := sb.outputs.unsent(); cause != nil {
			err = Failed("no_output", "cannot pass on the output of run=%s: %w", sb.Request.ID, cause).
				WithFix("read it from the record with engine logs " + sb.Request.ID)
		}
	}
	if failed != nil {
		err = Failed("no_record", "cannot record the result of run=%s: %w", sb.Request.ID, failed).
			WithFix("free some space; engine gc then records that the run was lost")
	}
	c.tell(err)
	sb.closeStdio()
}

// fail notes an error of create or watch, unless the run was cancelled meanwhile.
func (sb *sandbox) fail(err error, c *caller, start context.Context) {
	if err == nil || sb.end.reason != "" {
		return
	}
	sb.end.stopped = bootNow()
	select {
	case <-c.cancelled:
		sb.end.reason = ReasonCancelled
		return
	default:
	}
	if errors.Is(err, context.DeadlineExceeded) && start.Err() != nil {
		err = sb.startTimeout()
	}
	sb.end.err = AsError(err)
	if sb.end.err.Class == ClassEngine {
		sb.end.reason = ReasonInternal
	}
}

// watch waits for the end of the program and decides what ended it.
func (sb *sandbox) watch(c *caller) error {
	defer sb.clock.phase("program")()
	var deadline <-chan time.Time
	start := time.NewTimer(startBound)
	defer start.Stop()
	var began time.Duration // engine-init's clock
	for {
		select {
		case f, ok := <-sb.guest.frames:
			switch {
			case !ok:
				// Not even engine-init is left. measure finds out whether memory was why.
				sb.stop(ReasonInternal)
				sb.end.err = sb.died()
				return nil
			case f.Type == initwire.Started:
				start.Stop()
				sb.end.started = bootNow()
				began = f.Time
				timer := time.NewTimer(sb.Request.Limits.Timeout)
				defer timer.Stop()
				deadline = timer.C
				sb.notes.write(journal.Started, map[string]int64{"bootNs": sb.end.started})
			case f.Type == initwire.Exited:
				sb.exited(f)
				sb.end.duration = f.Time - began
				sb.notes.write(journal.Ended, sb.end.record())
				return nil
			case f.Type == initwire.Failed:
				sb.end.stopped = bootNow()
				return sb.commandError(f)
			case f.Type == initwire.Deadline:
				sb.stop(ReasonTimeout)
				return nil
			}
		case <-start.C:
			return sb.startTimeout()
		case <-deadline:
			sb.stop(ReasonTimeout)
			return nil
		case <-c.cancelled:
			sb.stop(ReasonCancelled)
			return nil
		case <-sb.outputs.over:
			sb.stop(ReasonOutput)
			return nil
		}
	}
}

// died explains a sandbox that ended without a report.
func (sb *sandbox) died() *Error {
	select {
	case err := <-sb.guest.undelivered:
		return Failed("sandbox_died", "run=%s ended without a report: %w", sb.Request.ID, err)
	default:
		return Failed("sandbox_died", "run=%s ended without a report: its sandbox died", sb.Request.ID)
	}
}

func (sb *sandbox) startTimeout() *Error {
	return Failed("start_timeout", "cannot start run=%s: not ready after %v", sb.Request.ID, startBound)
}

func (sb *sandbox) stop(r Reason) {
	sb.end.reason = r
	sb.end.stopped = bootNow()
}

func (sb *sandbox) exited(f initwire.Frame) {
	sb.stop(ReasonExited)
	sb.end.code = f.Code
	if f.Code < 0 {
		sb.end.reason = ReasonSignal
		sb.end.signal = signalName(f.Signal)
	}
}

// endedRecord is how a program ended by itself, noted before its sandbox is ended and
// measured: a monitor that dies during that does not take it along.
type endedRecord struct {
	ExitCode   *int    `json:"exitCode"`
	Signal     *string `json:"signal"`
	DurationMs float64 `json:"durationMs"`
}

func (e ending) record() endedRecord {
	r := endedRecord{DurationMs: millis(e.duration.Nanoseconds())}
	if e.reason == ReasonSignal {
		r.Signal = &e.signal
	} else {
		r.ExitCode = &e.code
	}
	return r
}

// signalName is "SIGSEGV", or "SIG35" for one without a name.
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", int(s))
}

// commandError explains why engine-init could not start the program. Most causes
// are the request's.
func (sb *sandbox) commandError(f initwire.Frame) error {
	return startError(sb.Request.Command[0], sb.Request.Workdir, f)
}

func startError(name, workdir string, f initwire.Frame) *Error {
	switch {
	case f.Stage == initwire.StageExec && (f.Errno == syscall.ENOENT || f.Errno == syscall.ENOTDIR):
		return Refused("command_not_found", "cannot run command=%q: %w in the image", name, f.Errno).
			WithFix("check the name and the image; a script also needs the interpreter in its first line")
	case f.Stage == initwire.StageExec:
		fix := "make it executable for everybody (chmod a+rx), built for this machine's architecture"
		if f.Errno == syscall.E2BIG {
			fix = "pass less in arguments and environment: the kernel takes 128 KiB in one string"
		}
		if f.Errno == syscall.ENOEXEC {
			fix = "give a script a first line such as #!/bin/sh, or build the program for this machine's architecture"
		}
		return Refused("command_not_executable", "cannot run command=%q: %w", name, f.Errno).WithFix(fix)
	case f.Stage == initwire.StageCwd:
		return Refused("bad_workdir", "cannot enter workdir=%q: %w", workdir, f.Errno).
			WithFix("choose a directory that the image has and the user may enter")
	case f.Stage == initwire.StageFiles && (f.Errno == syscall.ENOSPC || f.Errno == syscall.ENOMEM):
		return Refused("bad_limit", "cannot write the files of command=%q: %w", name, f.Errno).
			WithFix("raise --workspace-size and --memory")
	case f.Stage == initwire.StageFork:
		return Refused("bad_limit", "cannot start command=%q: no process could be made: %w", name, f.Errno).
			WithFix("raise --pids or --memory")
	default:
		return Failed("no_start", "cannot start command=%q: engine-init failed at %v: %w", name, f.Stage, f.Errno)
	}
}

// finish ends every process of the sandbox, reads what it used, and takes in the
// rest of its output. It is called once, however far the run came.
func (sb *sandbox) finish() cgroups.Usage {
	var usage cgroups.Usage
	if sb.group.Dir != "" {
		usage = sb.killAndMeasure()
	}
	if sb.guest != nil {
		sb.guest.conn.Close()
	}
	if sb.server != nil {
		sb.server.shut(sb.end.reason, emptyBound)
	}
	if sb.outputs == nil {
		return usage
	}
	defer sb.clock.phase("drain")()
	if !sb.sending {
		sb.outputs.closeWriters()
		sb.outputs.start()
	}
	// Once every process is gone nobody can hold the pipes, and what is in them is read
	// to its end however slow this host is. One that would not die may hold them.
	bound := emptyBound
	if sb.end.err != nil && sb.end.err.Kind == "not_killed" {
		bound = drainBound
	}
	if sb.cutOff = !sb.outputs.drain(bound); sb.cutOff && sb.end.err == nil {
		sb.end.err = Failed("no_output", "cannot read the output of run=%s to its end within %v", sb.Request.ID, bound)
	}
	if err := errors.Join(sb.outputs.failure(), sb.output.Close(sb.outputs.total.Load() > 0)); err != nil && sb.end.err == nil {
		sb.end.err = Failed("no_record", "cannot record the output of run=%s: %w", sb.Request.ID, err)
	}
	return usage
}

func (sb *sandbox) killAndMeasure() cgroups.Usage {
	stop := sb.clock.phase("kill")
	ctx, cancel := context.WithTimeout(context.Background(), emptyBound)
	defer cancel()
	err := errors.Join(sb.group.Kill(), sb.group.WaitEmpty(ctx))
	stop()
	if err != nil {
		sb.end.reason = ReasonInternal
		sb.end.err = Failed("not_killed", "cannot end run=%s: %w", sb.Request.ID, err).WithFix("run engine gc; a process that stays is stuck in the kernel")
	}
	defer sb.clock.phase("measure")()
	usage, err := sb.group.ReadUsage()
	if err != nil && sb.end.err == nil {
		sb.end.err = Failed("no_usage", "cannot read the usage of run=%s: %w", sb.Request.ID, err)
	}
	sb.blameMemory(usage)
	return usage
}

// blameMemory sets the reason to oom where the kernel killed the sandbox for memory.
// The whole sandbox goes at once (memory.oom.group), so engine-init either dies
// without a report, or still reports that the program was killed.
func (sb *sandbox) blameMemory(usage cgroups.Usage) {
	if usage.OOMKills == nil || *usage.OOMKills == 0 {
		return
	}
	died := sb.end.reason == ReasonInternal && sb.end.err != nil && (sb.end.err.Kind == "sandbox_died" || sb.end.err.Kind == "no_start")
	killed := sb.end.reason == ReasonSignal && sb.end.signal == "SIGKILL"
	if died || killed {
		sb.end.reason = ReasonOOM
		sb.end.err = nil
	}
}

// patience bounds the wait for a caller that does not read. One whose program ended
// by itself may take its time, as it may with any program; but a stream that does not
// end, with nobody left to write, will not.
func (sb *sandbox) patience() <-chan time.Time {
	if !sb.cutOff && (sb.end.reason == ReasonExited || sb.end.reason == ReasonSignal) {
		return nil
	}
	return time.After(drainBound)
}
