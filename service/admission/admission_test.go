package admission

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/direct-oci/engine/engine"
)

var one = Need{Memory: 1 << 30, CPUs: 1, Pids: 100}

func kindOf(err error) string {
	var e *engine.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return fmt.Sprint(err)
}

func mustHold(t *testing.T, g *Gate, id, tenant string, n Need) {
	t.Helper()
	if err := g.Hold(t.Context(), id, tenant, n); err != nil {
		t.Fatalf("Hold(%s) = %v", id, err)
	}
}

// check compares the gate's sums with the holds they are made of.
func check(t *testing.T, g *Gate) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	var sum use
	tenants := map[string]use{}
	for _, h := range g.held {
		sum = sum.add(h.need)
		tenants[h.tenant] = tenants[h.tenant].add(h.need)
	}
	if g.used != sum {
		t.Fatalf("used = %+v, the holds add up to %+v", g.used, sum)
	}
	waiting := 0
	for name, tn := range g.tenants {
		if tn.used != tenants[name] {
			t.Fatalf("used by %s = %+v, its holds add up to %+v", name, tn.used, tenants[name])
		}
		var wanted use
		for e := tn.queue.Front(); e != nil; e = e.Next() {
			wanted = wanted.add(e.Value.(*waiter).need)
		}
		if tn.wanted != wanted {
			t.Fatalf("wanted by %s = %+v, its queue adds up to %+v", name, tn.wanted, wanted)
		}
		waiting += tn.queue.Len()
		delete(tenants, name)
	}
	if waiting != g.waiting {
		t.Fatalf("waiting = %d, the queues hold %d", g.waiting, waiting)
	}
	if len(tenants) > 0 {
		t.Fatalf("tenants that hold something and are not known: %v", tenants)
	}
}

func TestRefusals(t *testing.T) {
	tests := []struct {
		name   string
		config Config
		need   Need
		kind   string
		says   string
	}{
		{"alone above the host's totals", Config{Total: Limits{Memory: 1 << 29}}, one, "quota", "1024 MiB of memory are more than the host's 512"},
		{"above the tenant's sandboxes", Config{Default: Tenant{Limits: Limits{Sandboxes: 1}}}, one, "quota", "2 sandboxes are more than the tenant's 1"},
		{"above the tenant's CPUs", Config{Default: Tenant{Limits: Limits{CPUs: 1.5}}}, one, "quota", "2 CPUs are more than the tenant's 1.5"},
		{"above the tenant's processes", Config{Tenants: map[string]Tenant{"a": {Limits: Limits{Pids: 150}}}}, one, "quota", "200 processes are more than the tenant's 150"},
		{"no room and nobody may wait", Config{Total: Limits{Sandboxes: 1}, Queue: -1}, one, "queue_full", "0 wait already"},
		{"no number", Config{}, Need{CPUs: -1}, "bad_limit", "-1 CPUs"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := New(tt.config)
			g.Restore("first", "a", one)
			early := g.Refusal("second", "a", tt.need)
			err := g.Hold(t.Context(), "second", "a", tt.need)
			if fmt.Sprint(early) != fmt.Sprint(err) {
				t.Errorf("Refusal = %v, and Hold = %v", early, err)
			}
			if kindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Hold = %v (%s), want kind %s with %q", err, kindOf(err), tt.kind, tt.says)
			}
			var e *engine.Error
			if errors.As(err, &e) && tt.kind != "bad_limit" && e.Fix == "" {
				t.Error("the refusal has no remedy")
			}
			check(t, g)
		})
	}
}

func TestQuotaCountsThoseThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Total: Limits{Sandboxes: 1}, Default: Tenant{Limits: Limits{Sandboxes: 2}}})
		mustHold(t, g, "held", "a", one)
		go g.Hold(t.Context(), "waits", "a", one)
		synctest.Wait()
		if err := g.Hold(t.Context(), "third", "a", one); kindOf(err) != "quota" {
			t.Errorf("Hold of a third where two are allowed = %v", err)
		}
		g.Release("held")
		synctest.Wait()
		check(t, g)
	})
}

func TestDrainingRefusesNewWorkAndLetsTheQueueFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Total: Limits{Sandboxes: 1}})
		mustHold(t, g, "held", "a", one)
		waited := make(chan error, 1)
		go func() { waited <- g.Hold(t.Context(), "waits", "a", one) }()
		synctest.Wait()
		g.Drain(true)
		if err := g.Hold(t.Context(), "late", "a", one); kindOf(err) != "draining" {
			t.Errorf("Hold while draining = %v", err)
		}
		if err := g.Hold(t.Context(), "held", "a", one); err != nil {
			t.Errorf("Hold of what is held = %v", err)
		}
		g.Release("held")
		if err := <-waited; err != nil {
			t.Errorf("what waited when draining began: %v", err)
		}
		g.Drain(false)
		g.Release("waits")
		mustHold(t, g, "again", "a", one)
		check(t, g)
	})
}

