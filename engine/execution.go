package engine

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/direct-oci/engine/engine/guest"
	"github.com/direct-oci/engine/engine/initwire"
	"github.com/direct-oci/engine/engine/journal"
)

// execution is one exec in the hands of its session's monitor. It is known by its id
// from the moment somebody asks for it until its result is on disk.
type execution struct {
	s      *server
	exec   Exec
	number uint32 // for engine-init

	record   *journal.ExecRecord
	output   *journal.OutputWriter
	captures []*capture
	stdin    *stdinPipe // nil: /dev/null, or the raw caller's
	raw      []*os.File // for the caller: what it writes stdin to, and reads stdout from

	prepared   chan struct{} // closed when the fields above are what they will be
	begun      chan struct{} // closed when the program runs, or never will
	startError *Error        // why it never will; read after begun
	over       chan struct{} // closed when the result is on record
	result     ExecResult    // read after over

	mu       sync.Mutex
	ended    bool // end was called
	timedOut bool
	timer    *time.Timer
	started  time.Duration // engine-init's clock
	startedB int64         // bootNow
	watchers map[chan<- struct{}]bool
}

// exec starts an exec, or joins the one that has its id. It returns before the program
// runs.
func (s *server) exec(e Exec) (x *execution, joined bool, err error) {
	if err := e.validate(); err != nil {
		return nil, false, err
	}
	e = e.settle()
	x = &execution{
		s: s, exec: e, prepared: make(chan struct{}), begun: make(chan struct{}), over: make(chan struct{}),
		watchers: map[chan<- struct{}]bool{},
	}
	s.mu.Lock()
	running := s.execs[e.ID]
	switch {
	case s.ending:
		err = s.over()
	case running != nil:
	case s.paused:
		err = Refused("paused", "cannot start exec=%s: session=%s is paused", e.ID, s.sb.Request.ID).WithFix("resume it first")
	case len(s.execs) >= initwire.MaxExecs:
		err = Refused("too_many", "cannot start exec=%s: %d are running in session=%s", e.ID, len(s.execs), s.sb.Request.ID).
			WithFix("wait for some of them to end")
	case s.promised+e.mayKeep() > maxPromised:
		err = Refused("too_many", "cannot start exec=%s: of those that run in session=%s, %d bytes of output may be kept already", e.ID, s.sb.Request.ID, s.promised).
			WithFix("wait for some of them to end, or have less output kept")
	case s.asked+e.asked() > maxAsked:
		err = Refused("too_many", "cannot start exec=%s: those that run in session=%s have %d bytes of commands and environments already", e.ID, s.sb.Request.ID, s.asked).
			WithFix("wait for some of them to end, or pass what is long by stdin or a file")
	default:
		s.next++
		s.promised += e.mayKeep()
		s.asked += e.asked()
		x.number = s.next
		s.execs[e.ID], s.numbers[x.number] = x, x
		s.enders.Add(1)
	}
	s.mu.Unlock()
	if err != nil {
		return nil, false, err
	}
	if running != nil {
		return running, true, running.same(e)
	}
	failpoint("before-exec-intent")
	x.record, err = s.sb.record.CreateExec(e.ID, e)
	failpoint("after-exec-intent")
	if errors.Is(err, journal.ErrExists) {
		return x, true, x.recall()
	}
	if err == nil {
		err = x.start()
	} else {
		err = Failed("no_record", "%w", err)
	}
	close(x.prepared)
	if err != nil {
		x.failed(AsError(err))
	}
	return x, false, nil
}

// recall makes x the exec of its id that has ended, for all who found it meanwhile.
func (x *execution) recall() error {
	old, err := x.s.onRecord(x.exec.ID)
	if err == nil {
		err = old.same(x.exec)
	}
	if err == nil {
		x.startError, x.result = old.startError, old.result
	} else {
		x.startError = AsError(err)
		x.result = ExecResult{Error: x.startError}
	}
	close(x.begun)
	x.release()
	close(x.over)
	x.s.forget(x)
	return err
}

// same refuses an exec that has the id of x and asks for something else.
func (x *execution) same(e Exec) error {
	if sameExec(x.exec, e) {
		return nil
	}
	return Refused("exists", "cannot start exec=%s: another exec of session=%s has this id", e.ID, x.s.sb.Request.ID).
		WithFix("choose another id")
}

