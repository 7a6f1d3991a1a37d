package cgroups

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"time"
)

// Usage is what the kernel charged to a group and those below it, also those
// removed meanwhile. A nil field was not reported: the kernel is too old for it or
// the controller is missing. Zero was measured.
type Usage struct {
	CPU       *time.Duration // user and system, cpu.stat usage_usec
	User      *time.Duration // cpu.stat user_usec
	System    *time.Duration // cpu.stat system_usec
	Throttled *time.Duration // cpu.stat throttled_usec: ready to run, but the quota was used up

	MemoryPeak *int64 // bytes, memory.peak (Linux 5.19)
	OOMKills   *int64 // processes, memory.events oom_kill

	PidsPeak    *int64 // pids.peak (Linux 6.1)
	PidsRefused *int64 // forks and clones refused, pids.events max

	IORead  *int64 // bytes from block devices, io.stat rbytes
	IOWrite *int64 // bytes to block devices, io.stat wbytes
}

// ReadUsage reads the group's figures. They are final once the group is empty, and
// gone once it is removed: an error that is fs.ErrNotExist. Before Linux 6.11 the
// refused forks are counted in the group of the process that forked, so groups
// below must not be removed before.
//
// A file that cannot be read or understood leaves its fields nil, and the error
// names it; the other fields are still right.
func (g Group) ReadUsage() (Usage, error) {
	var u Usage
	if !exists(g.Dir) {
		return u, &fs.PathError{Op: "read usage of cgroup", Path: g.Dir, Err: fs.ErrNotExist}
	}
	var errs []error
	cpu, err := g.flatKeyed("cpu.stat")
	errs = append(errs, err)
	u.CPU = micros(cpu, "usage_usec")
	u.User = micros(cpu, "user_usec")
	u.System = micros(cpu, "system_usec")
	u.Throttled = micros(cpu, "throttled_usec")

	u.MemoryPeak, err = g.count("memory.peak")
	errs = append(errs, err)
	memory, err := g.flatKeyed("memory.events")
	errs = append(errs, err)
	u.OOMKills = value(memory, "oom_kill")

	u.PidsPeak, err = g.count("pids.peak")
	errs = append(errs, err)
	u.PidsRefused, err = g.pidsRefused()
	errs = append(errs, err)

	u.IORead, u.IOWrite, err = g.ioBytes()
	errs = append(errs, err)
	return u, errors.Join(errs...)
}

// pidsRefused reads pids.events. Where pids.events.local exists, pids.events is of
// the whole subtree; before, it counted what was forked in the group itself.
func (g Group) pidsRefused() (*int64, error) {
	events, err := g.flatKeyed("pids.events")
	n := value(events, "max")
	if err != nil || n == nil || exists(filepath.Join(g.Dir, "pids.events.local")) {
		return n, err
	}
	names, err := children(g.Dir)
	if err != nil {
		return nil, err
	}
	sum := *n
	for _, name := range names {
		below, err := Group{Dir: filepath.Join(g.Dir, name)}.pidsRefused()
		if err != nil {
			return nil, err
		}
		if below != nil {
			sum += *below
		}
	}
	return &sum, nil
}

func (g Group) ioBytes() (read, written *int64, err error) {
	data, err := g.read("io.stat")
	if data == nil || err != nil {
		return nil, nil, err
	}
	r, w, err := parseIOStat(data)
	if err != nil {
		return nil, nil, cannotRead(filepath.Join(g.Dir, "io.stat"), err)
	}
	return &r, &w, nil
}

// read returns a file's content, nil if there is no such file.
func (g Group) read(file string) ([]byte, error) {
	data, err := readFile(filepath.Join(g.Dir, file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// flatKeyed returns a file's values, none if there is no such file.
func (g Group) flatKeyed(file string) (map[string]int64, error) {
	data, err := g.read(file)
	if err != nil {
		return nil, err
	}
	values, err := parseFlatKeyed(data)
	if err != nil {
		return nil, cannotRead(filepath.Join(g.Dir, file), err)
	}
	return values, nil
}

// count returns the number in a file that holds nothing else, nil if there is no
// such file.
func (g Group) count(file string) (*int64, error) {
	data, err := g.read(file)
	if data == nil || err != nil {
		return nil, err
	}
	n, err := parseCount(strings.TrimSpace(string(data)))
	if err != nil {
		return nil, cannotRead(filepath.Join(g.Dir, file), err)
	}
	return &n, nil
}

func value(values map[string]int64, key string) *int64 {
	if v, ok := values[key]; ok {
		return &v
	}
	return nil
}

// micros returns a value in µs, nil also where it exceeds a Duration's 292 years.
func micros(values map[string]int64, key string) *time.Duration {
	v, ok := values[key]
	if !ok || v > int64(1<<63-1)/int64(time.Microsecond) {
		return nil
	}
	d := time.Duration(v) * time.Microsecond
	return &d
}

// Current is what a group holds at this moment. A nil field was not reported.
type Current struct {
	Memory *int64 // bytes, memory.current
	Pids   *int64 // processes and threads, pids.current
	Frozen bool   // cgroup.events frozen
}

// ReadCurrent reads the group's present figures. A group that does not exist holds
// nothing.
func (g Group) ReadCurrent() (Current, error) {
	var c Current
	var err error
	var errs []error
	c.Memory, err = g.count("memory.current")
	errs = append(errs, err)
	c.Pids, err = g.count("pids.current")
	errs = append(errs, err)
	events, err := g.flatKeyed("cgroup.events")
	c.Frozen = events["frozen"] != 0
	return c, errors.Join(append(errs, err)...)
}