func TestHoldingTwiceCountsOnceAndReleasingTwiceReleasesOnce(t *testing.T) {
	g := New(Config{Total: Limits{Sandboxes: 2}})
	mustHold(t, g, "x", "a", one)
	mustHold(t, g, "x", "a", one)
	g.Restore("x", "a", one)
	if s := g.Snapshot(); s.Used.Sandboxes != 1 || s.Used.Memory != 1<<30 {
		t.Errorf("used = %+v, want one sandbox", s.Used)
	}
	g.Release("x")
	g.Release("x")
	if s := g.Snapshot(); s.Used != (Limits{}) || len(s.Tenants) != 0 {
		t.Errorf("used = %+v by %v, want nothing", s.Used, s.Tenants)
	}
	check(t, g)
}

func TestWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Total: Limits{Sandboxes: 1}, Wait: 5 * time.Second})
		mustHold(t, g, "held", "a", one)
		began := time.Now()
		err := g.Hold(t.Context(), "waits", "b", one)
		if took := time.Since(began); kindOf(err) != "queue_full" || took != 5*time.Second {
			t.Errorf("Hold = %v after %v, want queue_full after 5s", err, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Hold(ctx, "gives up", "b", one); kindOf(err) != "cancelled" {
			t.Errorf("Hold with a context that ends = %v", err)
		}
		if s := g.Snapshot(); s.Waiting != 0 || s.Counters.Expired != 2 {
			t.Errorf("snapshot = %+v, want nobody waiting and two expired", s)
		}
		check(t, g)
	})
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Total: Limits{Sandboxes: 1}, Queue: 3, TenantQueue: 2})
		mustHold(t, g, "held", "a", one)
		for i, tenant := range []string{"a", "a", "b"} {
			go g.Hold(t.Context(), fmt.Sprint("waits", i), tenant, one)
			synctest.Wait()
			if i == 1 {
				if err := g.Hold(t.Context(), "more", "a", one); kindOf(err) != "queue_full" || !strings.Contains(err.Error(), "tenant=a") {
					t.Errorf("a third of one tenant: %v", err)
				}
			}
		}
		if err := g.Hold(t.Context(), "more", "c", one); kindOf(err) != "queue_full" || !strings.Contains(err.Error(), "3 wait already") {
			t.Errorf("a fourth: %v", err)
		}
		check(t, g)
	})
}

// serve lets everybody in who waits, one after the other, and returns the order.
func serve(t *testing.T, g *Gate, first string, admitted chan string) []string {
	t.Helper()
	var order []string
	for last := first; ; {
		g.Release(last)
		synctest.Wait()
		select {
		case last = <-admitted:
			order = append(order, last)
		default:
			return order
		}
	}
}

func queue(t *testing.T, g *Gate, admitted chan string, id, tenant string, n Need) {
	go func() {
		if g.Hold(t.Context(), id, tenant, n) == nil {
			admitted <- id
		}
	}()
	synctest.Wait()
}

func TestTenantsTakeTurnsByWeight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Total: Limits{Sandboxes: 1}, TenantQueue: 100, Wait: time.Hour, Tenants: map[string]Tenant{"heavy": {Weight: 3}}})
		mustHold(t, g, "first", "other", one)
		admitted := make(chan string, 100)
		// The flood comes before everybody else.
		for i := range 40 {
			queue(t, g, admitted, fmt.Sprintf("flood%02d", i), "flood", one)
		}
		for i := range 5 {
			queue(t, g, admitted, fmt.Sprintf("light%02d", i), "light", one)
		}
		for i := range 12 {
			queue(t, g, admitted, fmt.Sprintf("heavy%02d", i), "heavy", one)
		}
		order := serve(t, g, "first", admitted)
		if len(order) != 57 {
			t.Fatalf("%d were served of 57", len(order))
		}
		// While all wait, each has its part: 5 light ones are done within 5 rounds of 1+1+3.
		at := func(id string) int { return slices.Index(order, id) }
		if p := at("light04"); p > 27 {
			t.Errorf("the last of the light tenant was served as number %d, want within 5 rounds: %v", p, order)
		}
		if p := at("heavy11"); p > 22 {
			t.Errorf("the last of the tenant of weight 3 was served as number %d, want within 4 rounds: %v", p, order)
		}
		for _, tenant := range []string{"flood", "light", "heavy"} {
			var mine []string
			for _, id := range order {
				if strings.HasPrefix(id, tenant) {
					mine = append(mine, id)
				}
			}
			if !slices.IsSorted(mine) {
				t.Errorf("tenant %s was not served in the order it came: %v", tenant, mine)
			}
		}
		check(t, g)
	})
}

