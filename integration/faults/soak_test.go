package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/integration/testenv"
)

// TestSoak starts runs, half of them from this process, which lives long, half by
// engine run, and kills 30 % of them at a random moment: the sandbox, the monitor or
// engine run. Then the host, and this process, must be as before.
func TestSoak(t *testing.T) {
	runs := 300
	switch {
	case scope(t) == "all":
		runs = 10_000
	case testenv.InVM():
		runs = 50
	}
	if n, err := strconv.Atoi(os.Getenv("ENGINE_SOAK_RUNS")); err == nil {
		runs = n
	}
	b := newBed(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := &soak{bed: b, rnd: rand.New(rand.NewPCG(seed, 0)), reasons: map[string]int{}}
	s.round(20) // what is made once is made
	before := self(t)
	start := time.Now()
	for done := 0; done < runs && !t.Failed(); done += 50 {
		s.round(min(50, runs-done))
	}
	took := time.Since(start)
	after := self(t)
	t.Logf("%d runs in %v, %d killed, ended as %v", s.runs, took.Round(time.Second), s.killed, s.reasons)
	t.Logf("this process before: %+v, after: %+v", before, after)
	if after.fds != before.fds || after.goroutines > before.goroutines || after.children > 0 {
		t.Errorf("this process has kept descriptors, goroutines or children")
	}
	if after.threads > before.threads+8 || after.memory > before.memory+8<<10 {
		t.Errorf("this process has grown")
	}
}

// process is what a process that lives long must not pile up.
type process struct {
	fds, goroutines, threads, children int
	memory                             int64 // resident and its own, in KiB
}

// self measures this process once what is on its way out has gone.
func self(t testing.TB) process {
	t.Helper()
	var p process
	for range 50 {
		debug.FreeOSMemory()
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		tasks, err := filepath.Glob("/proc/self/task/*/children")
		if err != nil {
			t.Fatal(err)
		}
		p = process{fds: len(fds), goroutines: runtime.NumGoroutine(), threads: len(tasks)}
		for _, file := range tasks {
			children, _ := os.ReadFile(file) // a thread may have ended
			p.children += len(strings.Fields(string(children)))
		}
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "\nRssAnon:")
		if _, err := fmt.Sscan(rest, &p.memory); err != nil {
			t.Fatal(err)
		}
		if p.children == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return p
}

type soak struct {
	*bed
	rnd *rand.Rand

	mu      sync.Mutex
	runs    int
	killed  int
	reasons map[string]int
}

// plan is what is to happen to one run.
type plan struct {
	id, runtime string
	here        bool   // started by this process
	victim      string // "": nobody
	after       time.Duration
}

// round starts n runs, a few at a time, collects once, checks that nothing is left,
// and removes the records.
func (s *soak) round(n int) {
	s.t.Helper()
	plans := make(chan plan, n)
	for range n {
		p := plan{id: journal.NewID(), runtime: "embedded", here: s.rnd.IntN(2) == 0}
		if !p.here && s.rnd.IntN(2) == 0 {
			p.runtime = "runc" // found beside engine, and not beside this program
		}
		if s.rnd.IntN(100) < 30 {
			victims := []string{"monitor", "sandbox", "caller"}
			if p.here {
				victims = victims[:2]
			}
			p.victim = victims[s.rnd.IntN(len(victims))]
			bound := 120 * time.Millisecond
			if testenv.InVM() {
				bound *= 10
			}
			p.after = time.Duration(s.rnd.Int64N(int64(bound)))
		}
		plans <- p
	}
	close(plans)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for p := range plans {
				s.one(p)
			}
		})
	}
	wg.Wait()
	s.gc()
	s.clean()
	records, err := s.host().List()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range records {
		if r.State != engine.Removed || r.Result == nil || r.Result.Reason == nil {
			s.t.Errorf("run %s is %s, with result %+v", r.ID, r.State, r.Result)
			continue
		}
		s.reasons[string(*r.Result.Reason)]++
		if err := s.host().Remove(r.ID); err != nil {
			s.t.Error(err)
		}
	}
}

// one starts one run, kills whom the plan says, and waits until nobody owns the run.
func (s *soak) one(p plan) {
	ctx, cancel := context.WithTimeout(context.Background(), patience())
	defer cancel()
	hit := make(chan bool, 1)
	var caller func()
	status, stdout := -1, ""
	if p.here {
		out, err := os.CreateTemp(s.dir, "out-")
		if err != nil {
			s.t.Error(err)
			return
		}
		defer os.Remove(out.Name())
		defer out.Close()
		go s.kill(p, nil, hit)
		run, err := s.host().Start(ctx, s.request(p), nil, engine.Stdio{Out: out})
		if err == nil {
			var res engine.Result
			if res, err = run.Wait(); err == nil {
				status = engine.ExitStatus(res)
			}
		}
		var e *engine.Error
		if err != nil && (p.victim != "monitor" || !errors.As(err, &e)) {
			s.t.Errorf("run %s: %v", p.id, err)
		}
		data, _ := os.ReadFile(out.Name()) // what is not there is missed below
		stdout = string(data)
	} else {
		cmd := s.command(ctx, nil, s.start(p.runtime, p.id)...)
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			s.t.Error(err)
			return
		}
		caller = func() { cmd.Process.Kill() } // it may have ended
		go s.kill(p, caller, hit)
		cmd.Wait()
		status, stdout = cmd.ProcessState.ExitCode(), out.String()
	}
	killed := <-hit
	if ctx.Err() != nil {
		s.t.Errorf("run %s hangs", p.id)
	}
	if status == 7 && len(tokens(stdout)) != 1 || status == 0 || !killed && status != 7 {
		s.t.Errorf("run %s (%+v) ended with status %d and output %q", p.id, p, status, stdout)
	}
	s.quiet(p.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs++
	if killed {
		s.killed++
	}
}

func (s *soak) request(p plan) engine.Request {
	limits := engine.DefaultLimits()
	limits.Memory, limits.Timeout = 256<<20, time.Minute
	return engine.Request{
		ID: p.id, Runtime: p.runtime, Rootfs: s.root, Command: []string{"sh", "-c", job},
		UID: engine.DefaultUID, GID: engine.DefaultUID, Limits: limits, BestEffortLimits: true,
	}
}

// kill kills the plan's victim once its moment has come, and tells whether there was one.
func (s *soak) kill(p plan, caller func(), hit chan<- bool) {
	time.Sleep(p.after)
	var pids []int
	switch p.victim {
	case "caller":
		caller()
		hit <- true
		return
	case "monitor":
		pids = s.members("mon", []byte("engine-monitor\x00"+p.id+"\x00"))
	case "sandbox":
		pids = append(s.members("run/"+p.id, nil), s.members("run/"+p.id+"/ctr", nil)...)
	}
	for _, pid := range pids {
		unix.Kill(pid, unix.SIGKILL)
	}
	hit <- len(pids) > 0
}

// members are the processes of a cgroup of the bed's with these arguments, nil for any.
func (s *soak) members(group string, args []byte) []int {
	procs, _ := os.ReadFile(filepath.Join(s.groups.Group(group).Dir, "cgroup.procs")) // none if it does not exist
	var pids []int
	for field := range strings.FieldsSeq(string(procs)) {
		cmdline, _ := os.ReadFile("/proc/" + field + "/cmdline")
		if pid, err := strconv.Atoi(field); err == nil && (args == nil || bytes.Equal(cmdline, args)) {
			pids = append(pids, pid)
		}
	}
	return pids
}
