package engine

import (
	"time"

	"github.com/direct-oci/engine/engine/initwire"
	"github.com/direct-oci/engine/engine/journal"
)

// serve is watch for a session: it waits until engine-init takes execs, then passes on
// what it reports of them, until the session's end.
func (sb *sandbox) serve(c *caller) error {
	defer sb.clock.phase("program")()
	if ready, err := sb.awaitServing(c); !ready || err != nil {
		return err
	}
	sb.end.started = bootNow()
	s := newServer(sb)
	if err := s.open(); err != nil {
		return err
	}
	sb.server = s
	sb.notes.write(journal.Started, map[string]int64{"bootNs": sb.end.started})
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case f, ok := <-sb.guest.frames:
			if ended, err := sb.sessionFrame(f, ok); ended || err != nil {
				return err
			}
			continue
		case <-c.cancelled:
			sb.stop(ReasonCancelled)
			return nil
		case <-s.wake:
		case <-timer.C:
		}
		reason, left := s.due()
		if reason != "" {
			sb.stop(reason)
			return nil
		}
		timer.Reset(left)
	}
}

// awaitServing returns true when the session takes execs, false when it has ended.
func (sb *sandbox) awaitServing(c *caller) (bool, error) {
	start := time.NewTimer(startBound)
	defer start.Stop()
	select {
	case f, ok := <-sb.guest.frames:
		if ok && f.Type == initwire.Serving {
			return true, nil
		}
		_, err := sb.sessionFrame(f, ok)
		return false, err
	case <-start.C:
		return false, sb.startTimeout()
	case <-c.cancelled:
		sb.stop(ReasonCancelled)
		return false, nil
	}
}

// sessionFrame acts on a frame, and reports whether the session has ended with it.
func (sb *sandbox) sessionFrame(f initwire.Frame, ok bool) (ended bool, err error) {
	switch {
	case !ok:
		// Not even engine-init is left. measure finds out whether memory was why.
		sb.stop(ReasonInternal)
		sb.end.err = sb.died()
		return true, nil
	case f.Exec != 0 && sb.server != nil:
		sb.server.frame(f)
	case f.Type == initwire.Failed:
		sb.end.stopped = bootNow()
		return true, startError("session", sb.Request.Workdir, f)
	case f.Type == initwire.Deadline:
		sb.stop(ReasonTimeout)
		return true, nil
	}
	return false, nil
}

// execError explains why engine-init could not start an exec's program.
func execError(e Exec, f initwire.Frame) *Error {
	if e.TTY != nil && f.Stage == initwire.StageExec {
		return Failed("no_start", "cannot start a terminal for command=%q: %w", e.name(), f.Errno)
	}
	return startError(e.name(), e.Workdir, f)
}