// find is the exec of this id, running or on record.
func (s *server) find(id string) (*execution, error) {
	s.mu.Lock()
	x := s.execs[id]
	s.mu.Unlock()
	if x != nil {
		return x, nil
	}
	return s.onRecord(id)
}

// onRecord is an exec that has ended.
func (s *server) onRecord(id string) (*execution, error) {
	record, err := s.sb.Host.loadExec(s.sb.Request.ID, id)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, journal.ErrBadID) {
		return nil, execNotFound(s.sb.Request.ID, id)
	}
	if err != nil {
		return nil, Failed("no_record", "%w", err)
	}
	if record.Result == nil {
		return nil, Failed("no_record", "cannot find out how exec=%s of session=%s ended: it is not on record", id, s.sb.Request.ID)
	}
	x := &execution{s: s, exec: record.Exec, begun: make(chan struct{}), over: make(chan struct{}), result: *record.Result, startError: record.Result.Error}
	if x.result.Reason != "" {
		x.startError = nil
	}
	close(x.begun)
	close(x.over)
	return x, nil
}

// start makes the program's streams and has engine-init start it.
func (x *execution) start() (err error) {
	if x.output, err = journal.CreateOutput(x.record.OutputPath(), x.exec.OutputKept); err != nil {
		return Failed("no_record", "%w", err)
	}
	theirs, err := x.streams()
	for _, c := range x.captures {
		go c.carry(x)
	}
	if err != nil {
		closeAll(theirs)
		return Failed("no_descriptors", "cannot make the streams of exec=%s: %w", x.exec.ID, err)
	}
	e := x.message()
	err = x.s.say(func(conn *net.UnixConn) error {
		defer closeAll(theirs)
		err := initwire.SendExec(conn, e, theirs[0], theirs[1], theirs[2])
		failpoint("after-exec-sent")
		var refused *initwire.JobError
		if errors.As(err, &refused) {
			x.failed(Refused("bad_command", "cannot start exec=%s: %w", x.exec.ID, err))
		}
		return err
	})
	if err != nil {
		closeAll(theirs)
	}
	return err
}

// message is the exec as engine-init is told of it.
func (x *execution) message() initwire.Exec {
	e := initwire.Exec{ID: x.number, Args: x.exec.Command, Env: x.exec.Env, Cwd: x.exec.Workdir}
	if e.Cwd == "" {
		e.Cwd = x.s.sb.workdir()
	}
	if size := x.exec.TTY; size != nil {
		e.Args = guest.PTYCommand(size.Rows, size.Columns, e.Args)
	}
	if x.exec.Timeout > 0 {
		e.Deadline = x.exec.Timeout + initGrace
	}
	return e
}

// running is the news that the program runs.
func (x *execution) running(f initwire.Frame) {
	x.mu.Lock()
	if !x.ended && x.startedB == 0 {
		x.started, x.startedB = f.Time, bootNow()
		if x.exec.Timeout > 0 {
			x.timer = time.AfterFunc(x.exec.Timeout, x.timeout)
		}
		go func() {
			_ = x.record.Synced() // the result tells if it failed
			failpoint("exec-begun")
			close(x.begun)
		}()
	}
	x.mu.Unlock()
}

// timeout ends the program's process group. Should that not work, engine-init's own
// deadline for it follows.
func (x *execution) timeout() {
	x.mu.Lock()
	x.timedOut = true
	x.mu.Unlock()
	// A queue that is full leaves it to engine-init.
	_ = x.s.say(func(conn *net.UnixConn) error { return initwire.SignalExec(conn, x.number, syscall.SIGKILL) })
}

// exited is the news of the program's end.
func (x *execution) exited(f initwire.Frame) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.startedB == 0 {
		return // engine-init says STARTED first
	}
	r := ExecResult{Reason: ReasonExited, ExitCode: &f.Code, DurationMs: millis((f.Time - x.started).Nanoseconds())}
	if f.Code < 0 {
		r.Reason, r.ExitCode, r.Signal = ReasonSignal, nil, signalName(f.Signal)
	}
	late := x.exec.Timeout > 0 && f.Time-x.started >= x.exec.Timeout
	if (x.timedOut || late) && f.Signal == syscall.SIGKILL {
		r = ExecResult{Reason: ReasonTimeout, TimedOut: true, DurationMs: r.DurationMs}
	}
	cpu := f.CPU.Seconds()
	r.CPUSecs = &cpu
	x.end(r)
}

