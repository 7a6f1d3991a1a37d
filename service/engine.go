package service

import (
	"context"
	"syscall"
	"time"

	"github.com/direct-oci/engine/engine"
)

// Engine is what a Manager needs of the engine: OnHost gives the real one. Errors are
// *engine.Error; a run that is not there is one of kind not_found.
type Engine interface {
	// Start starts the session whose id the request names. Idempotent.
	Start(ctx context.Context, req engine.Request, secrets []engine.Secret) error
	AwaitReady(ctx context.Context, id string) (engine.Record, error)
	Load(id string) (engine.Record, error)
	// Alive says whether somebody watches over the run: cheaper than Load.
	Alive(id string) (bool, error)
	// Live are all runs, sandboxes or not, that somebody watches over.
	Live() ([]engine.Record, error)
	Await(ctx context.Context, id string) (engine.Record, error)
	Kill(ctx context.Context, id string) error
	Remove(id string) error

	Exec(ctx context.Context, id string, e engine.Exec) (Conn, error)
	Attach(ctx context.Context, id, execID string) (Conn, error)
	Execs(id string) ([]engine.ExecRecord, error)
	// ExecIDs are their ids: cheaper than Execs.
	ExecIDs(id string) ([]string, error)
	LoadExec(id, execID string) (engine.ExecRecord, error)
	ExecOutputPath(id, execID string) string

	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error
	Renew(ctx context.Context, id string, ttl time.Duration) (time.Time, error)
	Usage(id string) (engine.LiveUsage, error)
}

// Conn is a program of a sandbox, as its caller holds it.
type Conn interface {
	ID() string
	Read(p []byte) (int, error) // of a raw one: its stdout
	Write(p []byte) (int, error)
	CloseStdin() error
	Deliver(ctx context.Context) error // all that was written has reached the program
	Resize(size engine.WindowSize) error
	Signal(s syscall.Signal) error
	Wait(ctx context.Context) (engine.ExecResult, error)
	Changed() <-chan struct{}
	Close() error // the program goes on
}
