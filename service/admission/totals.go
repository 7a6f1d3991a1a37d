package admission

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/direct-oci/engine/engine"
)

const (
	// cpusPerCPU is how many times a host's CPUs are given out by default: sandboxes that
	// stay are idle most of the time, and the kernel shares CPUs where they are not.
	cpusPerCPU = 8
	// keptFree is what of the memory is not given out: a tenth, and this at least.
	keptFree = 512 << 20
)

// HostTotals are totals for this host: nine tenths of its memory, eight times its CPUs,
// half of the processes that its kernel has room for; and of each no more than limits of
// the cgroup at dir, the one that all sandboxes are in, and of those above it.
func HostTotals(dir string) (Limits, error) { return totals("/proc", dir) }

func totals(proc, dir string) (Limits, error) {
	memory, err := memTotal(filepath.Join(proc, "meminfo"))
	if err != nil {
		return Limits{}, err
	}
	l := Limits{Memory: memory - max(memory/10, keptFree), CPUs: float64(cpusPerCPU * runtime.NumCPU())}
	for _, name := range []string{"pid_max", "threads-max"} {
		n, err := number(filepath.Join(proc, "sys/kernel", name))
		if err != nil {
			return Limits{}, err
		}
		l.Pids = least(l.Pids, n/2)
	}
	for ; dir != "/" && dir != "." && dir != ""; dir = filepath.Dir(dir) {
		for file, limit := range map[string]*int64{"memory.max": &l.Memory, "pids.max": &l.Pids} {
			n, err := number(filepath.Join(dir, file))
			if err != nil {
				return Limits{}, err
			}
			*limit = least(*limit, n)
		}
	}
	if l.Memory <= 0 {
		return Limits{}, engine.Failed("no_memory", "cannot give out memory of this host: it has %d bytes", memory)
	}
	return l, nil
}

// least is the lower of two limits, of which zero is none.
func least(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// number reads a file with one number. A file that is not there, or says max, is zero.
func number(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	text := strings.TrimSpace(string(data))
	if err == nil && text == "max" {
		return 0, nil
	}
	n, parseErr := strconv.ParseInt(text, 10, 64)
	if err = errors.Join(err, parseErr); err != nil {
		return 0, engine.Failed("no_memory", "cannot tell what this host has, from file=%s: %w", path, err)
	}
	return n, nil
}

func memTotal(path string) (bytes int64, err error) {
	f, err := os.Open(path)
	if err == nil {
		defer f.Close()
		for scan := bufio.NewScanner(f); scan.Scan(); {
			if text, ok := strings.CutPrefix(scan.Text(), "MemTotal:"); ok {
				kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(text, "kB")), 10, 64)
				if err == nil {
					return kb << 10, nil
				}
			}
		}
		err = fmt.Errorf("there is no MemTotal")
	}
	return 0, engine.Failed("no_memory", "cannot tell what this host has, from file=%s: %w", path, err)
}
