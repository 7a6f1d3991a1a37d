package service

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/guest"
	"github.com/direct-oci/engine/integration/testenv"
)

// TestSandboxOnTheEngine leads one through all that can be done with it.
func TestSandboxOnTheEngine(t *testing.T) {
	onRuntimes(t, func(t *testing.T, b *bed) {
		m := b.manager()
		s := b.spec("wf:1.step-2", "ann")
		s.Env = map[string]string{"GREETING": "good morning"}
		s.Labels = map[string]string{"run": "r1"}
		sb, created, err := m.Create(t.Context(), s)
		if err != nil || !created || sb.State != Ready || sb.Deadline == nil || time.Until(*sb.Deadline) > 10*time.Minute {
			t.Fatalf("Create = %+v, %v, %v", sb, created, err)
		}
		if again, created, err := b.manager().Create(t.Context(), s); err != nil || created || again.ID != sb.ID {
			t.Errorf("adopting by another Manager = %+v, %v, %v", again, created, err)
		}
		if got := shell(t, m, s.Name, `echo "$GREETING"; sleep 0.05; echo no >&2; exit 3`); got != "data:stdoutgood morning\n|data:stderrno\n|exit:|" {
			t.Errorf("a script wrote %q", got)
		}
		if stats, err := m.Stats(t.Context(), s.Name); err != nil || stats.Paused {
			t.Errorf("Stats = %+v, %v", stats, err)
		}
		for range 2 {
			if err := m.Pause(t.Context(), s.Name); err != nil {
				t.Fatal(err)
			}
		}
		if sb, err := m.Get(t.Context(), sb.ID); err != nil || sb.State != Paused || !sb.Alive {
			t.Errorf("a paused one is %+v, %v", sb, err)
		}
		if _, err := m.Files(t.Context(), s.Name); !isKind(err, "paused") {
			t.Errorf("files of a paused one: %v, want kind paused", err)
		}
		if err := m.Resume(t.Context(), s.Name); err != nil {
			t.Fatal(err)
		}
		deadline, err := m.Renew(t.Context(), s.Name, 48*time.Hour)
		if sb, getErr := m.Get(t.Context(), s.Name); err != nil || getErr != nil || sb.State != Ready || !sb.Deadline.Equal(deadline) || time.Until(deadline) > 24*time.Hour {
			t.Errorf("Renew = %v, %v; the sandbox is %+v, %v: want a deadline of at most a day, and the same one", deadline, err, sb, getErr)
		}
		if n, err := m.TeardownAll(t.Context(), Filter{Labels: s.Labels}); n != 1 || err != nil {
			t.Errorf("TeardownAll = %d, %v", n, err)
		}
		b.wantNoRecords(m)
	})
}

