// Package wire is what the service and its clients say to each other: plain values with
// a fixed JSON form, and nothing that does anything. It imports nothing of the engine, so
// that a client carries none of it.
//
// A pointer that is nil prints as null and means unknown or not there; times are RFC 3339
// in UTC; the unit of a number is in its name, and bytes where none is. The tag doc is
// what the API's description says of a field; a field without omitempty is always there.
package wire

// Version is that of the API: the first part of every path.
const Version = "v1"

// The two classes of failure. A program that failed is in neither: that is a result.
const (
	ClassRequest = "request" // change the request: the same one fails again
	ClassEngine  = "engine"  // the operator's turn
)

// Error is why something was refused, or could not be done.
type Error struct {
	Class   string `json:"class" doc:"request: change the request. engine: the operator's turn"`
	Kind    string `json:"kind" doc:"stable; OPERATIONS has a row for each"`
	Message string `json:"message" doc:"for people"`
	Fix     string `json:"fix" doc:"one imperative sentence; empty when no cure is known"`
}

// Failure is the body of every answer whose status is 400 or more.
type Failure struct {
	Error      Error           `json:"error"`
	Violations []Violation     `json:"violations,omitempty" doc:"everything that is wrong with the arguments of a capability"`
	Sandbox    *SandboxFailure `json:"sandbox,omitempty" doc:"of a failure that concerns a sandbox"`
}

// SandboxFailure is what failed, and on which sandbox.
type SandboxFailure struct {
	Operation string `json:"operation" doc:"create, teardown or isAlive"`
	Sandbox   string `json:"sandbox" doc:"its name"`
	ID        string `json:"id"`
	Owner     string `json:"owner"`
	Status    string `json:"status" doc:"of the sandbox, or the kind of the cause; empty where nothing is known"`
}

// Violation is one thing that is wrong with a value.
type Violation struct {
	Pointer string `json:"pointer" doc:"RFC 6901; empty is the whole value"`
	Message string `json:"message"`
}

// VersionInfo is who answers.
type VersionInfo struct {
	Version string `json:"version" doc:"of the engine"`
	API     string `json:"api" doc:"of the API"`
	Caller  Caller `json:"caller"`
}

// Caller is who asks, as the service sees them.
type Caller struct {
	Name   string `json:"name" doc:"uid 1000, token ci, or certificate panel"`
	Class  string `json:"class" doc:"the most that they may do: read, run or admin"`
	Tenant string `json:"tenant" doc:"whose objects they are confined to; empty: nobody's in particular"`
}

// Health is whether a run could start now.
type Health struct {
	OK       bool    `json:"ok"`
	Degraded bool    `json:"degraded" doc:"a minor check fails: runs start, and something else does not work"`
	Checks   []Check `json:"checks"`
}

// Check is one thing that was looked at.
type Check struct {
	Name  string `json:"name" doc:"start, gc, admission, link, drain"`
	OK    bool   `json:"ok"`
	Minor bool   `json:"minor,omitempty" doc:"it does not count for ok, but for degraded"`
	Found string `json:"found"`
	Kind  string `json:"kind" doc:"of the failure; empty when all is well"`
	Fix   string `json:"fix"`
}

// DrainRequest begins or ends to let nothing new start.
type DrainRequest struct {
	Draining bool `json:"draining" doc:"nothing new starts; what is there goes on. Outlives a restart of the service"`
}

// Drain is whether nothing new may start.
type Drain struct {
	Draining bool `json:"draining"`
	Live     int  `json:"live" doc:"runs that have not ended"`
}

// GCRequest asks for a collection.
type GCRequest struct {
	DryRun bool `json:"dryRun,omitempty" doc:"only say what would be done"`
}

// GCReport is what a collection did.
type GCReport struct {
	Actions []GCAction `json:"actions"`
}

// GCAction is one thing that gc did, would do, or could not do.
type GCAction struct {
	ID     string `json:"id" doc:"of the run; empty for what belongs to none"`
	Object string `json:"object"`
	Action string `json:"action" doc:"end and remove, remove, or stuck"`
	Why    string `json:"why"`
}
