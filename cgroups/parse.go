package cgroups

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// parseFlatKeyed reads "KEY VALUE" lines: cpu.stat, memory.events and their kin. A
// value beyond int64 is an error; empty lines are skipped.
func parseFlatKeyed(data []byte) (map[string]int64, error) {
	values := make(map[string]int64)
	for line := range bytes.Lines(data) {
		fields := strings.Fields(string(line))
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("line %q is not a key and a value", line)
		}
		v, err := parseCount(fields[1])
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", fields[0], err)
		}
		values[fields[0]] = v
	}
	return values, nil
}

// parseIOStat sums the bytes read and written over all devices of an io.stat. A
// device without these keys, or with others, counts for what it has.
func parseIOStat(data []byte) (read, written int64, err error) {
	for line := range bytes.Lines(data) {
		fields := strings.Fields(string(line))
		for _, field := range fields {
			var sum *int64
			key, value, _ := strings.Cut(field, "=")
			switch key {
			case "rbytes":
				sum = &read
			case "wbytes":
				sum = &written
			default:
				continue
			}
			v, err := parseCount(value)
			if err != nil {
				return 0, 0, fmt.Errorf("device %s, key %s: %w", fields[0], key, err)
			}
			if v > math.MaxInt64-*sum {
				return 0, 0, fmt.Errorf("device %s, key %s: the sum exceeds int64", fields[0], key)
			}
			*sum += v
		}
	}
	return read, written, nil
}

// parseCount reads a decimal number that is not negative.
func parseCount(s string) (int64, error) {
	v, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("value %q is not a number from 0 to 2^63-1", s)
	}
	return int64(v), nil
}

// maxCPU bounds the numbers in a CPU list; Linux is built for 8192 CPUs at most.
const maxCPU = 8191

// parseCPUList reads the kernel's list form, "0-3,6". The empty list is valid.
func parseCPUList(s string) (map[int]bool, error) {
	cpus := make(map[int]bool)
	if s == "" {
		return cpus, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := parseCount(from)
		last := first
		if err == nil && isRange {
			last, err = parseCount(to)
		}
		if err != nil || first > last || last > maxCPU {
			return nil, fmt.Errorf("%q is neither a CPU nor a range of CPUs below %d", part, maxCPU+1)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus[int(cpu)] = true
		}
	}
	return cpus, nil
}

// parsePids reads a cgroup.procs. Processes of another PID namespace are listed
// as 0 there; they are counted in foreign, since 0 means somebody else to kill(2).
func parsePids(data []byte) (pids []int, foreign int, err error) {
	for line := range bytes.Lines(data) {
		field := strings.TrimSpace(string(line))
		if field == "" {
			continue
		}
		pid, err := strconv.ParseUint(field, 10, 31)
		if err != nil {
			return nil, 0, fmt.Errorf("%q is not a process ID", field)
		}
		if pid == 0 {
			foreign++
			continue
		}
		pids = append(pids, int(pid))
	}
	return pids, foreign, nil
}