// TestSandboxesEndByThemselves has one idle, one at its deadline and one that runs out
// of memory, where there is a limit.
func TestSandboxesEndByThemselves(t *testing.T) {
	onRuntimes(t, func(t *testing.T, b *bed) {
		m := b.manager()
		idle, deadline := b.spec("idle", "ann"), b.spec("deadline", "ann")
		idle.Idle = 300 * time.Millisecond
		deadline.TTL = 500 * time.Millisecond
		for _, s := range []Spec{idle, deadline} {
			if _, _, err := m.Create(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		for name, reason := range map[string]engine.Reason{"idle": "idle", "deadline": engine.ReasonTimeout} {
			until(t, name+" has ended", func() bool {
				sb, err := m.Get(t.Context(), name)
				return err == nil && sb.State == Ended && sb.Result != nil && *sb.Result.Reason == reason
			})
			if l, err := m.Liveness(t.Context(), name); err != nil || l.Alive {
				t.Errorf("liveness of %s = %+v, %v", name, l, err)
			}
		}
		until(t, "nothing is held", func() bool { return m.Gate().Snapshot().Used.Sandboxes == 0 })
		if sb, created, err := m.Create(t.Context(), b.spec("idle", "ann")); err != nil || !created || sb.State != Ready {
			t.Errorf("Create of one that has ended = %+v, %v, %v", sb, created, err)
		}
		if n, err := m.TeardownOwner(t.Context(), "ann"); n != 2 || err != nil {
			t.Errorf("TeardownOwner = %d, %v", n, err)
		}
		b.wantNoRecords(m)
	})
}

// TestCreationFailsCleanly asks for what the monitor alone can refuse.
func TestCreationFailsCleanly(t *testing.T) {
	onRuntimes(t, func(t *testing.T, b *bed) {
		m := b.manager()
		s := b.spec("work", "ann")
		s.Rootfs = filepath.Join(b.dir, "missing")
		_, _, err := m.Create(t.Context(), s)
		wantKind(t, "Create of a root that is not there", err, "container_create_failed")
		b.wantNoRecords(m)
	})
}

// TestAdoptionRaceOnTheEngine has eight processes create one sandbox, and kills some at
// each step of another one's creation and teardown.
func TestAdoptionRaceOnTheEngine(t *testing.T) {
	onRuntimes(t, func(t *testing.T, b *bed) {
		var wg sync.WaitGroup
		outs := make([]*strings.Builder, 8)
		for i := range outs {
			cmd, out := order{Real: &b.real, Do: "create", Name: "work", Owner: "ann"}.process(t)
			outs[i] = out
			wg.Go(func() { cmd.Wait() })
		}
		wg.Wait()
		created, ids := 0, map[string]bool{}
		for _, out := range outs {
			var id string
			var mine bool
			if n, err := fmt.Sscan(out.String(), &id, &mine); n != 2 {
				t.Fatalf("a process says %q (%v)", out, err)
			}
			ids[id] = true
			if mine {
				created++
			}
		}
		if living := b.living(); created != 1 || len(ids) != 1 || len(living) != 1 {
			t.Errorf("%d created %d sandboxes, %d live, want one", created, len(ids), len(living))
		}
		for _, step := range []string{"locked", "recorded", "admitted", "before-start", "started", "before-ready"} {
			cmd, out := order{Real: &b.real, Do: "create", Name: "killed", Owner: "ann", DieAt: step}.process(t)
			if err := cmd.Wait(); !killed(err) {
				t.Fatalf("%s: the process ended with %v: %s", step, err, out)
			}
			m := b.manager()
			sb, _, err := m.Create(t.Context(), b.spec("killed", "ann"))
			if err != nil || sb.State != Ready {
				t.Errorf("%s: Create after the kill = %+v, %v", step, sb, err)
			}
			until(t, "both are accounted for", func() bool { return m.Gate().Snapshot().Used.Sandboxes == 2 })
			if living := b.living(); len(living) != 2 {
				t.Errorf("%s: %d sandboxes live, want two", step, len(living))
			}
			dieAt := []string{"ending", "killed", "run-removed"}[len(step)%3]
			cmd, out = order{Real: &b.real, Do: "teardown", Name: "killed", DieAt: dieAt}.process(t)
			if err := cmd.Wait(); !killed(err) {
				t.Fatalf("%s: the process ended with %v: %s", dieAt, err, out)
			}
			until(t, "what was being torn down is gone", func() bool {
				_, err := m.Get(t.Context(), "killed")
				return isKind(err, "not_found") && m.Gate().Snapshot().Used.Sandboxes == 1
			})
			m.Close()
		}
		m := b.manager()
		if err := m.Teardown(t.Context(), "work"); err != nil {
			t.Error(err)
		}
		b.wantNoRecords(m)
	})
}

// TestOutputSurvivesManagers follows a program by Managers that come and go. Not a byte
// is lost or comes twice.
func TestOutputSurvivesManagers(t *testing.T) {
	onRuntimes(t, func(t *testing.T, b *bed) {
		m := b.manager()
		if _, _, err := m.Create(t.Context(), b.spec("work", "ann")); err != nil {
			t.Fatal(err)
		}
		const lines = 400
		c, err := m.Exec(t.Context(), "work", engine.Exec{ID: "count", Command: []string{"sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo $i; i=$((i+1)); [ $((i%%40)) = 0 ] && sleep 0.1; done", lines)}})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		var got strings.Builder
		cursor := ""
		for over := false; !over; {
			m.Close()
			m = b.manager()
			events, err := m.Events(t.Context(), "work", "count", cursor)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				ev, err := events.Next(t.Context())
				if over = errors.Is(err, io.EOF); over {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				got.Write(ev.Data)
				cursor = ev.Cursor
			}
			events.Close()
		}
		var want strings.Builder
		for i := range lines {
			fmt.Fprintln(&want, i)
		}
		if got.String() != want.String() {
			t.Errorf("read %d bytes that are not the %d written", got.Len(), want.Len())
		}
		if err := m.Teardown(t.Context(), "work"); err != nil {
			t.Error(err)
		}
		b.wantNoRecords(m)
	})
}

// TestFilesOnTheEngine reaches a sandbox's files, and again after the program by which
// it does was killed inside.
func TestFilesOnTheEngine(t *testing.T) {
	onRuntimes(t, func(t *testing.T, b *bed) {
		m := b.manager()
		s := b.spec("work", "ann")
		s.Idle = time.Hour
		if _, _, err := m.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				f, err := m.Files(t.Context(), "work")
				if err != nil {
					t.Error(err)
					return
				}
				defer f.Close()
				path, text := fmt.Sprint("/tmp/", i), strings.Repeat(fmt.Sprint(i), 100_000)
				if _, err := f.Write(t.Context(), path, strings.NewReader(text), guest.WriteOptions{}); err != nil {
					t.Error(err)
				}
				if got, err := f.Read(t.Context(), path, 99_990, 100); err != nil || string(got) != text[:10] {
					t.Errorf("the end of %s reads %q, %v", path, got, err)
				}
			})
		}
		wg.Wait()
		execs, err := m.Execs(t.Context(), "work")
		if err != nil || len(execs) != 1 || execs[0].Result != nil {
			t.Fatalf("execs = %+v, %v, want one that goes on", execs, err)
		}
		f, err := m.Files(t.Context(), "work")
		if err != nil {
			t.Fatal(err)
		}
		c, err := m.Attach(t.Context(), "work", execs[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		until(t, "its user finds out", func() bool { return f.Err() != nil })
		f.Close()
		again, err := m.Files(t.Context(), "work")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := again.Read(t.Context(), "/tmp/3", 0, 4); err != nil || string(got) != "3333" {
			t.Errorf("after the kill the file reads %q, %v", got, err)
		}
		again.Close()
		until(t, "the program is gone once nobody uses it", func() bool {
			execs, err := m.Execs(t.Context(), "work")
			return err == nil && !slices.ContainsFunc(execs, func(x engine.ExecRecord) bool { return x.Result == nil })
		})
		if err := m.Teardown(t.Context(), "work"); err != nil {
			t.Error(err)
		}
		b.wantNoRecords(m)
	})
}

