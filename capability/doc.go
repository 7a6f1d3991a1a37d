// Package capability is what a caller may ask a runner to do, and the one way through
// which it is done.
//
// A Capability is a name with a hazard and a schema. A Runner holds those of each
// project and dispatches calls, always in this order:
//
//	find       the project and the capability
//	validate   the arguments against the schema, every violation at once
//	prepare    what would be done, resolved to the last byte; nothing has been done yet
//	approve    unless it is a read: a signed approval of exactly that
//	admit      where a host has work of others too: once there is room for its sandboxes;
//	           only then one run of the approval is used up, on disk
//	run        with the project's secrets, as far as they are declared
//	receipt    signed, about what was approved and what was seen
//
// Each step that decides something is in the audit log before the next begins. An
// error is an *engine.Error: of class request if the caller can do something about it,
// of class engine otherwise. A program that fails is a result.
package capability

import (
	"context"
	"encoding/json"

	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/engine"
)

// Hazard is what a capability may do to the world.
type Hazard string

// The hazards.
const (
	Read    Hazard = "read"    // no side effects: no approval
	Write   Hazard = "write"   // a declared change: an approval
	Unknown Hazard = "unknown" // arbitrary code, which a human has to have read: an approval
)

// Kind is where a capability comes from.
type Kind string

// The kinds.
const (
	Connector Kind = "connector" // built in, read-only
	Action    Kind = "action"    // the customer's own code, installed beforehand
	Workload  Kind = "workload"  // code that comes with the call
)

// Info is what is published of a capability.
type Info struct {
	Name        string          `json:"name"` // unique in its project
	Description string          `json:"description"`
	Hazard      Hazard          `json:"hazard"`
	Kind        Kind            `json:"kind"`
	Params      json.RawMessage `json:"params"` // JSON Schema of the arguments
}

// Capability is one thing that may be asked for.
type Capability interface {
	Info() Info
	// Prepare resolves what would be done, and does nothing. The arguments are valid.
	// The error is an *engine.Error.
	Prepare(ctx context.Context, ask Ask) (Prepared, error)
}

// Ask is a call whose arguments are valid.
type Ask struct {
	Project     string
	Environment string // "" if the project has at most one
	Args        any    // as jsjson.Parse returns them
}

// Prepared is what would be done.
type Prepared struct {
	Bound     approval.Bound // all that decides it
	Title     string         // for the reviewer
	Documents []Document     // what the reviewer has to read
	Warnings  []string       // said to the caller before the run
	// Credentials is the name, among the project's, of those that a connector reads with;
	// "" for none.
	Credentials string
	// Room is what it takes of the host at most, of its sandboxes at once; zero: nothing.
	Room engine.Limits
	// Run does it, once. The error is an *engine.Error.
	Run func(ctx context.Context, env Env) (Outcome, error)
	// Resume tells what came of a Run of the same call in a process that has died. It
	// starts nothing. nil: nothing outlives its process.
	Resume func(ctx context.Context, env Env) (Outcome, error)
}

// Document is one text of a review.
type Document struct {
	Name string `json:"name"`
	Text string `json:"text"` // plain UTF-8
}

// Env is what a capability is given to run with.
type Env struct {
	Call    string            // id of the call: 16 hexadecimal digits
	Secrets map[string][]byte // by the names that were bound
	Log     func(line string) // progress; never nil
	// Credentials are those that Prepared named. They are gone after Run.
	Credentials []byte
	Redact      func(text string) string
}

// Outcome is what came of a run.
type Outcome struct {
	Output any            // of JSON; what the caller gets
	Result *engine.Result // of the sandbox; nil where there was none
}
