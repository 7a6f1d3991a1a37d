package engine

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/cgroups"
)

// ready returns the host with everything filled in, if a run may start there: its
// programs are found, its directories made, and there is room.
func (h Host) ready() (Host, error) {
	if os.Geteuid() != 0 {
		return h, Failed("not_root", "cannot start a run as uid=%d: the engine needs root", os.Geteuid()).WithFix("run it with sudo")
	}
	h, err := h.resolved()
	if err != nil {
		return h, err
	}
	if err := h.prepare(); err != nil {
		return h, err
	}
	if err := errors.Join(h.reachable(), h.admit()); err != nil {
		return h, AsError(err)
	}
	return h, nil
}

// probeGroup is made and removed to see whether cgroups can be. Its name is no run's.
const probeGroup = "run/ready"

// Ready is why no run could start on this host now, whatever it asked for, or nil: it
// looks at what Start looks at, makes a cgroup where runs have theirs, and asks the
// monitor for its version. With bestEffortLimits controllers may be missing. The error is
// an *Error.
func (h Host) Ready(ctx context.Context, bestEffortLimits bool) error {
	h, err := h.ready()
	if err != nil {
		return err
	}
	hierarchy, err := cgroups.Open(h.CgroupRoot)
	if err != nil {
		return Failed("no_cgroup", "%w", err)
	}
	for _, limit := range []string{"cpus", "memory", "pids"} {
		if missing := hierarchy.Unsupported(limit); missing != nil && !bestEffortLimits {
			return noLimit(limit, missing)
		}
	}
	group := hierarchy.Group(probeGroup)
	if err := unix.Mkdir(group.Dir, 0o755); err != nil && err != unix.EEXIST {
		return Failed("no_cgroup", "cannot make cgroup=%s: %w", group.Dir, err)
	}
	if err := group.Remove(); err != nil {
		return Failed("no_cgroup", "%w", err)
	}
	return h.sameVersion(ctx)
}

// versionBound is for a program that prints one line.
const versionBound = 5 * time.Second

func (h Host) sameVersion(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, versionBound)
	defer cancel()
	out, err := exec.CommandContext(ctx, h.Monitor, "--version").Output()
	if err != nil {
		return Failed("no_monitor", "cannot ask monitor=%s for its version: %w", h.Monitor, err)
	}
	if version := strings.TrimSpace(string(out)); version != Version {
		return Failed("version_mismatch", "cannot run: this program is version %s and monitor=%s is %s", Version, h.Monitor, version).
			WithFix("install the engine's programs together")
	}
	return nil
}
