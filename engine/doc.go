// Package engine runs one untrusted program in one sandbox, from a request to a
// result, and leaves nothing behind.
//
// # Theory of operation
//
// Three processes of ours, in a row, and one of theirs:
//
//	caller          Host.Start: checks the request, puts it on record, starts a monitor
//	   │  control socket, the caller's stdin/stdout/stderr, the run's lock
//	monitor         Monitor, one per run: owns cgroup, namespaces, root, output, deadline, record
//	   │  guest socket (the job, its secrets, its streams; reports back)
//	engine-init     PID 1 inside: starts the program, reaps, has a deadline of its own
//	   │
//	the program
//
// The caller is root, and is trusted with the request. From its first instruction
// the program is hostile, and so is everything that engine-init's socket says after
// that: frames are parsed strictly, and what the run used is read from the host's
// cgroup, never from inside.
//
// Nothing the run needs lives in the caller. Kill it and the run goes on, timed and
// recorded; the monitor takes a caller that is gone for one that is not interested.
// Kill the monitor and engine-init sees its socket end, which ends the sandbox; gc
// finds the rest by name and writes the result.
//
// # Order
//
// A run's record exists before any object of the kernel does, and every object's
// name follows from the run's id, so that an owner with no memory can find them all:
//
//	record          STATE/runs/<id>/              lock, intent, created, started, exit, cleaned, output
//	cgroup          CGROUP/run/<id>, runtime's leaf "ctr" below it
//	directory       RUN/<id>/                     root mount point, bundle, runtime's state, fifo to cancel
//	uid block       RUN/uids/<slot>               flock, and the id of the run it went to
//	network         held by the monitor's descriptor alone
//	mounts          in the monitor's own mount namespace alone
//
// The steps and their order are in the comment of run, in watch.go; teardown.go has
// the reverse. A step that fails ends the run. No step of teardown is skipped because
// another one failed.
//
// The limits are in force in run/<id> before the first process of the sandbox exists,
// and were read back. The deadline starts with the program. Whatever ends a run, the
// last process is gone (cgroup.kill, then "populated 0") before usage is read, and
// usage is on record before the cgroup is removed.
//
// # Failures
//
// Three classes, never mixed: a wrong request and a failure of the engine or host are
// an *Error; a program that failed is a Result like any other.
package engine