// TestMountsOnTheEngine has a sandbox write to its step, and try to write elsewhere.
func TestMountsOnTheEngine(t *testing.T) {
	onRuntimes(t, func(t *testing.T, b *bed) {
		b.config.Stores = stores(t)
		for dir := b.config.Stores.Trees; dir != os.TempDir(); dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		m := b.manager()
		s := b.spec("work", "ann")
		s.Mounts = Plan{Resource: "proj-1", Step: "r1/s1", Library: true, References: true}
		sb, _, err := m.Create(t.Context(), s)
		if err != nil || len(sb.Mounts) != 4 {
			t.Fatalf("Create = %+v, %v", sb.Mounts, err)
		}
		script := `cat /proj-1/data.csv /mnt/refs/genome.fa /mnt/libs/current/packages.txt; echo; cd /proj-1/steps/r1/s1 && ls -d *; echo result > output/x && echo wrote`
		want := "data:stdouta,bACGTnumpy\ninput\noutput\ntmp\nwrote\n|exit:|"
		if got := strings.ReplaceAll(shell(t, m, "work", script), "|data:stdout", ""); got != want {
			t.Errorf("in its step it says %q, want %q", got, want)
		}
		for _, path := range []string{"/proj-1/x", "/proj-1/steps/x", "/proj-1/data.csv", "/mnt/refs/x", "/mnt/libs/x"} {
			if got := shell(t, m, "work", "echo > "+path+" && echo wrote"); strings.Contains(got, "wrote") {
				t.Errorf("it could write to %s", path)
			}
		}
		path := filepath.Join(b.config.Stores.Trees, "proj-1/steps/r1/s1/output/x")
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 4711 || st.Gid != 4712 {
			t.Errorf("what it wrote belongs to %d:%d, want the tree's owner", st.Uid, st.Gid)
		}
		s.Name, s.Mounts.ReadOnly = "reader", true
		if _, _, err := m.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if got := shell(t, m, "reader", "cat /proj-1/steps/r1/s1/output/x && echo > /proj-1/steps/r1/s1/output/x && echo wrote"); !strings.Contains(got, "result") || strings.Contains(got, "wrote") {
			t.Errorf("a read-only one says %q", got)
		}
		if n, err := m.TeardownOwner(t.Context(), "ann"); n != 2 || err != nil {
			t.Errorf("TeardownOwner = %d, %v", n, err)
		}
		b.wantNoRecords(m)
	})
}

