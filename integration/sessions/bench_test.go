package sessions

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/integration/testenv"
)

// BenchmarkExec measures one exec of sh -c 'echo hi' in a live session, from the call to
// its result, which is on record then: under each runtime, with the records on this
// host's disk and in memory. The shell is this host's busybox.
func BenchmarkExec(b *testing.B) {
	requireScope(b)
	for _, runtime := range testenv.Runtimes() {
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil && runtime == "crun" {
			continue
		}
		for _, place := range []struct{ name, dir string }{{"disk", "/var/tmp"}, {"memory", "/dev/shm"}} {
			b.Run(fmt.Sprintf("runtime=%s/records=%s", runtime, place.name), func(b *testing.B) {
				b.Setenv("TMPDIR", place.dir)
				benchmarkExec(b, newBed(b, runtime))
			})
		}
	}
}

func benchmarkExec(b *testing.B, bed *bed) {
	id := bed.session()
	ctx := within(b)
	took := make([]time.Duration, 0, b.N)
	e := engine.Exec{Command: []string{"sh", "-c", "echo hi"}}
	for b.Loop() {
		start := time.Now()
		c, err := bed.Exec(ctx, id, e)
		if err != nil {
			b.Fatal(err)
		}
		r, err := c.Wait(ctx)
		took = append(took, time.Since(start))
		c.Close()
		if err != nil || r.Reason != engine.ReasonExited {
			b.Fatalf("result = %s, %v", show(r), err)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms/median")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "ms/p99")
}
