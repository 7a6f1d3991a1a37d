package faults

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/integration/testenv"
)

// step is a point between two steps of a run, and which process passes it.
type step struct{ point, who string }

// trace runs engine in a way that comes to its end and returns the steps it took, up to
// and including last. Nothing is listed by hand: a new step is a new cell.
func trace(b *bed, last string, run func(env []string)) []step {
	b.t.Helper()
	file := b.path("trace")
	os.Remove(file)
	run([]string{"ENGINE_FAILPOINT_TRACE=" + file})
	var steps []step
	testenv.WaitFor(b.t, patience(), "the step "+last, func() bool {
		data, err := os.ReadFile(file)
		if err != nil {
			b.t.Fatal(err)
		}
		steps = nil
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) == 2 && !slices.Contains(steps, step{f[0], f[1]}) {
				steps = append(steps, step{f[0], f[1]})
			}
		}
		return slices.ContainsFunc(steps, func(s step) bool { return s.point == last })
	})
	return steps
}

// cell is one kill: of target, at a step.
type cell struct {
	step
	target   string
	recorded bool // the result is on record by then
	begun    bool // the request is on record by then
}

// cells are all the kills that make a difference.
func cells(steps []step) []cell {
	var all []cell
	at := slices.IndexFunc(steps, func(s step) bool { return s.point == "after-record" })
	intent := slices.IndexFunc(steps, func(s step) bool { return s.point == "after-intent" })
	for i, s := range steps {
		recorded := i >= at && !strings.Contains(s.point, "-note-")
		for _, target := range []string{"caller", "monitor", "sandbox"} {
			if s.who == "monitor" || target == "caller" {
				all = append(all, cell{s, target, recorded, i >= intent || s.who == "monitor"})
			}
		}
	}
	return all
}

// take returns a sample of at most n of all, spread evenly, or all.
func take[T any](t testing.TB, all []T, n int) []T {
	if scope(t) == "all" || len(all) <= n {
		return all
	}
	var some []T
	for i := range n {
		some = append(some, all[i*len(all)/n+len(all)/n/2])
	}
	return some
}

// TestKillMatrix kills each process at each step, then starts the same run again, as a
// client would that does not know what became of it.
func TestKillMatrix(t *testing.T) {
	scope(t)
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			b := newFailpointBed(t)
			steps := trace(b, "after-cleaned", func(env []string) { b.engine(env, b.start(runtime, "")...) })
			b.clean()
			n := 45
			if testenv.InVM() {
				n = 9
			}
			some := take(t, cells(steps), n)
			green := 0
			for _, c := range some {
				t.Run(c.point+"@"+c.target, func(t *testing.T) {
					b.of(t).kill(runtime, c)
					if !t.Failed() {
						green++
					}
				})
			}
			t.Logf("%s: %d of %d cells green, at %d steps", runtime, green, len(some), len(steps))
		})
	}
}

// of is the bed in a subtest.
func (b *bed) of(t testing.TB) *bed {
	sub := *b
	sub.t = t
	return &sub
}

// kill is one cell of the matrix.
func (b *bed) kill(runtime string, c cell) {
	b.t.Helper()
	id := journal.NewID()
	first := b.engine([]string{"ENGINE_FAILPOINT=" + c.point + "@" + c.target}, b.start(runtime, id)...)
	b.quiet(id)
	b.gc()
	b.clean()
	r := b.record(id)
	b.judge(c, first, r)

	second := b.engine(nil, b.start(runtime, id)...)
	b.quiet(id)
	b.clean()
	if got := tokens(first.stdout + second.stdout); len(got) > 1 {
		b.t.Errorf("the program was started %d times:\n%s\n%s", len(got), first, second)
	}
	want := 7 // never begun: started now
	if r != nil {
		want = engine.ExitStatus(*r.Result)
	}
	if second.status != want {
		b.t.Errorf("status = %d of the same run again, want %d\n%s\n%s", second.status, want, first, second)
	}
	if b.t.Failed() {
		b.t.Logf("first:\n%s", first)
	}
}

// tokens are the different starts that show in an output.
func tokens(output string) []string {
	found := token.FindAllString(output, -1)
	slices.Sort(found)
	return slices.Compact(found)
}

