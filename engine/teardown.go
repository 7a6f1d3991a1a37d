package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/rootfs"
)

// teardown gives back everything that the run took, in reverse. Every step is tried
// whatever became of the others.
func (sb *sandbox) teardown(ctx context.Context) error {
	err := tearDown(ctx, sb.Host, sb.group, sb.Request.ID)
	if err == nil {
		// Only now may the ids be given out again: nothing runs under them any more.
		err = sb.ids.release()
	}
	if sb.netns != nil {
		err = errors.Join(err, sb.netns.Close())
	}
	err = errors.Join(err, sb.image.release())
	if err != nil {
		return err
	}
	return sb.record.Write(journal.Cleaned, struct{}{}, false)
}

// tearDown removes the kernel objects and files of the run id, of which the caller
// knows nothing but the names that follow from it. Idempotent.
func tearDown(ctx context.Context, h Host, group cgroups.Group, id string) error {
	var errs []error
	if group.Dir != "" {
		ctx, cancel := context.WithTimeout(ctx, emptyBound)
		defer cancel()
		errs = append(errs, group.Kill(), group.WaitEmpty(ctx), group.Remove())
	}
	dir := h.runDir(id)
	errs = append(errs, unmountBelow(dir))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cannot tear down run=%s: %w", id, err)
	}
	// The directory goes last, and only after the rest: while it is there, gc knows
	// the run, and its uids are not given out again.
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("cannot tear down run=%s: %w", id, err)
	}
	return nil
}

// unmountBelow detaches every mount below dir that this process sees.
//
// SECURITY: nothing is deleted below a directory while something is mounted there.
// A delete that walked into a mount would empty an image, or a directory of the host.
// Holds because: tearDown calls this first and stops when it fails.
// Not covered: a mount that somebody makes below the run directory meanwhile.
// Checked by: TestTeardownSparesMounts.
func unmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	slices.Reverse(mounts) // the later ones lie on top
	for _, m := range mounts {
		if err := rootfs.Unmount(m.Mountpoint); err != nil {
			return err
		}
	}
	return nil
}

// GCAction is one thing that gc did, or would do.
type GCAction struct {
	ID     string `json:"id"`
	Object string `json:"object"`
	Action string `json:"action"`
	Why    string `json:"why"`
}

