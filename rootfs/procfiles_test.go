package rootfs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFormatMeminfo(t *testing.T) {
	got := string(formatMeminfo(512 << 20))
	for _, line := range []string{
		"MemTotal:         524288 kB\n", "MemFree:          524288 kB\n", "MemAvailable:     524288 kB\n",
		"SwapTotal:             0 kB\n", "HugePages_Total:       0\n", "Active(file):          0 kB\n",
	} {
		if !strings.Contains(got, line) {
			t.Errorf("meminfo lacks %q:\n%s", line, got)
		}
	}
}

// TestMeminfoKeys compares our keys with those of the kernel that runs the test.
func TestMeminfoKeys(t *testing.T) {
	host, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	ours := string(formatMeminfo(1 << 30))
	optional := []string{"Balloon", "DirectMap4k", "DirectMap2M", "DirectMap1G", "DirectMap4M", "HardwareCorrupted", "CmaTotal", "CmaFree", "Unaccepted", "GPUActive", "GPUReclaim"}
	for line := range strings.Lines(string(host)) {
		key, _, _ := strings.Cut(line, ":")
		if !slices.Contains(optional, key) && !strings.Contains(ours, "\n"+key+":") && !strings.HasPrefix(ours, key+":") {
			t.Errorf("meminfo lacks the kernel's key %s", key)
		}
	}
}

func TestFormatStat(t *testing.T) {
	got := string(formatStat(2, time.Unix(1795966046, 900)))
	want := `cpu  0 0 0 0 0 0 0 0 0 0
cpu0 0 0 0 0 0 0 0 0 0 0
cpu1 0 0 0 0 0 0 0 0 0 0
intr 0
ctxt 0
btime 1795966046
processes 0
procs_running 1
procs_blocked 0
softirq 0 0 0 0 0 0 0 0 0 0 0
`
	if got != want {
		t.Errorf("stat is\n%s\nwant\n%s", got, want)
	}
}

func TestBootTime(t *testing.T) {
	got, err := bootTime()
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	var want int64
	for line := range strings.Lines(string(stat)) {
		if strings.HasPrefix(line, "btime ") {
			if _, err := fmt.Sscanf(line, "btime %d", &want); err != nil {
				t.Fatal(err)
			}
		}
	}
	if d := got.Unix() - want; d < -1 || d > 1 {
		t.Errorf("boot time = %d, the kernel says %d", got.Unix(), want)
	}
}

const fourCPUs = "processor\t: 0\nmodel name\t: A: B\nphysical id\t: 0\nsiblings\t: 2\ncore id\t\t: 0\ncpu cores\t: 1\napicid\t\t: 0\ninitial apicid\t: 0\npower management:\n\n" +
	"processor\t: 1\nmodel name\t: A: B\nphysical id\t: 0\nsiblings\t: 2\ncore id\t\t: 0\ncpu cores\t: 1\napicid\t\t: 1\ninitial apicid\t: 1\npower management:\n\n" +
	"processor\t: 2\nmodel name\t: C\nphysical id\t: 1\nsiblings\t: 2\ncore id\t\t: 4\ncpu cores\t: 1\napicid\t\t: 8\ninitial apicid\t: 8\npower management:\n\n" +
	"processor\t: 13\nmodel name\t: D\nphysical id\t: 1\nsiblings\t: 2\ncore id\t\t: 4\ncpu cores\t: 1\napicid\t\t: 9\ninitial apicid\t: 9\npower management:\n\n"

