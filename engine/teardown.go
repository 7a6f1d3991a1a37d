package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/moby/sys/mountinfo"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/rootfs"
)

// teardown gives back everything that the run took, in reverse. Every step is tried
// whatever became of the others. The run is on record as cleaned only if all of them
// worked, and last, which is done before that, did too: otherwise gc has to look.
func (sb *sandbox) teardown(ctx context.Context, last func() error) error {
	failpoint("before-teardown")
	err := tearDown(ctx, sb.Host, sb.group, sb.Request.ID)
	if err == nil {
		// Only now may the ids be given out again: nothing runs under them any more.
		err = sb.ids.release()
		failpoint("after-uids-released")
	}
	err = errors.Join(err, sb.network.close(), sb.image.release(), last())
	if err != nil {
		return err
	}
	failpoint("before-cleaned")
	err = sb.record.Write(journal.Cleaned, struct{}{}, false)
	failpoint("after-cleaned")
	return err
}

// tearDown removes the kernel objects and files of the run id, of which the caller
// knows nothing but the names that follow from it. Idempotent.
func tearDown(ctx context.Context, h Host, group cgroups.Group, id string) error {
	var errs []error
	if group.Dir != "" {
		ctx, cancel := context.WithTimeout(ctx, emptyBound)
		defer cancel()
		errs = append(errs, group.Kill(), group.WaitEmpty(ctx), group.Remove())
		failpoint("cgroup-removed")
	}
	dir := h.runDir(id)
	errs = append(errs, unmountBelow(dir))
	failpoint("unmounted")
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cannot tear down run=%s: %w", id, err)
	}
	// The directory goes last, and only after the rest: while it is there, gc knows
	// the run, and its uids are not given out again.
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("cannot tear down run=%s: %w", id, err)
	}
	failpoint("directory-removed")
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
