package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine/journal"
)

const (
	gcBound   = 8 * time.Second // for all that one GC waits for
	lookBound = 4 * time.Second // of it, for looking at the records
	gcGrace   = time.Second     // more, for steps that were under way by then
	gcWorkers = 8
)

// GCAction is one thing that gc did, would do, or could not do.
type GCAction struct {
	ID     string `json:"id"` // of the run; empty for what belongs to none
	Object string `json:"object"`
	Action string `json:"action"`
	Why    string `json:"why"`
}

// What gc does with an object.
const (
	actionEnd    = "end and remove" // everything of a run that nobody watches
	actionRemove = "remove"         // a leftover in which nothing runs
	actionStuck  = "stuck"          // it could not be removed and was left where it is
)

// GC ends and tears down every run whose monitor is gone, and gives each a result:
// lost, or interrupted if the host has been started again since. It removes what
// crashes left of records, images and layers. It touches nothing that a live monitor
// holds. With dryRun it only says what it would do.
//
// It may be repeated, and run beside itself. It returns within seconds: what cannot
// be ended or removed by then is reported as stuck and stays in quarantine, under its
// name and with its uids kept from others, for a later GC to try again. The error
// then is of kind not_collected, and the rest was done.
func (h Host) GC(ctx context.Context, dryRun bool) ([]GCAction, error) {
	h = h.withDirs()
	hierarchy, err := cgroups.Open(h.CgroupRoot)
	if err != nil {
		return nil, Failed("no_cgroup", "%w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, gcBound)
	defer cancel()
	look, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	ids, err := h.known(look, hierarchy)
	if err != nil && look.Err() == nil {
		return nil, Failed("no_record", "%w", err)
	}
	var actions []GCAction
	if err != nil {
		actions = append(actions, GCAction{Object: filepath.Join(h.StateDir, "runs"), Action: actionStuck, Why: "there was no time to look at all records: fewer would be quicker"})
	}
	var tasks []task
	for _, id := range ids {
		tasks = append(tasks, task{id, strings.Join(h.objects(h.groupOf(hierarchy, id), id), ","), func() ([]GCAction, error) {
			return h.collect(ctx, hierarchy, id, dryRun)
		}})
	}
	actions = append(actions, doAll(ctx, tasks)...)
	for _, t := range h.sweeps(dryRun) { // after the runs: a layer may be free now
		actions = append(actions, doAll(ctx, []task{t})...)
	}
	var stuck []string
	for _, a := range actions {
		if a.Action == actionStuck {
			stuck = append(stuck, a.Why)
		}
	}
	if len(stuck) > 0 {
		return actions, Failed("not_collected", "cannot clean up everything: %s", strings.Join(stuck, "; ")).
			WithFix("run engine gc again; what stays is held by the kernel and needs a reboot")
	}
	return actions, nil
}

// task is one piece of a GC, and what to say of it when it does not end.
type task struct {
	id, object string
	do         func() ([]GCAction, error)
}

// doAll does the tasks, some at a time, and returns what they did in their order. It
// does not wait for one that hangs in the kernel.
func doAll(ctx context.Context, tasks []task) []GCAction {
	type outcome struct {
		index   int
		actions []GCAction
		err     error
	}
	outcomes := make(chan outcome, len(tasks))
	slots := make(chan struct{}, gcWorkers)
	for i, t := range tasks {
		go func() {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				outcomes <- outcome{i, nil, errors.New("there was no time left for it")}
				return
			}
			actions, err := t.do()
			<-slots
			outcomes <- outcome{i, actions, err}
		}()
	}
	done := make([][]GCAction, len(tasks))
	for i, t := range tasks {
		done[i] = []GCAction{{t.id, t.object, actionStuck, "it was not done in time, or hangs in the kernel"}}
	}
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(gcGrace, func() { close(late) }) })
	defer stop()
	for range tasks {
		select {
		case o := <-outcomes:
			done[o.index] = o.actions
			if o.err != nil {
				done[o.index] = append(o.actions, GCAction{tasks[o.index].id, tasks[o.index].object, actionStuck, o.err.Error()})
			}
		case <-late:
			return slices.Concat(done...)
		}
	}
	return slices.Concat(done...)
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