// GC ends and tears down every run whose monitor is gone, and gives each a result:
// lost, or interrupted if the host has been started again since. It touches nothing
// that a live monitor holds. With dryRun it only says what it would do.
func (h Host) GC(ctx context.Context, dryRun bool) ([]GCAction, error) {
	h = h.withDirs()
	hierarchy, err := cgroups.Open(h.CgroupRoot)
	if err != nil {
		return nil, Failed("no_cgroup", "%w", err)
	}
	ids, err := h.known(hierarchy)
	if err != nil {
		return nil, Failed("no_record", "%w", err)
	}
	actions := []GCAction{}
	var errs []error
	for _, id := range ids {
		done, err := h.collect(ctx, hierarchy, id, dryRun)
		actions = append(actions, done...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	if !dryRun {
		swept, err := journal.Sweep(h.StateDir)
		for _, name := range swept {
			actions = append(actions, GCAction{Object: name, Action: "remove", Why: "left by a crash while a record was made or removed"})
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return actions, Failed("not_collected", "%w", err)
	}
	return actions, nil
}

// gcOne is GC for one run.
func (h Host) gcOne(ctx context.Context, id string) error {
	hierarchy, err := cgroups.Open(h.CgroupRoot)
	if err == nil {
		_, err = h.collect(ctx, hierarchy, id, false)
	}
	if err != nil {
		return Failed("not_collected", "%w", err)
	}
	return nil
}

// known are the ids of all runs that have a record, a cgroup or a directory.
func (h Host) known(hierarchy cgroups.Hierarchy) ([]string, error) {
	entries, err := journal.List(h.StateDir)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if e.Last != journal.Cleaned {
			ids = append(ids, e.ID)
		}
	}
	groups, err := hierarchy.List("run")
	if err != nil {
		return nil, err
	}
	dirs, err := os.ReadDir(h.RunDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, d := range dirs {
		groups = append(groups, d.Name())
	}
	for _, name := range groups {
		if journal.ValidID(name) && !slices.Contains(ids, name) {
			ids = append(ids, name)
		}
	}
	return ids, nil
}

// collect deals with one run. The record's lock keeps two collectors, and a monitor,
// apart.
func (h Host) collect(ctx context.Context, hierarchy cgroups.Hierarchy, id string, dryRun bool) ([]GCAction, error) {
	alive, err := journal.Alive(h.StateDir, id)
	if alive || err != nil {
		return nil, err
	}
	group := hierarchy.Group("run/" + id)
	action := GCAction{ID: id, Object: strings.Join(h.objects(group, id), ","), Action: "end and remove"}
	r, err := h.load(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		action.Why = "no run of this id is on record"
		if held, err := h.heldElsewhere(group, id); held || err != nil {
			return nil, err
		}
		if dryRun {
			return []GCAction{action}, nil
		}
		return []GCAction{action}, tearDown(ctx, h, group, id)
	case err != nil:
		return nil, err
	case r.Result != nil:
		action.Why = "its monitor died while tearing it down"
	default:
		action.Why = "its monitor died"
	}
	if dryRun {
		return []GCAction{action}, nil
	}
	run, err := journal.Claim(h.StateDir, id)
	if errors.Is(err, journal.ErrAlive) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil // somebody else was quicker
	}
	if err != nil {
		return nil, err
	}
	defer run.Close()
	if r, err = h.load(id); err != nil {
		return nil, err
	}
	if r.State == Removed {
		return nil, nil
	}
	if r.Result == nil {
		if err := h.bury(ctx, run, r.Request, group); err != nil {
			return nil, err
		}
	}
	if err := tearDown(ctx, h, group, id); err != nil {
		return []GCAction{action}, err
	}
	return []GCAction{action}, run.Write(journal.Cleaned, struct{}{}, false)
}

// What belongs to a run names the lock of the run's record, so that an engine with
// another state directory can see whose it is.
const (
	lockLink  = "lock"                // symbolic link in the run's directory
	lockXattr = "trusted.engine.lock" // of the run's cgroup
)

func (sb *sandbox) lockPath() string { return filepath.Join(sb.record.Dir(), lockLink) }

// unmarkedGrace is how old an object without a name of a lock must be to count as
// left by a crash. A monitor writes the name right after it makes the object.
const unmarkedGrace = time.Minute

// heldElsewhere reports whether the objects of id belong to a live run in another
// state directory, or may be about to.
func (h Host) heldElsewhere(group cgroups.Group, id string) (bool, error) {
	lock, err := os.Readlink(filepath.Join(h.runDir(id), lockLink))
	if err != nil {
		buf := make([]byte, unix.PathMax)
		if n, xerr := unix.Getxattr(group.Dir, lockXattr, buf); xerr == nil {
			lock, err = string(buf[:n]), nil
		}
	}
	if err == nil {
		// STATE/runs/ID/lock
		return journal.Alive(filepath.Dir(filepath.Dir(filepath.Dir(lock))), id)
	}
	for _, path := range []string{group.Dir, h.runDir(id)} {
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) < unmarkedGrace {
			return true, nil
		}
	}
	return false, nil
}

// objects are what is left of a run, for people to read.
func (h Host) objects(group cgroups.Group, id string) []string {
	var found []string
	for _, path := range []string{group.Dir, h.runDir(id), filepath.Join(h.StateDir, "runs", id)} {
		if _, err := os.Lstat(path); err == nil {
			found = append(found, path)
		}
	}
	return found
}

// bury ends a run that nobody watches and writes the result that its monitor could
// not: with what the cgroup still knows.
func (h Host) bury(ctx context.Context, run *journal.Run, req Request, group cgroups.Group) error {
	ctx, cancel := context.WithTimeout(ctx, emptyBound)
	defer cancel()
	if err := errors.Join(group.Kill(), group.WaitEmpty(ctx)); err != nil {
		return err
	}
	req.ID = run.ID()
	result := newResult(req)
	if usage, err := group.ReadUsage(); err == nil {
		result.Actuals = actuals(usage)
		result.Actuals.RxBytes, result.Actuals.TxBytes = nil, nil
	}
	result.setReason(ReasonLost)
	result.Error = Failed("lost", "run=%s was lost: its monitor died", run.ID())
	header, err := run.Read(journal.Intent, nil)
	if boot, bootErr := journal.BootID(); err == nil && bootErr == nil && header.BootID != boot {
		result.setReason(ReasonInterrupted)
		result.Error = Failed("interrupted", "run=%s was interrupted: the host was started again", run.ID())
	}
	return run.Write(journal.Exit, result, true)
}
