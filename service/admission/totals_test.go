package admission

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestTotalsAreOfTheHostAndItsCgroups(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/proc/meminfo", "MemFree: 1 kB\nMemTotal:       16777216 kB\n")
	put(t, dir+"/proc/sys/kernel/pid_max", "4194304\n")
	put(t, dir+"/proc/sys/kernel/threads-max", "127000\n")
	cpus := float64(8 * runtime.NumCPU())
	memory := int64(16<<30) - int64(16<<30)/10
	slice := dir + "/cg/engine.slice/engine"
	put(t, slice+"/memory.max", "max\n")
	if l, err := totals(dir+"/proc", slice); err != nil || l != (Limits{0, memory, cpus, 63500}) {
		t.Errorf("totals = %+v, %v", l, err)
	}
	put(t, dir+"/cg/engine.slice/memory.max", "8589934592\n")
	put(t, dir+"/cg/engine.slice/pids.max", "5000\n")
	if l, err := totals(dir+"/proc", slice); err != nil || l != (Limits{0, 8 << 30, cpus, 5000}) {
		t.Errorf("totals below a slice with limits = %+v, %v", l, err)
	}
	put(t, slice+"/pids.max", "rubbish\n")
	if _, err := totals(dir+"/proc", slice); err == nil {
		t.Error("a limit that cannot be read was taken for none")
	}
	put(t, dir+"/proc/meminfo", "MemFree: 1 kB\n")
	if _, err := totals(dir+"/proc", ""); err == nil {
		t.Error("memory that is not told was taken for something")
	}
	if l, err := HostTotals(""); err != nil || l.Memory <= 0 || l.Pids <= 0 {
		t.Errorf("of this host: %+v, %v", l, err)
	}
}

func TestOtherWorkIsAdmittedOnceAtATime(t *testing.T) {
	g := New(Config{Total: Limits{Sandboxes: 2}})
	release, err := g.Admit(t.Context(), "x", "a", one)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Admit(t.Context(), "x", "a", one); kindOf(err) != "exists" {
		t.Errorf("Admit of what is under way = %v", err)
	}
	mustHold(t, g, "x", "a", one) // a sandbox of the same id is another thing
	if held := g.Held(); len(held) != 1 || held[0] != "x" {
		t.Errorf("held for sandboxes: %v", held)
	}
	release()
	release()
	if s := g.Snapshot(); s.Used.Sandboxes != 1 {
		t.Errorf("used = %+v, want the sandbox", s.Used)
	}
	check(t, g)
}
