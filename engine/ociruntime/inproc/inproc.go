// Package inproc is the runtime linked into the engine: libcontainer, in the
// process that calls it. It needs cgo, and it starts its own program again as
// the container's init, so only engine-monitor, which is small, imports it.
package inproc

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	_ "github.com/opencontainers/cgroups/devices" // sets device rules; without it every start is refused
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // the C half of init, before Go's runtime starts
	"github.com/opencontainers/runc/libcontainer/specconv"

	"github.com/direct-oci/engine/engine/ociruntime"
)

// Version is the pinned libcontainer's, as go.mod says; a test compares them.
const Version = "1.5.3"

// IsInit reports whether this process was started to become a container's init.
// Then main must call Init, before anything else, and never returns.
func IsInit() bool { return len(os.Args) == 2 && os.Args[1] == "init" }

// Init turns this process into the container's PID 1.
func Init() { libcontainer.Init() }

// Runtime is libcontainer in this process.
type Runtime struct{}

// Info implements ociruntime.Runtime.
func (Runtime) Info() ociruntime.Info { return ociruntime.Info{Name: "embedded", Version: Version} }

// Start implements ociruntime.Runtime. The context does not interrupt it: killing
// the run's cgroup does.
func (Runtime) Start(_ context.Context, c ociruntime.Container) error {
	if err := start(c); err != nil {
		return &ociruntime.StartError{Runtime: "embedded", Err: err}
	}
	return nil
}

func start(c ociruntime.Container) error {
	config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{CgroupName: c.ID, Spec: c.Spec})
	if err != nil {
		return fmt.Errorf("cannot convert the spec: %w", err)
	}
	container, err := libcontainer.Create(filepath.Join(c.StateDir, "root"), c.ID, config)
	if err != nil {
		return fmt.Errorf("cannot create the container: %w", err)
	}
	p := c.Spec.Process
	limits, err := rlimits(p.Rlimits)
	if err != nil {
		return err
	}
	noNewPrivileges := true
	process := &libcontainer.Process{
		Args:            p.Args,
		Env:             p.Env,
		UID:             int(p.User.UID),
		GID:             int(p.User.GID),
		Cwd:             p.Cwd,
		NoNewPrivileges: &noNewPrivileges,
		Rlimits:         limits,
		ExtraFiles:      []*os.File{c.Guest},
		Init:            true,
		LogLevel:        "2", // errors
	}
	// The init stage, which libcontainer gives this variable alone, does its work on one
	// thread and is gone in milliseconds: it needs no threads for a second processor.
	if err := os.Setenv("GOMAXPROCS", "1"); err != nil {
		return err
	}
	if err := container.Run(process); err != nil {
		return fmt.Errorf("cannot run the container: %w", err)
	}
	go process.Wait() // reaps PID 1; how it ended is known from the guest socket and the cgroup
	return nil
}

// rlimits converts limits, which libcontainer takes from its caller alone: those of
// the spec would have no effect.
func rlimits(list []specs.POSIXRlimit) ([]configs.Rlimit, error) {
	var out []configs.Rlimit
	for _, l := range list {
		n, err := ociruntime.RlimitNumber(l.Type)
		if err != nil {
			return nil, err
		}
		out = append(out, configs.Rlimit{Type: n, Soft: l.Soft, Hard: l.Hard})
	}
	return out, nil
}
