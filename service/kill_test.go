package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/service/callback"
)

// order is what a process of the tests is told to do, see TestMain.
type order struct {
	Dir    string // of a world
	Real   *real  // or the real engine
	Do     string // create, teardown, send, stir
	Name   string
	Owner  string
	DieAt  string // the step at which it kills itself
	Repeat int
	Seed   uint64
}

const orderVar = "ENGINE_SERVICE_TEST_ORDER"

func TestMain(m *testing.M) {
	if text := os.Getenv(orderVar); text != "" {
		var o order
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			panic(err)
		}
		os.Exit(o.obey())
	}
	os.Exit(m.Run())
}

// obey is a whole process: a Manager of its own on the shared directory.
func (o order) obey() int {
	w := &world{}
	var on Engine
	newSpec := spec
	if o.Real != nil {
		engine.Version = o.Real.Version
		w.config, on, newSpec = o.Real.config(), OnHost(o.Real.Host), o.Real.spec
	} else {
		w = worldIn(o.Dir)
		on = w.fake
	}
	w.config.Callbacks = callback.Config{HTTP: true, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Pause: 20 * time.Millisecond}
	m, err := newManager(w.config, on, func(step string) {
		if step == o.DieAt {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer m.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	switch o.Do {
	case "create":
		sb, created, err := m.Create(ctx, newSpec(o.Name, o.Owner))
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println(sb.ID, created)
	case "teardown":
		if err := m.Teardown(ctx, o.Name); err != nil {
			fmt.Println(err)
			return 1
		}
	case "send":
		time.Sleep(20 * time.Second)
	case "stir":
		r := rand.New(rand.NewPCG(o.Seed, 1))
		for range o.Repeat {
			name := fmt.Sprint("s", r.IntN(3))
			if r.IntN(3) == 0 {
				m.Teardown(ctx, name)
			} else if sb, _, err := m.Create(ctx, spec(name, "ann")); err == nil && r.IntN(4) == 0 {
				w.end(sb.ID, engine.ReasonExited)
			}
		}
	}
	return 0
}

// process starts one.
func (o order) process(t *testing.T) (*exec.Cmd, *strings.Builder) {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), orderVar+"="+string(text))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, &out
}

// killed says that a process ended by SIGKILL.
func killed(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

// TestManyProcessesCreateOne has eight processes create one sandbox at once: one of
// them starts it, the others adopt it. Of eight owners one gets the name.
func TestManyProcessesCreateOne(t *testing.T) {
	for round := range 5 {
		w := newWorld(t)
		var wg sync.WaitGroup
		outs := make([]*strings.Builder, 8)
		for i := range outs {
			cmd, out := order{Dir: w.dir, Do: "create", Name: "work", Owner: "ann"}.process(t)
			outs[i] = out
			wg.Go(func() { cmd.Wait() })
		}
		wg.Wait()
		created, ids := 0, map[string]bool{}
		for _, out := range outs {
			var id string
			var mine bool
			if n, err := fmt.Sscan(out.String(), &id, &mine); n != 2 {
				t.Fatalf("round %d: a process says %q (%v)", round, out, err)
			}
			ids[id] = true
			if mine {
				created++
			}
		}
		if created != 1 || len(ids) != 1 || w.count("start") != 1 {
			t.Fatalf("round %d: %d created %d sandboxes by %d starts, want one", round, created, len(ids), w.count("start"))
		}
	}
	w := newWorld(t)
	var wg sync.WaitGroup
	outs := make([]*strings.Builder, 8)
	for i := range outs {
		cmd, out := order{Dir: w.dir, Do: "create", Name: "work", Owner: fmt.Sprint("owner", i)}.process(t)
		outs[i] = out
		wg.Go(func() { cmd.Wait() })
	}
	wg.Wait()
	won, lost := 0, 0
	for _, out := range outs {
		switch {
		case strings.Contains(out.String(), "the name belongs to owner"):
			lost++
		case strings.Contains(out.String(), "true"):
			won++
		}
	}
	if won != 1 || lost != 7 || len(w.living()) != 1 {
		t.Errorf("of eight owners %d got the name and %d were refused", won, lost)
	}
}

// TestKilledWhileCreating kills the process at each step. Afterwards there is the
// sandbox, once, or nothing of it; asking again gives one; nothing leaks.
func TestKilledWhileCreating(t *testing.T) {
	for _, step := range []string{"locked", "recorded", "admitted", "before-start", "started", "before-ready"} {
		for _, next := range []string{"create", "restart", "teardown"} {
			t.Run(step+"/"+next, func(t *testing.T) {
				w := newWorld(t)
				cmd, out := order{Dir: w.dir, Do: "create", Name: "work", Owner: "ann", DieAt: step}.process(t)
				if err := cmd.Wait(); !killed(err) {
					t.Fatalf("the process ended with %v: %s", err, out)
				}
				m := w.manager(t)
				switch next {
				case "create":
					mustCreate(t, m, spec("work", "ann"))
				case "restart":
					if step != "locked" { // before there was a record, nobody was promised anything
						until(t, "the sandbox answers", func() bool {
							sb, err := m.Get(t.Context(), "work")
							return err == nil && sb.State == Ready
						})
					}
				case "teardown":
					if err := m.Teardown(t.Context(), "work"); err != nil {
						t.Fatal(err)
					}
				}
				if n := w.count("start"); n > 1 && next != "create" {
					t.Errorf("it was started %d times", n)
				}
				want := 1
				if next == "teardown" || next == "restart" && step == "locked" {
					want = 0
				}
				until(t, "what lives is accounted for", func() bool { return m.Gate().Snapshot().Used.Sandboxes == want })
				if n := len(w.living()); n != want {
					t.Errorf("%d runs live, want %d", n, want)
				}
				if err := m.Teardown(t.Context(), "work"); err != nil {
					t.Fatal(err)
				}
				w.wantNothingLeft(t, m)
			})
		}
	}
}

// TestKilledWhileTearingDown kills the process at each step. The next Manager finishes.
func TestKilledWhileTearingDown(t *testing.T) {
	for _, step := range []string{"ending", "killed", "run-removed"} {
		for _, next := range []string{"create", "restart", "teardown", "other"} {
			t.Run(step+"/"+next, func(t *testing.T) {
				w := newWorld(t)
				first := mustCreate(t, w.manager(t), spec("work", "ann"))
				cmd, out := order{Dir: w.dir, Do: "teardown", Name: "work", DieAt: step}.process(t)
				if err := cmd.Wait(); !killed(err) {
					t.Fatalf("the process ended with %v: %s", err, out)
				}
				m := w.manager(t)
				switch next {
				case "create":
					if sb := mustCreate(t, m, spec("work", "ann")); sb.ID == first.ID {
						t.Error("what was being torn down was adopted")
					}
					if err := m.Teardown(t.Context(), "work"); err != nil {
						t.Fatal(err)
					}
				case "other":
					// The name is taken until its teardown is finished, and free then.
					until(t, "another owner gets the name", func() bool {
						_, _, err := m.Create(t.Context(), spec("work", "bob"))
						return err == nil
					})
					if err := m.Teardown(t.Context(), "work"); err != nil {
						t.Fatal(err)
					}
				case "teardown":
					if err := m.Teardown(t.Context(), "work"); err != nil {
						t.Fatal(err)
					}
				case "restart":
					until(t, "it is gone", func() bool {
						_, err := m.Get(t.Context(), "work")
						return isKind(err, "not_found")
					})
				}
				until(t, "nothing is held", func() bool { return m.Gate().Snapshot().Used.Sandboxes == 0 })
				w.wantNothingLeft(t, m)
			})
		}
	}
}

// TestStirred has processes create, end and tear down the same few names, and kills
// them at random moments. At no time do two runs live under one name, and in the end
// every run belongs to a record.
func TestStirred(t *testing.T) {
	w := newWorld(t)
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	const enough = 20
	began := time.Now()
	on := func() bool { // slow machines start few in four seconds
		since := time.Since(began)
		return since < 4*time.Second || since < 30*time.Second && w.count("start") < enough
	}
	var wg sync.WaitGroup
	for range 4 {
		seed := r.Uint64()
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 2))
			for on() {
				cmd, _ := order{Dir: w.dir, Do: "stir", Repeat: 1000, Seed: r.Uint64()}.process(t)
				time.Sleep(time.Duration(50+r.IntN(300)) * time.Millisecond)
				cmd.Process.Kill()
				cmd.Wait()
			}
		})
	}
	twice := make(chan string, 1)
	wg.Go(func() {
		for on() {
			names := map[string]string{}
			for _, id := range w.living() {
				rec, err := w.Load(id)
				if err != nil || !rec.Alive {
					continue
				}
				name := rec.Request.Labels["name"]
				if other := names[name]; other != "" && name != "" {
					if a, err := w.Load(other); err == nil && a.Alive {
						twice <- name
						return
					}
				}
				names[name] = id
			}
			time.Sleep(time.Millisecond)
		}
	})
	wg.Wait()
	select {
	case name := <-twice:
		t.Errorf("two runs of %s lived at once", name)
	default:
	}
	if n := w.count("start"); n < enough {
		t.Errorf("only %d sandboxes were started: nothing was proved", n)
	}
	m := w.manager(t)
	var owned map[string]bool
	until(t, "every run belongs to a record, and what lives is accounted for", func() bool {
		owned = map[string]bool{}
		list, err := m.List(t.Context(), Filter{})
		if err != nil {
			t.Fatal(err)
		}
		alive := 0
		for _, s := range list {
			owned[s.ID] = true
			if s.Alive {
				alive++
			} else if s.State != Ended {
				return false
			}
		}
		for _, id := range w.living() {
			if !owned[id] {
				return false
			}
		}
		return m.Gate().Snapshot().Used.Sandboxes == alive
	})
	if _, err := m.TeardownOwner(t.Context(), "ann"); err != nil {
		t.Fatal(err)
	}
	w.wantNothingLeft(t, m)
}
