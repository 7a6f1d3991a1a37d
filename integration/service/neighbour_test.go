package service

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/integration/testenv"
)

// TestNeighbour has one tenant do its worst, within a quota: a fork bomb, a memory hog, a
// flood of output, a hundred clients that want more than their part, and a flood of
// calls. Another's sandboxes are created, and their programs run, at less than twice the
// time that it takes without all that. The other's quota is an eighth of the machine's
// two processors, and its requests are as many as those can answer under emulation.
func TestNeighbour(t *testing.T) {
	if socket := os.Getenv(neighbourSocket); socket != "" {
		beBad(t, client.Unix(socket))
		return
	}
	if !testenv.InVM() {
		t.Skip("the test machine only, where limits are real")
	}
	testenv.RequireCgroup(t, "cpu", "memory", "pids")
	b := newBed(t, `  access: [{user: '4001', allow: run, tenant: bad}]
  requestsPerSecond: 10
  sandboxes:
    total: {cpus: 4, memoryMb: 1024, sandboxes: 8}
    tenants: {bad: {cpus: 0.25, sandboxes: 4}}
    waitSeconds: 120
    startSeconds: 120
`)
	c := b.start()
	live(t, c, "good", "good", 1)
	signal := b.misbehave(t)
	var quiet, loud pace
	quiet.take(t, c) // the first of each takes longer
	quiet = pace{}
	// Turns are short, so that what else the host does is the same for both.
	for n := 1; ; n++ {
		b.turn(t, signal, syscall.SIGCONT, c.ResumeSandbox)
		loud.take(t, c)
		b.turn(t, signal, syscall.SIGSTOP, c.PauseSandbox)
		quiet.take(t, c)
		if n >= rounds && (n == maxRounds || loud.within(2, quiet)) {
			break
		}
	}
	t.Logf("%d creates: %v alone, and %v beside the other tenant; %d execs: %v, and %v", len(loud.creates),
		median(quiet.creates), median(loud.creates), len(loud.execs), median(quiet.execs), median(loud.execs))
	if !loud.within(2, quiet) {
		t.Error("the other tenant has doubled one of them")
	}
}

const (
	neighbourSocket = "ENGINE_NEIGHBOUR_SOCKET"

	// Medians of few are at the mercy of what else the host does: where they are too far
	// apart, more are taken.
	rounds    = 7
	maxRounds = 28
)

// pace is how long things have taken.
type pace struct{ creates, execs []time.Duration }

// take creates a sandbox, and runs programs in another.
func (p *pace) take(t *testing.T, c *client.Client) {
	t.Helper()
	began := time.Now()
	live(t, c, "good", "another", 1)
	p.creates = append(p.creates, time.Since(began))
	if err := c.RemoveSandbox(patient(t), "another"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		began = time.Now()
		if _, res := execute(t, c, "good", "echo hi"); res.Reason != "exited" {
			t.Fatalf("came to %+v", res)
		}
		p.execs = append(p.execs, time.Since(began))
	}
}

// within says whether the medians are at most so many times those of another.
func (p *pace) within(times int, of pace) bool {
	return median(p.creates) <= time.Duration(times)*median(of.creates) && median(p.execs) <= time.Duration(times)*median(of.execs)
}

func median(d []time.Duration) time.Duration { return slices.Sorted(slices.Values(d))[len(d)/2] }

// live creates a sandbox of the tenant.
func live(t *testing.T, c *client.Client, tenant, name string, cpus float64) {
	t.Helper()
	if err := request(patient(t), c, tenant, name, cpus); err != nil {
		t.Fatal(err)
	}
}

func request(ctx context.Context, c *client.Client, tenant, name string, cpus float64) error {
	ask := box(name)
	ask.Owner, ask.CPUs, ask.MemoryMB, ask.Pids, ask.TTLSeconds = tenant, cpus, 64, 32, 3600
	ask.Runtime = "direct" // embedded moves processes, and kernels before 6.18 have that wait for a fork bomb
	_, err := c.CreateSandbox(ctx, ask)
	return err
}

// programs are the other tenant's, by the names of their sandboxes.
var programs = map[string]string{
	"bomb":  `f() { f | f & f; }; while :; do f; done`,
	"hog":   `while :; do dd if=/dev/zero of=/tmp/full bs=64k; dd if=/dev/zero of=/workload/full bs=64k; done`,
	"flood": `yes 'a flood of output'`,
}

// turn lets the other tenant's clients and programs go on, or stops them. A bomb's many
// processes share little of a CPU to get to where they can be stopped.
func (b *bed) turn(t *testing.T, signal func(os.Signal) error, clients os.Signal, sandbox func(context.Context, string) (wire.Sandbox, error)) {
	t.Helper()
	if err := signal(clients); err != nil {
		t.Fatal(err)
	}
	for name := range programs {
		b.until(name+" is stopped, or goes on", func() bool {
			_, err := sandbox(patient(t), "bad:"+name)
			return err == nil
		})
	}
}

// misbehave has the other tenant begin. Its clients are a process of another user's, which
// takes what nobody else wants of the CPUs: they need not be on this host.
func (b *bed) misbehave(t *testing.T) (signal func(os.Signal) error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestNeighbour$")
	cmd.Env = append(os.Environ(), neighbourSocket+"="+b.socket())
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr // if it fails, the log says why
	cmd.ExtraFiles = []*os.File{w}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the other tenant did not begin: %v", err)
	}
	return cmd.Process.Signal
}

// beBad is the other tenant, until it is killed.
func beBad(t *testing.T, c *client.Client) {
	if err := syscall.Setresuid(4001, 4001, 4001); err != nil {
		t.Fatal(err)
	}
	for name, text := range programs {
		live(t, c, "bad", name, 0.05)
		if _, err := c.StartExec(patient(t), name, wire.ExecRequest{Command: []string{"sh", "-c", text}}); err != nil {
			t.Fatal(err)
		}
	}
	ctx := context.Background()
	var clients sync.WaitGroup
	for i := range 100 { // of these one at a time has room
		clients.Go(func() {
			name := fmt.Sprintf("more-%d", i)
			for {
				if request(ctx, c, "bad", name, 0.05) == nil {
					_ = c.RemoveSandbox(ctx, name) // what stays goes with the bed
				}
			}
		})
	}
	for range 16 {
		clients.Go(func() {
			for {
				_, _ = c.Sandboxes(ctx, client.SandboxFilter{}) // refused or not, it asks again
			}
		})
	}
	os.NewFile(3, "ready").Write([]byte("."))
	clients.Wait()
}
