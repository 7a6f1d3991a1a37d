package engine

import (
	"context"
	"hash/fnv"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/engine/ociruntime"
	"github.com/direct-oci/engine/rootfs"
)

// plan is what the caller settles before there is a monitor: the runtime and the CPUs,
// which can refuse a request without a trace of it, and the run's cgroup, so that the
// limits are in force before any process of the sandbox can exist. A root that is not
// there is refused by the monitor, on record.
type plan struct {
	Runtime    ociruntime.Info `json:"runtime"`
	CPUs       []int           `json:"cpus"`       // that the program may run on
	Unenforced []string        `json:"unenforced"` // limits that this host cannot keep, if that is allowed
	Phases     []Phase         `json:"phases"`
}

func runGroup(id string) string { return "run/" + id }

// makePlan chooses the runtime and the CPUs.
func makePlan(ctx context.Context, h Host, req Request) (p plan, err error) {
	if p.Runtime, err = chooseRuntime(ctx, req.Runtime, h.RunDir); err != nil {
		return plan{}, err
	}
	// Runs start at different CPUs, so that small ones do not all share the first.
	spread := fnv.New32a()
	spread.Write([]byte(req.ID))
	if p.CPUs, err = rootfs.AffinityCPUs(req.Limits.CPUs, int(spread.Sum32()>>1)); err != nil {
		return plan{}, Failed("no_cpus", "%w", err)
	}
	return p, nil
}

// isGVisor reports whether the program runs on gVisor's kernel and not on the host's.
func (p plan) isGVisor() bool { return p.Runtime.Name == "runsc" }

// migrates reports whether the runtime moves its first process into the cgroup. gVisor
// and the launcher start theirs inside, and would wait for the move of another.
func (p plan) migrates() bool { return !p.isGVisor() && p.Runtime.Name != "direct" }

// sentryTasks is room for gVisor's own threads: the Sentry's, the gofer's, and those
// that Go adds while some of them block.
const sentryTasks = 512

// limit makes the run's cgroup with every limit in force, read back, and marks it
// with the lock of the run's record. After an error the group may be there.
func (p *plan) limit(hierarchy cgroups.Hierarchy, req Request, record *journal.Run) error {
	l := cgroups.Limits{CPUs: req.Limits.CPUs, Memory: req.Limits.Memory, Pids: req.Limits.Pids + 1} // engine-init is the one more
	if p.isGVisor() {
		// The host sees the Sentry's threads and one stub for each process inside.
		// What the program may start is bounded inside, by RLIMIT_NPROC.
		l.Pids = 2*req.Limits.Pids + sentryTasks
		if controls(hierarchy, "cpuset") {
			l.CPUSet = cpuList(p.CPUs)
		}
	}
	if err := record.SetCgroup(hierarchy.Group(runGroup(req.ID)).Dir); err != nil {
		return Failed("no_record", "%w", err)
	}
	group, unenforced, err := hierarchy.Create(runGroup(req.ID), l)
	if err != nil {
		return Failed("no_cgroup", "%w", err)
	}
	failpoint("unmarked-cgroup")
	if err := unix.Setxattr(group.Dir, lockXattr, []byte(lockPath(record)), 0); err != nil {
		return Failed("no_cgroup", "cannot mark cgroup=%s: %w", group.Dir, err)
	}
	p.Unenforced = unenforced
	if len(unenforced) == 0 || req.BestEffortLimits {
		return nil
	}
	if missing := hierarchy.Unsupported(unenforced[0]); missing != nil {
		return noLimit(strings.Join(unenforced, ","), missing)
	}
	return Failed("no_limit", "cannot enforce limit=%s: its controller was missing a moment ago", strings.Join(unenforced, ",")).WithFix("try again")
}

// noLimit refuses a host that lacks what a limit needs.
func noLimit(names string, missing error) *Error {
	e := Failed("no_limit", "cannot enforce limit=%s: %w", names, missing)
	return e.WithFix(e.Fix + "; or, to try things out, go without it: --best-effort-limits, bestEffortLimits in a config")
}

// controls reports whether groups of runs have all these controllers.
func controls(hierarchy cgroups.Hierarchy, controllers ...string) bool {
	for _, c := range controllers {
		if !slices.Contains(hierarchy.Controllers, c) {
			return false
		}
	}
	return true
}

// cpuList writes CPUs as cpuset.cpus takes them.
func cpuList(cpus []int) string {
	s := make([]string, len(cpus))
	for i, c := range cpus {
		s[i] = strconv.Itoa(c)
	}
	return strings.Join(s, ",")
}

// groupOf is the cgroup of a run: the one that its record names, if that is there. Whoever
// ends the run may have been given another root than who started it.
func (h Host) groupOf(hierarchy cgroups.Hierarchy, id string) cgroups.Group {
	dir := journal.CgroupDir(h.StateDir, id)
	if filepath.IsAbs(dir) && filepath.Base(dir) == id && exists(dir) {
		return cgroups.Group{Dir: dir}
	}
	return hierarchy.Group(runGroup(id))
}

// lockPath is the lock of a run's record, by which everything of the run is marked.
func lockPath(record *journal.Run) string { return filepath.Join(record.Dir(), lockLink) }