// judge checks what is on record of a run after a kill.
func (b *bed) judge(c cell, first outcome, r *engine.Record) {
	b.t.Helper()
	if r == nil {
		if c.begun {
			b.t.Errorf("no record is left\n%s", first)
		}
		return
	}
	if r.State != engine.Removed || r.Alive || r.Result == nil || r.Result.Reason == nil || len(r.Problems) > 0 {
		b.t.Errorf("record = %+v, want one that is removed, dead, whole and with a reason\n%s", r, first)
		return
	}
	var want []engine.Reason
	switch {
	case c.target == "monitor" && !c.recorded, c.target == "caller" && c.point == "after-intent":
		want = []engine.Reason{engine.ReasonLost}
	case c.target == "sandbox" && !c.recorded:
		// Before there is a sandbox, and after its end, there is nothing to kill.
		want = []engine.Reason{engine.ReasonExited, engine.ReasonSignal, engine.ReasonInternal}
	default:
		want = []engine.Reason{engine.ReasonExited}
	}
	got := *r.Result.Reason
	if !slices.Contains(want, got) {
		b.t.Errorf("reason = %s (%v), want one of %v\n%s", got, r.Result.Error, want, first)
	}
	if explained := r.Result.Error != nil; explained != (got == engine.ReasonLost || got == engine.ReasonInternal) {
		b.t.Errorf("reason = %s with error %v", got, r.Result.Error)
	}
	if c.target != "caller" && first.status != engine.ExitStatus(*r.Result) {
		b.t.Errorf("status = %d, want that of %s: %d\n%s", first.status, got, engine.ExitStatus(*r.Result), first)
	}
	if got == engine.ReasonExited && len(tokens(r.Result.Stdout)) != 1 {
		b.t.Errorf("exited, and the output on record is %q", r.Result.Stdout)
	}
}

// TestCollectorKilled kills engine gc at each of its steps, and wants the next one to
// finish what it had begun.
func TestCollectorKilled(t *testing.T) {
	scope(t)
	b := newFailpointBed(t)
	lose := func(t testing.TB) string {
		id := journal.NewID()
		// Of one whose caller is alive the caller itself would collect.
		detached := append([]string{"run", "--detach"}, b.start("embedded", id)[1:]...)
		b.of(t).engine([]string{"ENGINE_FAILPOINT=after-program@monitor"}, detached...)
		b.of(t).quiet(id)
		return id
	}
	lose(t)
	steps := trace(b, "before-cleaned", func(env []string) { b.engine(env, "gc") })
	for _, s := range steps {
		t.Run(s.point, func(t *testing.T) {
			b := b.of(t)
			id := lose(t)
			if o := b.engine([]string{"ENGINE_FAILPOINT=" + s.point + "@caller"}, "gc"); o.status != 137 {
				t.Fatalf("engine gc was not killed:\n%s", o)
			}
			b.gc()
			b.clean()
			if r := b.record(id); r == nil || r.Result == nil || *r.Result.Reason != engine.ReasonLost {
				t.Errorf("record = %+v, want one of a lost run", r)
			}
		})
	}
}

// TestOneStart starts one run many times at once.
func TestOneStart(t *testing.T) {
	scope(t)
	b := newBed(t)
	for range 5 {
		id := journal.NewID()
		outcomes := make([]outcome, 8)
		var wg sync.WaitGroup
		for i := range outcomes {
			wg.Go(func() { outcomes[i] = b.engine(nil, b.start("embedded", id)...) })
		}
		wg.Wait()
		all := ""
		for _, o := range outcomes {
			all += o.stdout
			if o.status != 7 || len(tokens(o.stdout)) != 1 {
				t.Errorf("want status 7 and one token, got\n%s", o)
			}
		}
		if got := tokens(all); len(got) != 1 {
			t.Errorf("%d programs were started: %s", len(got), fmt.Sprint(got))
		}
		other := b.engine(nil, b.startJob("embedded", id, "true")...)
		if other.status != 125 || !strings.Contains(other.stderr, "another request") {
			t.Errorf("another request with the id of a run was not refused:\n%s", other)
		}
		b.quiet(id)
		b.clean()
	}
}
