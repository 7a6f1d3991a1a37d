// Package service manages long-lived sandboxes: sessions of the engine that have a name
// and an owner, and serve programs until their time to live is over or somebody tears
// them down.
//
// # Where things are
//
// A sandbox is a run of the engine, and one monitor holds all of it. A Manager holds
// nothing that a sandbox needs: it may be killed at any point, and any number of them
// may use the same state directory. What it adds to the engine's records is, for each
// name, a directory STATE/sandboxes/<name>:
//
//	lock            held by flock by whoever creates or tears down
//	sandbox.json    owner, run id and the request, on disk before the run exists
//
// and for each sandbox whose events are sent STATE/callbacks/<run id>, which outlives it
// until all of them have been taken:
//
//	target.json     where to, and the key of the signatures; mode 0600
//	events.log      events that wait, see package outbox
//	complete        there will be no more
//
// # Create or adopt
//
// All of it happens under the name's lock. The record with the run's id comes first,
// then admission, then the start, which is idempotent for that id. Whoever dies on the
// way leaves a record, and the next Manager, or the next call, either finds the run that
// it tells of or knows that there never was one: nothing is lost and nothing started
// twice. A name of another owner is refused, whatever became of its sandbox.
//
// # Admission
//
// What a sandbox takes is held under its run id from before its start until its run has
// ended. The holds are compared with the records twice a second, so they can be neither
// forgotten nor counted twice, whatever died. Several Managers on one host see each
// other's sandboxes in the same way, a moment late.
package service