// TestLargeOnesAreNotPassedOverForEver gives small ones, which always fit, every chance.
func TestLargeOnesAreNotPassedOverForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Total: Limits{Memory: 4 << 30}, TenantQueue: 100, Wait: time.Hour})
		small := Need{Memory: 1 << 30, CPUs: 1, Pids: 1}
		var live []string
		for i := range 4 {
			id := fmt.Sprint("s", i)
			mustHold(t, g, id, "small", small)
			live = append(live, id)
		}
		large := make(chan string, 1)
		queue(t, g, large, "large", "large", Need{Memory: 3 << 30, CPUs: 1, Pids: 1})
		admitted := make(chan string, 100)
		for i := range 60 {
			queue(t, g, admitted, fmt.Sprint("more", i), "small", small)
		}
		passed := 0
		for ; passed < 60; passed++ {
			g.Release(live[0])
			live = live[1:]
			synctest.Wait()
			select {
			case <-large:
				if passed > maxPassed+3 {
					t.Errorf("the large one waited for %d others, want at most %d", passed, maxPassed+3)
				}
				check(t, g)
				return
			default:
			}
			for len(admitted) > 0 {
				live = append(live, <-admitted)
			}
		}
		t.Error("the large one was never served")
	})
}

// TestOneThatCannotFitHoldsNobodyUpForLong has a tenant ask, again and again, for more than
// what ever gets free, because another's sandbox stays. Small ones wait no longer than room
// is kept, and get most of what they would have without it; and what fits once the small
// ones have made room gets in, though the other asks for as much.
func TestOneThatCannotFitHoldsNobodyUpForLong(t *testing.T) {
	gib := func(n int64) Need { return Need{Memory: n << 30, CPUs: 1, Pids: 1} }
	served := func(t *testing.T, hopeless, large bool) (n int, longest time.Duration, fitted int) {
		synctest.Test(t, func(t *testing.T) {
			const wait = 30 * time.Second
			g := New(Config{Total: Limits{Memory: 6 << 30}, TenantQueue: 100, Wait: wait})
			mustHold(t, g, "stays", "other", gib(2))
			ctx, stop := context.WithTimeout(t.Context(), 20*time.Minute)
			defer stop()
			var all sync.WaitGroup
			var mu sync.Mutex
			again := func(id, tenant string, n Need, patience time.Duration, admitted func(waited time.Duration)) {
				all.Go(func() {
					for ctx.Err() == nil {
						began := time.Now()
						patient, cancel := context.WithTimeout(ctx, patience)
						if g.Hold(patient, id, tenant, n) == nil {
							mu.Lock()
							admitted(time.Since(began))
							mu.Unlock()
							time.Sleep(time.Second)
							g.Release(id)
						}
						cancel()
					}
				})
				synctest.Wait()
			}
			for i := range 6 { // two more than there is room for
				again(fmt.Sprint("small", i), fmt.Sprint("small", i%2), gib(1), time.Hour, func(waited time.Duration) {
					n, longest = n+1, max(longest, waited)
				})
			}
			for i := range 5 {
				if hopeless { // some leave before it is told that it was in vain
					again(fmt.Sprint("hopeless", i), "a hopeless one", gib(6), []time.Duration{8 * time.Second, time.Hour}[i%2], func(time.Duration) { t.Error("the one that cannot fit was served") })
				}
			}
			if large {
				again("large", "large", gib(3), time.Hour, func(time.Duration) { fitted++ })
			}
			all.Wait()
			check(t, g)
		})
		return n, longest, fitted
	}
	alone, _, _ := served(t, false, false)
	n, longest, _ := served(t, true, false)
	if longest > 11*time.Second {
		t.Errorf("a small one waited %v beside one that cannot fit, want no more than 11s", longest)
	}
	if n < alone*6/10 {
		t.Errorf("%d small ones were served beside one that cannot fit, and %d without it", n, alone)
	}
	_, _, fitted := served(t, true, true)
	if fitted < 10 {
		t.Errorf("a large one that fits was served %d times in 20 minutes", fitted)
	}
	t.Logf("small ones: %d alone, %d beside one that cannot fit, waiting %v at most; large ones that fit: %d", alone, n, longest, fitted)
}