func TestFormatCPUInfo(t *testing.T) {
	got, err := formatCPUInfo(strings.NewReader(fourCPUs), []int{13, 1})
	if err != nil {
		t.Fatal(err)
	}
	want := "processor\t: 0\nmodel name\t: A: B\nphysical id\t: 0\nsiblings\t: 2\ncore id\t\t: 0\ncpu cores\t: 2\napicid\t\t: 0\ninitial apicid\t: 0\npower management:\n\n" +
		"processor\t: 1\nmodel name\t: D\nphysical id\t: 0\nsiblings\t: 2\ncore id\t\t: 1\ncpu cores\t: 2\napicid\t\t: 1\ninitial apicid\t: 1\npower management:\n\n"
	if string(got) != want {
		t.Errorf("cpuinfo is\n%s\nwant\n%s", got, want)
	}
	// An ARM host has no topology and may end without an empty line.
	arm := "processor\t: 0\nBogoMIPS\t: 50.00\nCPU part\t: 0xd0c\n\nprocessor\t: 1\nBogoMIPS\t: 50.00\nCPU part\t: 0xd0d\n"
	got, err = formatCPUInfo(strings.NewReader(arm), []int{1})
	if err != nil || string(got) != "processor\t: 0\nBogoMIPS\t: 50.00\nCPU part\t: 0xd0d\n" {
		t.Errorf("cpuinfo of an ARM host is %q, %v", got, err)
	}
	if _, err := formatCPUInfo(strings.NewReader(fourCPUs), []int{1, 3}); err == nil {
		t.Error("a CPU that the host does not list was described")
	}
}

func FuzzFormatCPUInfo(f *testing.F) {
	f.Add([]byte(fourCPUs), 1, 13)
	f.Add([]byte("processor"), 0, 0)
	f.Fuzz(func(t *testing.T, host []byte, a, b int) {
		got, err := formatCPUInfo(bytes.NewReader(host), []int{a, b})
		if err == nil && !bytes.HasPrefix(got, []byte("processor")) {
			t.Errorf("cpuinfo starts with %q", got[:min(20, len(got))])
		}
	})
}

func TestProcFiles(t *testing.T) {
	cpus, err := AffinityCPUs(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "a", "proc")
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	for range 2 { // replaces its own
		binds, err := ProcFiles(dir, cpus, 256<<20)
		if err != nil {
			t.Fatal(err)
		}
		var inside []string
		for _, b := range binds {
			inside = append(inside, b.Destination)
			st, err := os.Stat(b.Source)
			if err != nil || st.Mode() != 0o444 || st.Size() == 0 {
				t.Errorf("%s is %v, %v, want a file of mode 0444 with content", b.Source, st, err)
			}
		}
		if want := []string{"/proc/meminfo", "/proc/cpuinfo", "/proc/stat"}; !slices.Equal(inside, want) {
			t.Errorf("binds to %v, want %v", inside, want)
		}
	}
	huge, err := ProcFiles(dir, cpus, 1<<60)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(huge[0].Source)
	if err != nil || strings.Contains(string(got), "1125899906842624") {
		t.Errorf("more memory than the host has is shown: %v\n%s", err, got)
	}
}

func TestChooseCPUs(t *testing.T) {
	allowed := []int{0, 2, 4, 6}
	for _, tt := range []struct {
		n     float64
		start int
		want  []int
	}{
		{0, 0, []int{0}},
		{0.1, 1, []int{2}},
		{1, 3, []int{6}},
		{1.5, 3, []int{0, 6}},
		{2, -1, []int{0, 6}},
		{2, -7, []int{2, 4}},
		{3.0001, 5, []int{0, 2, 4, 6}},
		{1e300, 2, []int{0, 2, 4, 6}},
	} {
		if got := chooseCPUs(allowed, tt.n, tt.start); !slices.Equal(got, tt.want) {
			t.Errorf("%v CPUs of %v from %d = %v, want %v", tt.n, allowed, tt.start, got, tt.want)
		}
	}
}

// TestCPUMask lets the kernel judge the form.
func TestCPUMask(t *testing.T) {
	if got, want := CPUMask([]int{0, 9, 64}), []byte{1, 2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}; !bytes.Equal(got, want) {
		t.Errorf("mask = %v, want %v", got, want)
	}
	if got := CPUMask(nil); len(got) != 0 {
		t.Errorf("mask of no CPU = %v, want none", got)
	}
	cpus, err := AffinityCPUs(1e9, 0)
	if err != nil {
		t.Fatal(err)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	if len(cpus) != set.Count() {
		t.Errorf("all CPUs = %v, the kernel counts %d", cpus, set.Count())
	}
}

func BenchmarkProcFiles(b *testing.B) {
	dir := b.TempDir()
	cpus, err := AffinityCPUs(2, 0)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := ProcFiles(dir, cpus, 512<<20); err != nil {
			b.Fatal(err)
		}
	}
}