// known are the ids of all runs that have a cgroup or a directory, or a record that
// does not say that all of that is gone. Records are looked at until ctx ends, from one
// of them on that is left to chance: of very many, or on a slow disk, every one gets its
// turn. The error then is ctx's, and the ids are those that were found.
func (h Host) known(ctx context.Context, hierarchy cgroups.Hierarchy) ([]string, error) {
	names, err := hierarchy.List("run")
	if err != nil {
		return nil, err
	}
	dirs, err := os.ReadDir(h.RunDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, d := range dirs {
		names = append(names, d.Name())
	}
	ids := slices.DeleteFunc(names, func(name string) bool { return !journal.ValidID(name) })
	records, err := journal.List(h.StateDir)
	if err != nil {
		return nil, err
	}
	if len(records) > 0 {
		first := rand.IntN(len(records))
		records = slices.Concat(records[first:], records[:first])
	}
	for _, id := range records {
		if err = ctx.Err(); err != nil {
			break
		}
		if _, over := h.over(id); !over {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), err
}

// over reports whether the run is on record as cleaned up, with a result, and since when.
func (h Host) over(id string) (since time.Time, over bool) {
	run, err := journal.Open(h.StateDir, id)
	if err != nil {
		return time.Time{}, false
	}
	cleaned, err := run.Read(journal.Cleaned, nil)
	if err == nil {
		_, err = run.Read(journal.Exit, nil)
	}
	return cleaned.Time, err == nil
}

// collect deals with one run. The record's lock keeps two collectors, and a monitor,
// apart.
func (h Host) collect(ctx context.Context, hierarchy cgroups.Hierarchy, id string, dryRun bool) ([]GCAction, error) {
	alive, err := journal.Alive(h.StateDir, id)
	if alive || err != nil {
		return nil, err
	}
	group := h.groupOf(hierarchy, id)
	action := GCAction{ID: id, Object: strings.Join(h.objects(group, id), ","), Action: actionEnd}
	r, err := h.load(id)
	if errors.Is(err, fs.ErrNotExist) {
		action.Why = "no run of this id is on record"
		if held, err := h.heldElsewhere(group, id); held || err != nil {
			return nil, err
		}
		if dryRun {
			return []GCAction{action}, nil
		}
		if err := tearDown(ctx, h, group, id); err != nil {
			return nil, err
		}
		return []GCAction{action}, nil
	}
	if err != nil {
		return nil, err
	}
	if action.Why = h.remains(r, group); action.Why == "" {
		return nil, nil
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
	if action.Why = h.remains(r, group); action.Why == "" {
		return nil, nil
	}
	if err := h.finish(ctx, run, r, group); err != nil {
		return nil, err
	}
	return []GCAction{action}, nil
}

// remains tells why a run that nobody watches needs a collector, "" if it does not.
func (h Host) remains(r Record, group cgroups.Group) string {
	host := []string{group.Dir, h.runDir(r.ID)}
	left := slices.ContainsFunc(host, exists)
	problems := ""
	if len(r.Problems) > 0 {
		problems = ": " + strings.Join(r.Problems, "; ")
	}
	switch {
	case r.newer && !left:
		return "" // for the engine that wrote it
	case r.newer:
		return "its monitor died; its record stays as it is" + problems
	case r.State == Removed && r.Result != nil && left:
		return "it is on record as cleaned up, and is not"
	case r.State == Removed && r.Result != nil:
		return ""
	case r.Result != nil:
		return "its monitor died while tearing it down"
	case r.unbegun:
		return "its starter died before its request was on record"
	}
	return "its monitor died" + problems
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// finish brings a run to its end in its monitor's place.
// Preconditions: this process holds the run's lock.
func (h Host) finish(ctx context.Context, run *journal.Run, r Record, group cgroups.Group) error {
	failpoint("before-collect")
	if r.Result == nil && !r.newer && !r.unbegun {
		if err := h.bury(ctx, run, r.Request, group); err != nil {
			return err
		}
		failpoint("after-burial")
	}
	if err := tearDown(ctx, h, group, run.ID()); err != nil {
		return err
	}
	switch {
	case r.newer:
		return nil
	case r.unbegun:
		return run.Remove()
	}
	failpoint("before-cleaned")
	return run.Write(journal.Cleaned, struct{}{}, false)
}

// What belongs to a run names the lock of the run's record, so that an engine with
// another state directory can see whose it is.
const (
	lockLink  = "lock"                // symbolic link in the run's directory
	lockXattr = "trusted.engine.lock" // of the run's cgroup
)

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
		return fmt.Errorf("cannot end run=%s: %w", run.ID(), err)
	}
	req.ID = run.ID()
	result := newResult(req)
	if usage, err := group.ReadUsage(); err == nil {
		result.Actuals = actuals(usage)
		if t := h.lastTraffic(req); t != nil {
			result.Actuals.RxBytes, result.Actuals.TxBytes = &t.Rx, &t.Tx
		}
	}
	why := "its monitor died"
	_, problems := run.Last()
	var end endedRecord
	switch _, err := run.Read(journal.Ended, &end); {
	case err == nil:
		why = "its monitor died after the program had ended"
		result.ExitCode, result.Signal, result.DurationMs = end.ExitCode, end.Signal, end.DurationMs
	case !errors.Is(err, fs.ErrNotExist):
		problems = append(problems, err)
	}
	result.setReason(ReasonLost)
	result.Error = Failed("lost", "run=%s was lost: %s", run.ID(), why)
	if len(problems) > 0 {
		result.Error = Failed("lost", "run=%s was lost: %s: %w", run.ID(), why, errors.Join(problems...))
	}
	if earlierBoot(run) {
		result.setReason(ReasonInterrupted)
		result.Error = Failed("interrupted", "run=%s was interrupted: the host was started again", run.ID())
	}
	return run.Write(journal.Exit, result, true)
}

// earlierBoot reports whether the run began before this boot of the host.
func earlierBoot(run *journal.Run) bool {
	boot, err := journal.BootID()
	if err != nil {
		return false
	}
	for _, name := range []string{journal.Intent, journal.Created, journal.Started} {
		if header, err := run.Read(name, nil); err == nil {
			return header.BootID != boot
		}
	}
	return false
}
