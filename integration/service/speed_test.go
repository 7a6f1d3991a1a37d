package service

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/client/wire"
)

// BenchmarkAPIOverhead asks 50 times a second what a client asks of a sandbox that is there,
// for as many seconds as b.N, and tells the time to the answer and what the service takes
// of memory. What a run or a program takes is not in it.
func BenchmarkAPIOverhead(b *testing.B) {
	bed := newBed(b, "")
	c, ctx := bed.start(), b.Context()
	if _, err := c.CreateSandbox(ctx, box("one")); err != nil {
		b.Fatal(err)
	}
	e, err := c.StartExec(ctx, "one", wire.ExecRequest{Command: []string{"sh", "-c", "echo hi"}})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := c.WaitExec(ctx, "one", e.ID); err != nil {
		b.Fatal(err)
	}
	ask := []func() error{
		func() error { _, err := c.Version(ctx); return err },
		func() error { _, err := c.Sandbox(ctx, "one"); return err },
		func() error { _, err := c.Exec(ctx, "one", e.ID); return err },
		func() error { _, err := c.ExecEvents(ctx, "one", e.ID, ""); return err },
	}
	var times []time.Duration
	tick := time.NewTicker(time.Second / 50)
	defer tick.Stop()
	b.ResetTimer()
	for i := range b.N * 50 {
		<-tick.C
		began := time.Now()
		if err := ask[i%len(ask)](); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(began))
	}
	b.StopTimer()
	slices.Sort(times)
	at := func(part float64) float64 {
		return float64(times[int(part*float64(len(times)-1))].Microseconds()) / 1000
	}
	b.ReportMetric(at(.5), "p50-ms")
	b.ReportMetric(at(.99), "p99-ms")
	b.ReportMetric(residentMB(b, bed.cmd.Process.Pid), "service-MB")
	b.ReportMetric(0, "ns/op")
}

// residentMB is the memory of a process, in units of 10^6 bytes.
func residentMB(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib * 1024 / 1e6
}
