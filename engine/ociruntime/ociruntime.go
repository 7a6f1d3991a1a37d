// Package ociruntime starts OCI bundles: with runc, crun or runsc as programs of
// their own (this package), or with libcontainer inside this process (inproc).
//
// It does one thing: create and start, with these descriptors. Waiting, killing and
// deleting are not here, because they are the same under every runtime: PID 1 reports
// its program's end over the guest socket, the cgroup that the engine owns says when
// the last process is gone and kills them all, and all that a runtime keeps is below
// one directory, which the caller removes.
//
// It needs root. A container it started goes on when this process dies.
package ociruntime

import (
	"context"
	"fmt"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Runtime runs containers on this host.
type Runtime interface {
	// Info names the runtime; it does no work.
	Info() Info
	// Start creates the container and lets its PID 1 go. It returns when PID 1
	// has been started, or an error that holds the runtime's own words. After
	// an error, and after ctx has ended, parts of the container may exist: the
	// caller kills the cgroup and removes StateDir in every case.
	Start(ctx context.Context, c Container) error
}

// Info names a runtime as the result of a run reports it.
type Info struct {
	Name    string // embedded, runc, crun, runsc
	Version string // "1.5.3"
	Path    string // of the program; "" for embedded
}

// Container is one sandbox as a runtime sees it.
type Container struct {
	ID       string      // required
	Bundle   string      // directory that holds config.json, for runtimes that read one; required
	Spec     *specs.Spec // what config.json says; required
	StateDir string      // the runtime's private directory; it exists, and the caller removes it with the mounts below it; required
	Guest    *os.File    // becomes descriptor 3 of PID 1; required
	// Cgroup, if not nil, is the group to start the container in as it is. nil lets
	// the runtime make the one that the spec names. Only runsc heeds it: it refuses
	// to make one where the host lacks any of its controllers.
	Cgroup  *os.File
	Network bool // the spec's network namespace holds a link to a gateway
}

// StartError is a runtime's refusal to start a container.
type StartError struct {
	Runtime string
	Output  string // the runtime's own last words, bounded
	Err     error
}

func (e *StartError) Error() string {
	if e.Output == "" {
		return fmt.Sprintf("cannot start container with %s: %v", e.Runtime, e.Err)
	}
	return fmt.Sprintf("cannot start container with %s: %v: %s", e.Runtime, e.Err, e.Output)
}

func (e *StartError) Unwrap() error { return e.Err }
