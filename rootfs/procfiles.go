package rootfs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bind is one file of the host to be shown inside, read-only.
type Bind struct {
	Source      string // absolute, on the host
	Destination string // absolute, inside
}

// ProcFiles writes into dir, which it makes if need be, the files that stand in for
// the kernel's own below /proc, whose figures are the whole host's: meminfo says
// memory bytes (or the host's, if that is less), cpuinfo and stat show the given
// CPUs, numbered from 0. Whoever sizes a heap or a thread pool by them then fits
// into the limits. They are a snapshot: free memory and CPU times do not move.
// Existing files are replaced.
func ProcFiles(dir string, cpus []int, memory int64) ([]Bind, error) {
	if len(cpus) == 0 || memory <= 0 {
		return nil, fmt.Errorf("internal error: cannot describe %d CPUs and %d bytes of memory", len(cpus), memory)
	}
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return nil, fmt.Errorf("cannot read the host's memory size: %w", err)
	}
	cpuinfo, err := hostCPUInfo(cpus)
	if err != nil {
		return nil, err
	}
	boot, err := bootTime()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("cannot create dir=%s: %w", dir, err)
	}
	files := []struct {
		name    string
		content []byte
	}{
		{"meminfo", formatMeminfo(min(memory, int64(host.Totalram)*int64(host.Unit)))},
		{"cpuinfo", cpuinfo},
		{"stat", formatStat(len(cpus), boot)},
	}
	binds := make([]Bind, 0, len(files))
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		if err := replaceFile(path, f.content); err != nil {
			return nil, fmt.Errorf("cannot write %s: %w", path, err)
		}
		binds = append(binds, Bind{Source: path, Destination: "/proc/" + f.name})
	}
	return binds, nil
}

// replaceFile writes a file of mode 0444, whatever the umask is.
func replaceFile(path string, content []byte) (err error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o444)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	if err := f.Chmod(0o444); err != nil {
		return err
	}
	_, err = f.Write(content)
	return err
}

// meminfoZero are the lines that follow the memory's size, all zero. Some readers
// stop with an error where one of them is missing.
var meminfoZero = []string{
	"Buffers", "Cached", "SwapCached", "Active", "Inactive", "Active(anon)", "Inactive(anon)",
	"Active(file)", "Inactive(file)", "Unevictable", "Mlocked", "SwapTotal", "SwapFree", "Zswap", "Zswapped",
	"Dirty", "Writeback", "AnonPages", "Mapped", "Shmem", "KReclaimable", "Slab", "SReclaimable", "SUnreclaim",
	"KernelStack", "PageTables", "SecPageTables", "NFS_Unstable", "Bounce", "WritebackTmp",
}

// formatMeminfo is /proc/meminfo of a machine with this many bytes, all free, and no swap.
func formatMeminfo(memory int64) []byte {
	var b bytes.Buffer
	line := func(key string, kib int64) { fmt.Fprintf(&b, "%-16s%8d kB\n", key+":", kib) }
	kib := memory >> 10
	line("MemTotal", kib)
	line("MemFree", kib)
	line("MemAvailable", kib)
	for _, key := range meminfoZero {
		line(key, 0)
	}
	line("CommitLimit", kib)
	for _, key := range []string{"Committed_AS", "VmallocTotal", "VmallocUsed", "VmallocChunk", "Percpu", "AnonHugePages", "ShmemHugePages", "ShmemPmdMapped", "FileHugePages", "FilePmdMapped"} {
		line(key, 0)
	}
	for _, key := range []string{"HugePages_Total", "HugePages_Free", "HugePages_Rsvd", "HugePages_Surp"} {
		fmt.Fprintf(&b, "%-16s%8d\n", key+":", 0)
	}
	line("Hugepagesize", 2048)
	line("Hugetlb", 0)
	return b.Bytes()
}

// formatStat is /proc/stat of a machine with n CPUs that never did anything.
//
// SECURITY: a sandbox cannot watch the host's load or interrupts in /proc/stat.
// They tell a neighbour's activity, keystrokes included.
// Holds because: every counter is zero. The time of boot is the host's own: it follows from
// /proc/uptime anyway, and without it tools that print start times are wrong.
// Not covered: /proc/uptime, /proc/loadavg, sysinfo(2). Checked by: TestFormatStat.
func formatStat(n int, boot time.Time) []byte {
	const zeros = " 0 0 0 0 0 0 0 0 0 0\n"
	var b bytes.Buffer
	b.WriteString("cpu " + zeros)
	for i := range n {
		b.WriteString("cpu" + strconv.Itoa(i) + zeros)
	}
	fmt.Fprintf(&b, "intr 0\nctxt 0\nbtime %d\nprocesses 0\nprocs_running 1\nprocs_blocked 0\nsoftirq 0%s",
		boot.Unix(), zeros)
	return b.Bytes()
}

// bootTime is what the kernel prints as btime. Reading it there costs the sum of all
// interrupts of all CPUs.
func bootTime() (time.Time, error) {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}, fmt.Errorf("cannot read the time since boot: %w", err)
	}
	return time.Now().Add(-time.Duration(up.Nano())), nil
}

// hostCPUInfo reads the host's /proc/cpuinfo no further than the last of the given CPUs.
func hostCPUInfo(cpus []int) ([]byte, error) {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot read the host's CPUs: %w", err)
	}
	defer f.Close()
	return formatCPUInfo(f, cpus)
}

// formatCPUInfo picks the blocks of the given CPUs out of host, in the form of
// /proc/cpuinfo, and makes them one socket of cores numbered from 0.
func formatCPUInfo(host io.Reader, cpus []int) ([]byte, error) {
	wanted := slices.Clone(cpus)
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	count := len(wanted)
	var b bytes.Buffer
	number, inside := 0, false
	lines := bufio.NewScanner(host)
	lines.Buffer(make([]byte, 0, 16<<10), 1<<20)
	for lines.Scan() {
		line := lines.Text()
		key, value, _ := strings.Cut(line, ":")
		key = strings.TrimRight(key, " \t")
		switch {
		case key == "processor":
			id, err := strconv.Atoi(strings.TrimSpace(value))
			inside = err == nil && slices.Contains(wanted, id)
		case line == "" && inside:
			b.WriteByte('\n')
			inside = false
			if number++; number == count {
				return b.Bytes(), nil
			}
		}
		if inside {
			b.WriteString(renumber(line, key, number, count))
			b.WriteByte('\n')
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("cannot read the host's CPUs: %w", err)
	}
	if inside {
		number++
	}
	if number != count {
		return nil, fmt.Errorf("cannot describe CPUs %v: the host's /proc/cpuinfo has only %d of them", cpus, number)
	}
	return b.Bytes(), nil
}

// renumber replaces the figure in a line that says which or how many CPUs there are.
func renumber(line, key string, number, count int) string {
	figure := number
	switch key {
	case "processor", "core id", "apicid", "initial apicid":
	case "physical id":
		figure = 0
	case "siblings", "cpu cores":
		figure = count
	default:
		return line
	}
	return line[:strings.IndexByte(line, ':')+1] + " " + strconv.Itoa(figure)
}