// TestOutOfMemoryIsTold needs the memory controller, which the test machine has.
func TestOutOfMemoryIsTold(t *testing.T) {
	onRuntimes(t, func(t *testing.T, b *bed) {
		controllers, _ := os.ReadFile(filepath.Join(b.groups.Mount, "cgroup.controllers"))
		if !slices.Contains(strings.Fields(string(controllers)), "memory") {
			if testenv.InVM() {
				t.Fatal("the test machine has no memory controller")
			}
			t.Skip("this host's cgroup2 has no memory controller")
		}
		m := b.manager()
		s := b.spec("work", "ann")
		s.MemoryMB = 64
		if _, _, err := m.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		c, err := m.Exec(t.Context(), "work", engine.Exec{Command: []string{"sh", "-c", "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done"}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		until(t, "it has ended", func() bool {
			sb, err := m.Get(t.Context(), "work")
			return err == nil && sb.State == Ended && sb.Result != nil
		})
		if l, err := m.Liveness(t.Context(), "work"); err != nil || l != (Liveness{Alive: false, OOMKilled: true}) {
			t.Errorf("liveness = %+v, %v", l, err)
		}
		until(t, "nothing is held", func() bool { return m.Gate().Snapshot().Used.Sandboxes == 0 })
		if err := m.Teardown(t.Context(), "work"); err != nil {
			t.Error(err)
		}
		b.wantNoRecords(m)
	})
}

// TestOtherVersionIsTold creates a sandbox while the programs are being replaced: what it
// ends in is why, and nothing stays of it.
func TestOtherVersionIsTold(t *testing.T) {
	onRuntimes(t, func(t *testing.T, b *bed) {
		m := b.manager()
		engine.Version += "-next"
		defer func() { engine.Version = strings.TrimSuffix(engine.Version, "-next") }()
		_, _, err := m.Create(t.Context(), b.spec("work", "ann"))
		if err == nil || !strings.Contains(err.Error(), "engine-monitor is") {
			t.Errorf("Create = %v, want both versions", err)
		}
		if e := (*engine.Error)(nil); !errors.As(err, &e) || e.Fix != "install the engine's programs together" {
			t.Errorf("its cure is missing: %+v", e)
		}
		b.wantNoRecords(m)
		if groups, err := b.groups.List("run"); err != nil || len(groups) > 0 {
			t.Errorf("cgroups left: %v (%v)", groups, err)
		}
	})
}

// TestManyLive has two hundred sandboxes live at once, created by many callers, replaces
// the Manager under them, and tears all down.
func TestManyLive(t *testing.T) {
	onRuntimes(t, func(t *testing.T, b *bed) {
		count := 200
		if b.Runtime != "embedded" && b.Runtime != "direct" || testenv.InVM() {
			count = 20 // each of the others has processes of its own for every sandbox
		}
		m := b.manager()
		var wg sync.WaitGroup
		names := make(chan string, count)
		for i := range count {
			names <- fmt.Sprint("s", i)
		}
		close(names)
		for range 4 {
			wg.Go(func() {
				for name := range names {
					s := b.spec(name, "ann")
					s.MemoryMB, s.CPUs = 16, 0.1
					if b.Runtime == "runsc" {
						s.MemoryMB = 48 // of it gVisor takes more than 16 for itself
					}
					if _, _, err := m.Create(t.Context(), s); err != nil {
						t.Errorf("Create(%s) = %v", name, err)
					}
				}
			})
		}
		wg.Wait()
		m.Close()
		m = b.manager()
		if s := m.Gate().Snapshot(); s.Used.Sandboxes != count {
			t.Errorf("the next Manager accounts for %d sandboxes, want %d", s.Used.Sandboxes, count)
		}
		began := time.Now()
		list, err := m.List(t.Context(), Filter{States: []State{Ready}})
		if err != nil || len(list) != count {
			t.Errorf("%d sandboxes are ready (%v), want %d", len(list), err, count)
		}
		t.Logf("listed %d sandboxes in %v", len(list), time.Since(began))
		if got := shell(t, m, "s7", "echo hi"); got != "data:stdouthi\n|exit:|" {
			t.Errorf("one of them says %q", got)
		}
		if n, err := m.TeardownOwner(t.Context(), "ann"); n != count || err != nil {
			t.Errorf("TeardownOwner = %d, %v", n, err)
		}
		b.wantNoRecords(m)
	})
}
