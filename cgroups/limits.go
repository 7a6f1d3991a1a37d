package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of one group. Zero means no limit.
type Limits struct {
	CPUs   float64 // CPU seconds a second; at least 0.01, the kernel's minimum, is enforced
	Memory int64   // bytes, rounded down to whole pages; none of it in swap; reaching it kills the whole group
	Pids   int64   // processes and threads
	CPUSet string  // CPUs it may run on, "0-3,6"
}

// cpuPeriod is the time over which a CPU quota holds, in µs: the kernel's default.
const cpuPeriod = 100_000

// minQuota is the least quota the kernel takes, in µs.
const minQuota = 1000

// Create makes the group and sets its limits, each proved by reading back. An empty
// group of that name, left by somebody, is replaced, so that the new one is not
// charged for the old one's usage and what is cloned into it does not fall to the
// old one's kill; a populated one is a *PopulatedError.
//
// Limits that no controller enforces are not an error: they are returned in
// unenforced by their public names "cpus", "cpuset", "memory", "pids", sorted, and the caller
// decides. On an error no group is left.
func (h Hierarchy) Create(group string, l Limits) (g Group, unenforced []string, err error) {
	if err := l.check(); err != nil {
		return Group{}, nil, err
	}
	g = h.Group(group)
	err = mkdir(g.Dir)
	if err == unix.EEXIST {
		if err := g.Remove(); err != nil {
			return Group{}, nil, err
		}
		err = mkdir(g.Dir)
	}
	if err != nil {
		return Group{}, nil, cannotMake(g.Dir, err)
	}
	settings := l.settings()
	if slices.Contains(h.Controllers, "hugetlb") {
		huge, err := hugetlbSettings(g.Dir)
		if err != nil {
			return Group{}, nil, errors.Join(err, g.Remove())
		}
		settings = append(settings, huge...)
	}
	unenforced, err = apply(g.Dir, settings)
	if err == nil && l.CPUSet != "" && !slices.Contains(unenforced, "cpuset") {
		err = checkEffective(g.Dir, l.CPUSet)
	}
	if err != nil {
		return Group{}, nil, errors.Join(err, g.Remove())
	}
	return g, unenforced, nil
}

// check refuses values that no kernel could mean.
func (l Limits) check() error {
	switch {
	case l.CPUs < 0 || math.IsNaN(l.CPUs) || l.CPUs > 1e6:
		return fmt.Errorf("cannot limit cpus=%v: not between 0 and 1000000", l.CPUs)
	case l.Memory < 0 || l.Memory > 0 && l.Memory < int64(os.Getpagesize()):
		return fmt.Errorf("cannot limit memory=%d: less than a page of %d bytes", l.Memory, os.Getpagesize())
	case l.Pids < 0:
		return fmt.Errorf("cannot limit pids=%d: negative", l.Pids)
	}
	if l.CPUSet != "" {
		if _, err := parseCPUList(l.CPUSet); err != nil {
			return fmt.Errorf("cannot limit cpuset=%s: %w", l.CPUSet, err)
		}
	}
	return nil
}

// setting is one file and what it must hold.
type setting struct {
	limit string // public name of the limit that is lost when there is no such file; "" when none is
	file  string
	value string
	same  func(got, want string) bool

	// needless tells that nothing is lost without the file; nil: the limit is.
	needless func() bool
}

// settings is the whole of l as files, apart from hugetlb, whose files depend on
// the machine. Same limits, same settings.
func (l Limits) settings() []setting {
	s := []setting{ // an OCI runtime makes a group below, some make one more in it
		{file: "cgroup.max.depth", value: "2", same: equal},
		{file: "cgroup.max.descendants", value: "4", same: equal},
	}
	if l.Memory > 0 {
		s = append(s,
			setting{limit: "memory", file: "memory.max", value: memoryMax(l.Memory, int64(os.Getpagesize())), same: equal},
			setting{limit: "memory", file: "memory.swap.max", value: "0", same: equal, needless: noSwap},
			setting{file: "memory.zswap.max", value: "0", same: equal},
			setting{limit: "memory", file: "memory.oom.group", value: "1", same: equal},
		)
	}
	if l.Pids > 0 {
		s = append(s, setting{limit: "pids", file: "pids.max", value: strconv.FormatInt(l.Pids, 10), same: equal})
	}
	if l.CPUs > 0 {
		s = append(s,
			setting{limit: "cpus", file: "cpu.max", value: cpuMax(l.CPUs), same: equal},
			setting{file: "cpu.max.burst", value: "0", same: equal},
		)
	}
	if l.CPUSet != "" {
		s = append(s, setting{limit: "cpuset", file: "cpuset.cpus", value: l.CPUSet, same: sameCPUs})
	}
	return s
}

// memoryMax is bytes in the kernel's own rounding: down to pages, and no limit when
// more than it can count.
func memoryMax(bytes, page int64) string {
	if bytes/page >= math.MaxInt64/page {
		return "max"
	}
	return strconv.FormatInt(bytes-bytes%page, 10)
}

// cpuMax is a quota of cpus over the period, to the nearest µs and not below the
// kernel's minimum.
func cpuMax(cpus float64) string {
	quota := max(int64(math.Round(cpus*cpuPeriod)), minQuota)
	return fmt.Sprintf("%d %d", quota, cpuPeriod)
}

// hugetlbSettings forbids huge pages: they are not charged to memory.max.
func hugetlbSettings(dir string) ([]setting, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var s []setting
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "hugetlb.") && strings.HasSuffix(e.Name(), ".max") {
			s = append(s, setting{file: e.Name(), value: "0", same: equal})
		}
	}
	return s, nil
}

// apply sets every setting and returns the limits whose files do not exist.
func apply(dir string, settings []setting) (unenforced []string, err error) {
	for _, s := range settings {
		err := set(filepath.Join(dir, s.file), s.value, s.same)
		if err == nil {
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if s.needless != nil && s.needless() {
			continue
		}
		if s.limit != "" && !slices.Contains(unenforced, s.limit) {
			unenforced = append(unenforced, s.limit)
		}
	}
	slices.Sort(unenforced)
	return unenforced, nil
}

// checkEffective proves that the CPU set is in force: where none of its CPUs is
// given to the group above, the kernel takes that group's instead.
func checkEffective(dir, want string) error {
	file := filepath.Join(dir, "cpuset.cpus.effective")
	data, err := readFile(file)
	if err != nil {
		return err
	}
	allowed, err := parseCPUList(want)
	if err != nil {
		return err
	}
	effective, err := parseCPUList(strings.TrimSpace(string(data)))
	if err != nil {
		return cannotRead(file, err)
	}
	for cpu := range effective {
		if !allowed[cpu] {
			return cannotSet(filepath.Join(dir, "cpuset.cpus"), want,
				fmt.Errorf("none of these CPUs is available, the kernel would use %s", strings.TrimSpace(string(data))))
		}
	}
	return nil
}

// noSwap tells that the host has no swap, so that a kernel built or booted without
// swap accounting cannot let a group exceed its memory there.
func noSwap() bool {
	data, err := readFile("/proc/swaps")
	return errors.Is(err, fs.ErrNotExist) || err == nil && strings.Count(string(data), "\n") <= 1
}

func equal(got, want string) bool { return got == want }

func sameCPUs(got, want string) bool {
	g, gotErr := parseCPUList(got)
	w, wantErr := parseCPUList(want)
	if gotErr != nil || wantErr != nil || len(g) != len(w) {
		return false
	}
	for cpu := range g {
		if !w[cpu] {
			return false
		}
	}
	return true
}
