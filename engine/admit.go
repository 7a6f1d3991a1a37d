package engine

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/oci"
)

// What a host keeps free unless it is told otherwise: room for the records and the
// teardown of the runs that are there already.
const (
	defaultMinFreeDisk   = 64 << 20
	defaultMinFreeMemory = 64 << 20
)

// minimum applies the default to a minimum of Host.
func minimum(asked, otherwise int64) int64 {
	if asked == 0 {
		return otherwise
	}
	return max(asked, 0)
}

// admit refuses a run that this host has no room for. What is free may be gone a
// moment later: a run that meets that ends with an error, and is torn down.
func (h Host) admit() error {
	if want := minimum(h.MinFreeDisk, defaultMinFreeDisk); want > 0 {
		for _, dir := range []string{h.StateDir, h.RunDir} {
			var st unix.Statfs_t
			if err := statfs(dir, &st); err != nil {
				return Failed("no_directory", "cannot read the free space of directory=%s: %w", dir, err)
			}
			if free := int64(st.Bavail) * st.Bsize; free < want {
				return Failed("disk_full", "cannot start a run: %s free in directory=%s, below the minimum of %s",
					oci.FormatSize(free), dir, oci.FormatSize(want)).
					WithFix("free some space (engine rm, engine image rm), or lower --min-free-disk, of a service minFreeDiskMb")
			}
		}
	}
	if want := minimum(h.MinFreeMemory, defaultMinFreeMemory); want > 0 {
		free, err := availableMemory()
		if err != nil {
			return Failed("no_memory", "cannot read the free memory: %w", err)
		}
		if free < want {
			return Failed("no_memory", "cannot start a run: %s of memory available, below the minimum of %s",
				oci.FormatSize(free), oci.FormatSize(want)).WithFix("wait for other runs to end, or lower --min-free-memory, of a service minFreeMemoryMb")
		}
	}
	return nil
}

func statfs(dir string, st *unix.Statfs_t) error {
	for {
		if err := unix.Statfs(dir, st); err != unix.EINTR {
			return err
		}
	}
}

// availableMemory is the kernel's estimate of what can be had without swapping.
func availableMemory() (bytes int64, err error) {
	const path = "/proc/meminfo"
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for scan := bufio.NewScanner(f); scan.Scan(); {
		if text, ok := strings.CutPrefix(scan.Text(), "MemAvailable:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(text, "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no MemAvailable", path)
}
