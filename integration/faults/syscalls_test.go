package faults

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/integration/testenv"
)

// faults are what happens to a system call, as nth knows them.
var faults = []string{"ENOSPC", "EIO", "EMFILE", "ENOMEM", "EPERM", "EINTR", "KILL"}

// wrap puts a script in the place of a program of the bed, which lets the n-th system
// call of the program fail. Of a program with several uses only the one that has the
// word among its arguments is harmed.
func (b *bed) wrap(name, real, word string, n int, fault string) {
	b.t.Helper()
	quoted := ""
	if word != "" {
		quoted = "' " + word + " '"
	}
	script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in\n*%s*) exec %s -n %d -fault %s -log %s %s %s \"$@\" ;;\nesac\nexec %s \"$@\"\n",
		quoted, testenv.Binary(b.t, "nth"), n, fault, b.path("nth"), real, name, real)
	tmp := b.path("script")
	if err := os.WriteFile(tmp, []byte(script), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Rename(tmp, b.path("bin", name)); err != nil {
		b.t.Fatal(err)
	}
	os.Remove(b.path("nth"))
}

// hit returns the number of the call that was hit, -1 if the program ended before, and
// how many calls it made. It waits until nth knows.
func (b *bed) hit() (number, count int) {
	b.t.Helper()
	testenv.WaitFor(b.t, patience(), "the end of the program under nth", func() bool {
		data, err := os.ReadFile(b.path("nth"))
		if err != nil || len(data) == 0 {
			return false
		}
		if _, err := fmt.Sscan(string(data), &number, &count); err != nil {
			b.t.Fatalf("nth: %s", data)
		}
		return true
	})
	return number, count
}

// stride is the distance between the calls that are hit, given how many there are.
func stride(t testing.TB, calls, sample int) int {
	if scope(t) == "all" {
		return 1
	}
	return max(1, calls/sample)
}

// TestEverySyscall lets the n-th system call of the monitor fail, for n from 1 until the
// monitor comes to its end unharmed, and so with each error and with SIGKILL.
func TestEverySyscall(t *testing.T) {
	scope(t)
	for _, runtime := range []string{"embedded", "runc"} {
		for _, fault := range faults {
			if scope(t) == "sample" && testenv.InVM() && (runtime != "embedded" || fault != "ENOSPC" && fault != "KILL") {
				continue // all of them take their time there
			}
			t.Run(runtime+"/"+fault, func(t *testing.T) {
				t.Parallel()
				b := newBed(t)
				b.everySyscall(t, runtime, fault)
			})
		}
	}
}

func (b *bed) everySyscall(t *testing.T, runtime, fault string) {
	t.Helper()
	real := testenv.Binary(b.t, "engine-monitor")
	b.wrap("engine-monitor", real, "", 0, fault)
	b.engine(nil, b.start(runtime, "")...)
	_, calls := b.hit()
	sample := 12
	if testenv.InVM() {
		sample = 3
	}
	step := stride(t, calls, sample)
	green, cells := 0, 0
	for n := 1 + step/2; ; n += step {
		b.wrap("engine-monitor", real, "", n, fault)
		ok, call := true, 0
		t.Run(fmt.Sprintf("call-%d", n), func(t *testing.T) {
			ok, call = b.of(t).failAt(runtime), 0
			call, _ = b.of(t).hit()
			if t.Failed() {
				t.Logf("it was system call number %d", call)
			}
		})
		if call < 0 {
			break // the monitor had ended before
		}
		if cells++; ok {
			green++
		}
	}
	b.t.Logf("%s: %d of %d cells green, %d system calls in a run", fault, green, cells, calls)
}

// typed is how engine prints an error of its own: "cannot …", or a verdict on a run. The
// line may have been begun by the Go runtime of a monitor that ended in mid-word.
var typed = regexp.MustCompile(`engine: (cannot |internal error: |run [=a-z0-9]+ |run=|the program of run )`)

// failAt is one cell: a run whose monitor meets the fault. It may succeed or end in an
// error, and nothing may be left.
func (b *bed) failAt(runtime string) bool {
	b.t.Helper()
	id := journal.NewID()
	o := b.engine(nil, b.start(runtime, id)...)
	b.quiet(id)
	b.gc()
	b.clean()
	r := b.record(id)
	switch {
	case r == nil:
		if o.status != 125 || !typed.MatchString(o.stderr) {
			b.t.Errorf("neither a record nor an error:\n%s", o)
		}
	case r.Result == nil || r.State != engine.Removed:
		b.t.Errorf("record = %+v, want one that has a result and is removed\n%s", r, o)
	case o.status == 7:
		if r.Result.Reason == nil || *r.Result.Reason != engine.ReasonExited || len(tokens(r.Result.Stdout)) > 1 {
			b.t.Errorf("success, and the record says %s\n%s", reason(r), o)
		}
	case o.status == 0 || !typed.MatchString(o.stderr):
		b.t.Errorf("neither success nor an error (record: %s):\n%s", reason(r), o)
	}
	if r != nil && r.Result != nil && r.Result.Error != nil && r.Result.Error.Kind == "internal" {
		b.t.Errorf("the error has no kind of its own: %s", reason(r))
	}
	return !b.t.Failed()
}

func reason(r *engine.Record) string {
	if r.Result == nil || r.Result.Reason == nil {
		return "none"
	}
	s := string(*r.Result.Reason)
	if r.Result.Error != nil {
		s += ": " + r.Result.Error.Message
	}
	return s
}

// TestRuntimeKilled kills the runtime's own process, while it makes the container, at
// its n-th system call.
func TestRuntimeKilled(t *testing.T) {
	scope(t)
	for runtime, word := range map[string]string{"runc": "run", "runsc": "run"} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			real := testenv.Binary(t, runtime)
			b.wrap(runtime, real, word, 0, "KILL")
			b.engine(nil, b.start(runtime, "")...)
			_, calls := b.hit()
			sample := 16
			if testenv.InVM() {
				sample = 2
			}
			step := stride(t, calls, sample)
			if runtime == "runsc" {
				step = max(step, 5) // a Sentry takes its time
			}
			green, cells := 0, 0
			for n := 1 + step/2; n <= calls; n += step {
				b.wrap(runtime, real, word, n, "KILL")
				cells++
				t.Run(fmt.Sprintf("call-%d", n), func(t *testing.T) {
					if b.of(t).failAt(runtime) {
						green++
					}
				})
			}
			t.Logf("%s: %d of %d cells green, %d system calls", runtime, green, cells, calls)
		})
	}
}
