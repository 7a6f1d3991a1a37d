package service

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/integration/testenv"
)

// room is for more sandboxes than this host could keep busy.
const room = "  sandboxes:\n    total: {sandboxes: 1000, cpus: 1000, memoryMb: 1000000, pids: 10000000}\n"

// BenchmarkAPIOverhead asks 50 times a second what a client asks of a sandbox that is there,
// for as many seconds as b.N, beside no others and beside 199, and tells the time to the
// answer and what the service takes of memory. What a run or a program takes is not in it.
// After each it asks a bare HTTP server in a process of its own, whose times tell what the
// host is worth at the moment.
func BenchmarkAPIOverhead(b *testing.B) {
	for _, live := range []int{1, 200} {
		b.Run(fmt.Sprintf("sandboxes=%d", live), func(b *testing.B) {
			bed := newBed(b, room)
			c := bed.start()
			bed.fill(c, live)
			ctx := b.Context()
			e, err := c.StartExec(ctx, "box-0", wire.ExecRequest{Command: []string{"sh", "-c", "echo hi"}})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := c.WaitExec(ctx, "box-0", e.ID); err != nil {
				b.Fatal(err)
			}
			ask := []func() error{
				func() error { _, err := c.Version(ctx); return err },
				func() error { _, err := c.Sandbox(ctx, "box-0"); return err },
				func() error { _, err := c.Exec(ctx, "box-0", e.ID); return err },
				func() error { _, err := c.ExecEvents(ctx, "box-0", e.ID, ""); return err },
			}
			bare := bareServer(b, bed.path("bare.sock"))
			var times, control []time.Duration
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
				began = time.Now()
				if err := bare(); err != nil {
					b.Fatal(err)
				}
				control = append(control, time.Since(began))
			}
			b.StopTimer()
			report(b, "", times)
			report(b, "bare-", control)
			b.ReportMetric(residentMB(b, bed.cmd.Process.Pid), "service-MB")
			b.ReportMetric(0, "ns/op")
			bed.empty(c)
		})
	}
}

// bareVariable makes the test's own program an HTTP server at this socket that says ok.
const bareVariable = "ENGINE_TEST_BARE"

func beBareServer(socket string) {
	l, err := net.Listen("unix", socket)
	if err == nil {
		err = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }))
	}
	fmt.Fprintln(os.Stderr, err)
}

// bareServer starts one, and returns what asks it.
func bareServer(b *testing.B, socket string) func() error {
	b.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{bareVariable + "=" + socket}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	b.Cleanup(func() {
		c.CloseIdleConnections()
		cmd.Process.Kill()
		cmd.Wait() // killed
	})
	ask := func() error {
		res, err := c.Get("http://bare/")
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		return err
	}
	testenv.WaitFor(b, testenv.Patience, "the bare server", func() bool { return ask() == nil })
	return ask
}

// BenchmarkAPIExec runs sh -c 'echo hi' in a sandbox to its end, 50 times a second, over the
// API and by the engine alone in turn: the difference is the API's.
func BenchmarkAPIExec(b *testing.B) {
	bed := newBed(b, room)
	c := bed.start()
	bed.fill(c, 1)
	ctx := b.Context()
	one, err := c.Sandbox(ctx, "box-0")
	if err != nil {
		b.Fatal(err)
	}
	host := engine.Host{StateDir: bed.path("state"), RunDir: bed.path("run"), CgroupRoot: bed.groups.Root}
	command := []string{"sh", "-c", "echo hi"}
	overAPI := func() error {
		e, err := c.StartExec(ctx, "box-0", wire.ExecRequest{Command: command})
		if err == nil && e.Result == nil {
			_, err = c.WaitExec(ctx, "box-0", e.ID)
		}
		return err
	}
	alone := func() error {
		e, err := host.Exec(ctx, one.ID, engine.Exec{Command: command})
		if err != nil {
			return err
		}
		defer e.Close()
		_, err = e.Wait(ctx)
		return err
	}
	var api, own []time.Duration
	tick := time.NewTicker(time.Second / 50)
	defer tick.Stop()
	b.ResetTimer()
	for i := range b.N * 50 {
		<-tick.C
		began := time.Now()
		run, times := overAPI, &api
		if i%2 == 1 {
			run, times = alone, &own
		}
		if err := run(); err != nil {
			b.Fatal(err)
		}
		*times = append(*times, time.Since(began))
	}
	b.StopTimer()
	report(b, "api-", api)
	report(b, "engine-", own)
	b.ReportMetric(0, "ns/op")
	bed.empty(c)
}

// fill creates so many sandboxes, box-0 and on, each of which has run a program.
func (b *bed) fill(c *client.Client, n int) {
	b.t.Helper()
	names := make(chan string, n)
	for i := range n {
		names <- fmt.Sprintf("box-%d", i)
	}
	close(names)
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for name := range names {
				ask := box(name)
				ask.MemoryMB, ask.TTLSeconds = 64, 3600
				_, err := c.CreateSandbox(ctx, ask)
				if err == nil {
					_, err = c.StartExec(ctx, name, wire.ExecRequest{Command: []string{"true"}})
				}
				if err != nil {
					b.t.Errorf("cannot create %s: %v", name, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if b.t.Failed() {
		b.t.FailNow()
	}
}

// empty tears down what fill created.
func (b *bed) empty(c *client.Client) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for list, err := c.Sandboxes(ctx, client.SandboxFilter{}); ; list, err = c.Sandboxes(ctx, client.SandboxFilter{}) {
		if err != nil {
			b.t.Fatal(err)
		}
		if len(list.Sandboxes) == 0 {
			break
		}
		for _, s := range list.Sandboxes {
			if err := c.RemoveSandbox(ctx, s.ID); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	testenv.WaitFor(b.t, testenv.Patience, "the monitors to end", func() bool {
		left, err := filepath.Glob(filepath.Join(b.groups.Root, "run", "*", "cgroup.procs"))
		return err == nil && len(left) == 0
	})
}

// report tells the median and the 99th percentile of times.
func report(b *testing.B, what string, times []time.Duration) {
	slices.Sort(times)
	at := func(part float64) float64 {
		return float64(times[int(part*float64(len(times)-1))].Microseconds()) / 1000
	}
	b.ReportMetric(at(.5), what+"p50-ms")
	b.ReportMetric(at(.99), what+"p99-ms")
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