// failed is the end of an exec whose program was never started.
func (x *execution) failed(why *Error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.startedB == 0 {
		x.end(ExecResult{Error: why})
	}
}

// lost is the end of an exec whose sandbox is gone.
func (x *execution) lost(reason Reason) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := ExecResult{Reason: reason, TimedOut: reason == ReasonTimeout}
	if x.startedB != 0 {
		r.DurationMs = millis(bootNow() - x.startedB)
	}
	x.end(r)
}

// end puts the result on record once what the program wrote is there, beside whatever
// else goes on. Only the first call counts.
//
// Preconditions: mu is held.
func (x *execution) end(r ExecResult) {
	if x.ended {
		return
	}
	x.ended = true
	if x.timer != nil {
		x.timer.Stop()
	}
	go x.finish(r)
}

func (x *execution) finish(r ExecResult) {
	<-x.prepared
	failpoint("before-exec-end")
	if x.stdin != nil {
		x.stdin.close()
	}
	var errs []error
	for _, c := range x.captures {
		errs = append(errs, c.finish())
	}
	r.noteError(x.exec.ID, errors.Join(errs...))
	closed := make(chan error, 1)
	if x.output == nil {
		closed <- nil
	} else {
		r.StdoutBytes, r.StderrBytes = x.output.Written(journal.Stdout), x.output.Written(journal.Stderr)
		r.StdoutTruncated, r.StderrTruncated = x.output.Truncated(journal.Stdout), x.output.Truncated(journal.Stderr)
		// Beside the result's way to the disk: two that go together are one commit there.
		go func(sync bool) { closed <- x.output.Close(sync) }(r.StdoutBytes+r.StderrBytes > 0)
	}
	x.publish(&r, closed)
	x.result = r
	if r.Reason == "" {
		x.startError = r.Error
		closeAll(x.raw) // nobody is given them
	}
	x.mu.Lock()
	if x.startedB == 0 {
		close(x.begun)
	}
	x.mu.Unlock()
	x.release()
	close(x.over)
	x.s.forget(x)
}

// publish puts the result on record, after the output.
func (x *execution) publish(r *ExecResult, closed <-chan error) {
	if x.record == nil {
		<-closed
		return
	}
	r.noteError(x.exec.ID, x.record.Synced())
	err := x.record.Stage(*r)
	if lost := <-closed; lost != nil {
		r.noteError(x.exec.ID, lost)
		err = x.record.Stage(*r)
	}
	failpoint("exec-staged")
	if err == nil {
		err = x.record.Publish()
		failpoint("exec-published")
	}
	r.noteError(x.exec.ID, err)
}

// noteError keeps the first failure to record the exec.
func (r *ExecResult) noteError(exec string, err error) {
	if err != nil && r.Error == nil {
		r.Error = Failed("no_record", "cannot record exec=%s: %w", exec, err)
	}
}

// forget takes the exec from those that run, and the oldest from those on record where
// there are too many.
func (s *server) forget(x *execution) {
	var old []*journal.ExecRecord
	size := x.size()
	s.mu.Lock()
	delete(s.execs, x.exec.ID)
	delete(s.numbers, x.number)
	s.last = bootNow()
	if x.record != nil {
		old = s.finished.add(kept{x.record, size, x.exec.asked()})
	}
	s.mu.Unlock()
	for _, record := range old {
		_ = record.Remove() // one that stays takes room and is removed with its run
	}
	s.stir()
	s.enders.Done()
}

// watch has changed filled whenever there may be more output on record, or no longer.
func (x *execution) watch(changed chan<- struct{}, on bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.watchers == nil: // it ended before this monitor was asked
	case on:
		x.watchers[changed] = true
	default:
		delete(x.watchers, changed)
	}
}

// wrote tells all who watch.
func (x *execution) wrote() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for w := range x.watchers {
		select {
		case w <- struct{}{}:
		default: // it has not looked since it was told last
		}
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
