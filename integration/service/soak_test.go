package service

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/integration/testenv"
)

const (
	// soakVariable says how much TestSoak does: a number of cycles, or a time like 24h.
	soakVariable = "ENGINE_SOAK"

	// soakClientVariable makes the test's own program a client that may be killed: the
	// socket, the tenant and the name of the sandbox that it goes through a cycle with.
	soakClientVariable = "ENGINE_SOAK_CLIENT"
)

// soakConfig has less room than workers, so that they wait for each other too.
const soakConfig = `  sandboxes:
    total: {sandboxes: 5}
    waitSeconds: 120
    startSeconds: 120
`

var soakTenants = []string{"a", "b", "c"}

// TestSoak goes through the life of sandboxes, of several tenants at once: create,
// programs, files, teardown. In every other round the service, monitors and clients are
// killed meanwhile. After each nothing is left on the host or in the service, and no
// program was started twice.
func TestSoak(t *testing.T) {
	cycles, until := soakScope(t)
	b := newBed(t, soakConfig)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := &soak{bed: b, t: t, rnd: rand.New(rand.NewPCG(seed, 0)), ended: map[string]int{}}
	s.c = b.start()
	interfaces := links(t)
	s.round(20, false) // what is made once is made
	s.before = s.serviceFigures()
	began := time.Now()
	s.done, s.ended = 0, map[string]int{}
	for n := 0; !t.Failed() && (s.done < cycles || time.Now().Before(until)); n++ {
		s.round(50, n%2 == 1)
		if now := links(t); now != interfaces {
			t.Errorf("network interfaces were %s and are %s", interfaces, now)
		}
	}
	after := s.serviceFigures()
	t.Logf("%d cycles in %v: %v; killed: %v", s.done, time.Since(began).Round(time.Second), s.ended, s.kills)
	t.Logf("the service before: %+v, after: %+v", s.before, after)
	if after.memoryMB > s.before.memoryMB+15 {
		t.Error("the service has grown")
	}
	s.stop()
}

// soakScope is how many cycles there are, or until when.
func soakScope(t *testing.T) (int, time.Time) {
	t.Helper()
	text := os.Getenv(soakVariable)
	if text == "" && testenv.InVM() {
		text = "2m"
	}
	if text == "" {
		t.Skip("takes long, as root: run it with make test-soak-service, or a sample with make test-vm")
	}
	if n, err := strconv.Atoi(text); err == nil {
		return n, time.Time{}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return 0, time.Now().Add(d)
}

// links are the names of the host's network interfaces.
func links(t *testing.T) string {
	t.Helper()
	names, err := filepath.Glob("/sys/class/net/*")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

type soak struct {
	*bed
	t      *testing.T
	c      *client.Client
	rnd    *rand.Rand
	before figures // of the service

	kills [3]int // services, monitors, clients

	mu    sync.Mutex
	done  int
	names int
	ended map[string]int
}

// figures are what a process that lives long must not pile up.
type figures struct {
	descriptors, goroutines int
	memoryMB                float64
}

// serviceFigures are those of the service once what is on its way out has gone.
func (s *soak) serviceFigures() figures {
	s.t.Helper()
	s.c.Close()
	text, err := s.c.Metrics(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	value := func(name string) int {
		m := regexp.MustCompile(`(?m)^` + name + ` ([0-9.e+]+)$`).FindSubmatch(text)
		if m == nil {
			s.t.Fatalf("the service tells no %s", name)
		}
		f, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			s.t.Fatal(err)
		}
		return int(f)
	}
	return figures{value("process_open_fds"), value("go_goroutines"), float64(value("process_resident_memory_bytes")) / 1e6}
}

// round goes through so many cycles, with kills if it is wild, and then wants nothing
// to be left.
func (s *soak) round(cycles int, wild bool) {
	s.t.Helper()
	left := make(chan string, cycles)
	for range cycles {
		s.names++
		left <- fmt.Sprintf("soak-%d", s.names)
	}
	close(left)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		if wild {
			s.havoc(stop)
		}
	}()
	var workers sync.WaitGroup
	for i := range 6 {
		rnd := rand.New(rand.NewPCG(s.rnd.Uint64(), uint64(i)))
		workers.Go(func() {
			for name := range left {
				s.one(soakTenants[i%len(soakTenants)], name, wild, rnd)
			}
		})
	}
	workers.Wait()
	close(stop)
	<-stopped
	s.accounted()
}

// one is one cycle, some of them in a process of their own that is killed.
func (s *soak) one(tenant, name string, wild bool, rnd *rand.Rand) {
	ctx, cancel := context.WithTimeout(s.t.Context(), soakPatience)
	defer cancel()
	var err error
	came := "done"
	if wild && rnd.IntN(4) == 0 {
		came = "client killed"
		s.killClient(ctx, tenant, name, time.Duration(rnd.Int64N(int64(300*time.Millisecond)*slowness())))
	} else {
		err = cycle(ctx, s.c, tenant, name, rnd.IntN(3))
	}
	if gone := s.c.RemoveSandbox(ctx, name); gone != nil {
		s.t.Errorf("cannot tear down %s of %s: %v", name, tenant, gone)
	}
	var told *client.Error
	switch {
	case err == nil:
	case wild && errors.As(err, &told):
		came = told.Kind
	case wild && errors.Is(err, errLost):
		came = "lost"
	case wild && errors.Is(err, errOnce):
		came = "cut off"
	default:
		s.t.Errorf("%s of %s: %v", name, tenant, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
	s.ended[came]++
}

const soakPatience = 5 * time.Minute

// slowness is how much slower everything is than on a machine of one's own.
func slowness() int64 {
	if testenv.InVM() {
		return 10
	}
	return 1
}

// havoc kills the service, which is started again, or a monitor, now and then.
func (s *soak) havoc(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(s.rnd.Int64N(int64(400*time.Millisecond) * slowness()))):
		}
		if s.rnd.IntN(4) == 0 {
			s.bed.kill()
			s.launch()
			s.kills[0]++
			continue
		}
		procs, _ := os.ReadFile(filepath.Join(s.groups.Group("mon").Dir, "cgroup.procs")) // none before the first
		if pids := strings.Fields(string(procs)); len(pids) > 0 {
			if pid, err := strconv.Atoi(pids[s.rnd.IntN(len(pids))]); err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
				s.kills[1]++
			}
		}
	}
}