// TestComingBackIsNoAdvantage has a tenant with a tenth of the weight that is gone between
// two of its sandboxes: what it has had must be known when it comes back, or it is served
// every other time.
func TestComingBackIsNoAdvantage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{
			Total: Limits{Sandboxes: 1}, TenantQueue: 100, Wait: time.Hour,
			Tenants: map[string]Tenant{"a churner": {Weight: 0.1}},
		})
		mustHold(t, g, "first", "other", one)
		admitted := make(chan string, 100)
		for i := range 60 {
			queue(t, g, admitted, fmt.Sprintf("steady%02d", i), "steady", one)
		}
		last, waits, steady, churner := "first", false, 0, 0
		for i := range 50 {
			if !waits {
				queue(t, g, admitted, fmt.Sprintf("churner%02d", i), "a churner", one)
				waits = true
			}
			g.Release(last)
			synctest.Wait()
			if last = <-admitted; strings.HasPrefix(last, "steady") {
				steady++
				continue
			}
			churner++
			// It has nothing and wants nothing, while another is served.
			g.Release(last)
			synctest.Wait()
			last, waits = <-admitted, false
			steady++
		}
		if most := steady/10 + 1; churner == 0 || churner > most {
			t.Errorf("who came back each time was served %d times, who waited %d times: want 1 to %d", churner, steady, most)
		}
	})
}

// TestWhoDidNotWaitHasSavedNothing has a tenant that holds one sandbox while another is
// served many times, and then wants many: they take turns from there on.
func TestWhoDidNotWaitHasSavedNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Total: Limits{Sandboxes: 2}, TenantQueue: 100, Wait: time.Hour})
		mustHold(t, g, "long", "frugal", one)
		mustHold(t, g, "first", "steady", one)
		admitted := make(chan string, 100)
		for i := range 60 {
			queue(t, g, admitted, fmt.Sprintf("steady%02d", i), "steady", one)
		}
		last := "first"
		next := func() string {
			g.Release(last)
			synctest.Wait()
			last = <-admitted
			return last
		}
		for range 30 {
			next()
		}
		for i := range 20 {
			queue(t, g, admitted, fmt.Sprintf("frugal%02d", i), "frugal", one)
		}
		frugal := 0
		for range 20 {
			if strings.HasPrefix(next(), "frugal") {
				frugal++
			}
		}
		if frugal < 9 || frugal > 11 {
			t.Errorf("of 20 starts the one that had not waited got %d, want half", frugal)
		}
		serve(t, g, last, admitted)
	})
}

// FuzzAccounting does whatever its input says and holds the sums against the holds
// after each step.
func FuzzAccounting(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	f.Add([]byte(strings.Repeat("\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff", 8)))
	seed := make([]byte, 600)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range seed {
		seed[i] = byte(r.Uint32())
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, steps []byte) {
		if len(steps) > 2000 {
			return
		}
		synctest.Test(t, func(t *testing.T) { account(t, steps) })
	})
}

func account(t *testing.T, steps []byte) {
	total := Limits{Sandboxes: 5, Memory: 10 << 30, CPUs: 6.3, Pids: 500}
	g := New(Config{Total: total, Default: Tenant{Limits: Limits{Sandboxes: 6}}, Queue: 6, TenantQueue: 4, Wait: time.Minute})
	cancels := map[string]context.CancelFunc{}
	restored := false
	for i := 0; i+1 < len(steps); i += 2 {
		id := fmt.Sprint("id", steps[i]%16)
		tenant := fmt.Sprint("tenant", steps[i]%3)
		n := Need{Memory: int64(steps[i+1]%5) << 30, CPUs: float64(steps[i+1]%7) / 3, Pids: int64(steps[i+1])}
		switch steps[i] / 16 % 6 {
		case 0, 1, 2:
			if cancels[id] != nil {
				continue // a sandbox is created once at a time
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancels[id] = cancel
			go func() {
				if g.Hold(ctx, id, tenant, n) != nil {
					g.Release("none" + id)
				}
			}()
		case 3:
			if slices.Contains(g.Held(), id) {
				delete(cancels, id)
			}
			g.Release(id)
		case 4:
			if cancel := cancels[id]; cancel != nil {
				cancel()
			}
		case 5:
			g.Restore(id, tenant, n)
			restored = true
		}
		synctest.Wait()
		check(t, g)
		if s := g.Snapshot(); !restored && (s.Used.Sandboxes > 5 || s.Used.Memory > total.Memory || s.Used.CPUs > 6.3+1e-9 || s.Used.Pids > 500) {
			t.Fatalf("used = %+v, above the totals", s.Used)
		}
	}
	for _, cancel := range cancels {
		cancel()
	}
	synctest.Wait()
	for held := g.Held(); len(held) > 0; held = g.Held() { // a release may let others in
		for _, id := range held {
			g.Release(id)
		}
		synctest.Wait()
	}
	check(t, g)
	if s := g.Snapshot(); s.Used != (Limits{}) || s.Waiting != 0 || len(s.Tenants) != 0 {
		t.Fatalf("in the end there is %+v", s)
	}
}
