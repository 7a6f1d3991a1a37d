package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/integration/testenv"
)

// small makes a directory of the bed a file system of its own, of so many bytes.
func (b *bed) small(dir string, bytes int64) {
	b.t.Helper()
	if err := os.MkdirAll(b.path(dir), 0o711); err != nil {
		b.t.Fatal(err)
	}
	if err := unix.Mount("faults", b.path(dir), "tmpfs", 0, fmt.Sprintf("size=%d,mode=0711", bytes)); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { unix.Unmount(b.path(dir), unix.MNT_DETACH) })
}

// TestDiskFullWhileRunning fills the disk of the records by a run's own output. The run
// still ends with its result on record, and the next one is refused.
func TestDiskFullWhileRunning(t *testing.T) {
	scope(t)
	b := newBed(t)
	b.small("state", 1<<20)
	id := journal.NewID()
	loud := b.startJob("embedded", id, "yes | head -c 3000000; exit 7")
	loud = append([]string{"run", "--min-free-disk", "0", "--output-limit", "10MB"}, loud[1:]...)
	o := b.engine(nil, loud...)
	b.quiet(id)
	b.clean()
	r := b.record(id)
	if r == nil || r.Result == nil || r.Result.Reason == nil || *r.Result.Reason != engine.ReasonExited {
		t.Fatalf("record = %+v, want one of a program that exited\n%.2000s", r, o.stderr)
	}
	if o.status != 7 || len(o.stdout) != 3000000 || r.Result.StdoutBytes != 3000000 || !r.Result.StdoutTruncated {
		t.Errorf("status %d, %d bytes passed on, result %d bytes, truncated: %t; want 7, 3000000 twice, true",
			o.status, len(o.stdout), r.Result.StdoutBytes, r.Result.StdoutTruncated)
	}
	if r.Result.Error == nil || !strings.Contains(r.Result.Error.Message, "no space left") || !strings.Contains(o.stderr, "no space left") {
		t.Errorf("nothing says that the disk was full: error = %v\n%s", r.Result.Error, o.stderr)
	}
	next := b.engine(nil, b.start("embedded", "")...)
	if next.status != 125 || !strings.Contains(next.stderr, "below the minimum of 64MiB") {
		t.Errorf("a run without room was not refused:\n%s", next)
	}
	if o := b.engine(nil, "rm", id); o.status != 0 {
		t.Errorf("%s", o)
	}
	again := b.engine(nil, append([]string{"run", "--min-free-disk", "100kB"}, b.start("embedded", "")[1:]...)...)
	if again.status != 7 {
		t.Errorf("with room again:\n%s", again)
	}
}

// TestNoRoom starts runs with too little of the disk, in the state and in the run
// directory, for each amount from none to enough.
func TestNoRoom(t *testing.T) {
	scope(t)
	for _, dir := range []string{"state", "run"} {
		t.Run(dir, func(t *testing.T) {
			b := newBed(t)
			b.small(dir, 1<<20)
			filler := b.path(dir, "filler")
			refused := 0
			step := 32 << 10
			if scope(t) == "all" {
				step = 4 << 10
			}
			for free := 0; free <= 256<<10; free += step {
				os.Remove(filler)
				var st unix.Statfs_t
				if err := unix.Statfs(b.path(dir), &st); err != nil {
					t.Fatal(err)
				}
				fill := make([]byte, max(int64(st.Bavail)*st.Bsize-int64(free), 0))
				if err := os.WriteFile(filler, fill, 0o600); err != nil {
					t.Fatal(err)
				}
				id := journal.NewID()
				o := b.engine(nil, append([]string{"run", "--min-free-disk", "0"}, b.start("embedded", id)[1:]...)...)
				b.quiet(id)
				if o.status != 7 {
					refused++
					if o.status != 125 || !typed.MatchString(o.stderr) {
						t.Errorf("with %d bytes free: neither success nor an error:\n%s", free, o)
					}
				}
				// Room, so that the end of the run can be recorded.
				os.Remove(filler)
				b.gc()
				b.clean()
				b.engine(nil, "rm", id)
			}
			t.Logf("%d runs were refused or ended", refused)
		})
	}
}

// TestFewDescriptors starts runs with too few descriptors, for each number from none.
func TestFewDescriptors(t *testing.T) {
	scope(t)
	b := newBed(t)
	for _, n := range take(t, []int{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 26, 28, 30, 32, 36, 40}, 8) {
		b.limited(fmt.Sprintf("--nofile=%d", n), true)
	}
	b.limited("--nofile=4096", false)
}

// TestLittleMemory starts runs in too little address space.
func TestLittleMemory(t *testing.T) {
	scope(t)
	b := newBed(t)
	for mib := 64; mib <= 1024; mib += 120 {
		b.limited(fmt.Sprintf("--as=%d", mib<<20), true)
	}
}

// limited is a run under a limit that engine and its monitor inherit. It succeeds, or
// ends in an error; then nothing is left.
func (b *bed) limited(limit string, mayFail bool) {
	b.t.Helper()
	prlimit, err := exec.LookPath("prlimit")
	if err != nil {
		b.t.Fatal(err)
	}
	id := journal.NewID()
	cmd := b.command(b.t.Context(), nil, b.start("embedded", id)...)
	cmd.Args = append([]string{"prlimit", limit, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = prlimit
	out, err := cmd.CombinedOutput()
	status := cmd.ProcessState.ExitCode()
	b.quiet(id)
	b.gc()
	b.clean()
	switch {
	case status == 7:
	case !mayFail:
		b.t.Errorf("%s: status %d (%v)\n%s", limit, status, err, out)
	case typed.Match(out):
	case status == 2 || status == 127 || status == 1 || status == 134:
		// The program could not be loaded, or Go's runtime gave up before or in main.
	default:
		b.t.Errorf("%s: neither success nor an error: status %d (%v)\n%s", limit, status, err, out)
	}
}

// TestNoProcesses lets the host run out of processes for monitors.
func TestNoProcesses(t *testing.T) {
	scope(t)
	testenv.RequireCgroup(t, "pids")
	b := newBed(t)
	b.engine(nil, b.start("embedded", "")...)
	pids := filepath.Join(b.groups.Group("mon").Dir, "pids.max")
	for n := 0; n <= 24; n += 3 {
		if err := os.WriteFile(pids, []byte(fmt.Sprint(n)), 0o600); err != nil {
			t.Fatal(err)
		}
		id := journal.NewID()
		o := b.engine(nil, b.start("embedded", id)...)
		b.quiet(id)
		b.gc()
		b.clean()
		if o.status != 7 && (o.status != 125 || !typed.MatchString(o.stderr)) {
			t.Errorf("with room for %d processes: neither success nor an error:\n%s", n, o)
		}
	}
}

// TestAdmission refuses runs that the host has no room for.
func TestAdmission(t *testing.T) {
	scope(t)
	b := newBed(t)
	for flag, kind := range map[string]string{"--min-free-disk": "disk_full", "--min-free-memory": "no_memory"} {
		o := b.engine(nil, append([]string{"run", "--json", flag, "1024TiB"}, b.start("embedded", "")[1:]...)...)
		if o.status != 125 || !strings.Contains(o.stdout, `"kind":"`+kind+`"`) || !strings.Contains(o.stderr, "below the minimum of 1024TiB") {
			t.Errorf("%s: want a refusal of kind %s:\n%s", flag, kind, o)
		}
		if runs := b.list("state/runs"); len(runs) > 0 {
			t.Errorf("%s: a refused run is on record: %q", flag, runs)
		}
	}
}