// killClient has another process go through a cycle, and kills it.
func (s *soak) killClient(ctx context.Context, tenant, name string, after time.Duration) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = []string{soakClientVariable + "=" + strings.Join([]string{s.socket(), tenant, name}, "\n")}
	if err := cmd.Start(); err != nil {
		s.t.Error(err)
		return
	}
	time.Sleep(after) //nolint:forbidigo // the moment is the point
	cmd.Process.Kill()
	cmd.Wait() // killed, or done before
	s.mu.Lock()
	s.kills[2]++
	s.mu.Unlock()
}

// beSoakClient is what the process does that killClient kills.
func beSoakClient(text string) {
	part := strings.Split(text, "\n")
	ctx, cancel := context.WithTimeout(context.Background(), soakPatience)
	defer cancel()
	if err := cycle(ctx, client.Unix(part[0]), part[1], part[2], 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

var (
	// errLost says that the sandbox was gone before its program was done.
	errLost = errors.New("the sandbox was lost")

	// errOnce is of a call that is not made again by itself when the service dies under it.
	errOnce = errors.New("not made again")
)

var soakToken = regexp.MustCompile(`(?m)^( [0-9a-f]{2}){8}$`)

// cycle creates a sandbox, has it run a program that shows a token no other start shows,
// and tears it down. It may do something else there besides.
func cycle(ctx context.Context, c *client.Client, tenant, name string, besides int) error {
	ask := wire.SandboxRequest{Name: name, Owner: tenant, Image: "box", Runtime: "embedded", CPUs: 1, MemoryMB: 64, TTLSeconds: 600}
	if _, err := c.CreateSandbox(ctx, ask); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	switch besides {
	case 1:
		if _, err := c.WriteFile(ctx, name, "/workload/f", strings.NewReader(name), client.WriteOptions{}); err != nil {
			return fmt.Errorf("%w: write: %w", errOnce, err)
		}
	case 2:
		e, err := c.StartExec(ctx, name, wire.ExecRequest{ID: "cat", Command: []string{"cat"}, Stdin: true})
		if err != nil {
			return fmt.Errorf("exec: %w", err)
		}
		if _, err := c.WriteStdin(ctx, name, e.ID, strings.NewReader("hello\n"), false); err != nil && !client.IsKind(err, "not_running") {
			return fmt.Errorf("%w: stdin: %w", errOnce, err)
		}
	}
	text := `head -c 8 /dev/urandom | od -A n -t x1; sleep 0.05; exit 7`
	e, err := c.StartExec(ctx, name, wire.ExecRequest{ID: "job", Command: []string{"sh", "-c", text}})
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	var out strings.Builder
	var result *wire.ExecResult
	for ev, err := range c.FollowExec(ctx, name, e.ID, "") {
		if err != nil {
			return fmt.Errorf("follow: %w", err)
		}
		out.Write(ev.Data)
		if ev.Kind == "exit" {
			result = ev.Result
		}
	}
	tokens := soakToken.FindAllString(out.String(), -1)
	slices.Sort(tokens)
	switch n := len(slices.Compact(tokens)); {
	case result == nil:
		return errors.New("the stream ended without an exit")
	case n > 1:
		return fmt.Errorf("the program was started %d times: %q", n, out.String())
	case result.Reason == "exited" && (result.ExitCode == nil || *result.ExitCode != 7 || n != 1):
		return fmt.Errorf("exited as %+v after writing %q", result, out.String())
	case result.Reason != "exited":
		return fmt.Errorf("%w: %s", errLost, result.Reason)
	}
	return c.RemoveSandbox(ctx, name)
}

// accounted wants nothing to be left: on the host, on record, or in the service.
func (s *soak) accounted() {
	s.t.Helper()
	ctx := patient(s.t)
	if _, err := s.c.Collect(ctx, false); err != nil {
		s.t.Errorf("cannot collect: %v", err)
	}
	list, err := s.c.Sandboxes(ctx, client.SandboxFilter{})
	if err != nil || len(list.Sandboxes) > 0 {
		s.t.Errorf("still on record: %+v, %v", list.Sandboxes, err)
	}
	var left []string
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { //nolint:forbidigo // the pause of a bounded wait
		left = testenv.Left(s.t, s.groups, s.dir, true)
		for _, dir := range []string{"state/runs", "state/sandboxes", "state/callbacks"} {
			found, err := filepath.Glob(s.path(dir + "/*"))
			if err != nil {
				s.t.Fatal(err)
			}
			for _, f := range found {
				left = append(left, "record "+f)
			}
		}
		if now := s.serviceFigures(); s.before.descriptors > 0 && (now.descriptors > s.before.descriptors || now.goroutines > s.before.goroutines) {
			left = append(left, fmt.Sprintf("in the service %+v, which began with %+v", now, s.before))
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			s.t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
			return
		}
	}
}
