package admission

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestChange puts other bounds into force while some hold and others wait.
func TestChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Total: Limits{Sandboxes: 2}, Wait: time.Minute})
		mustHold(t, g, "a1", "ann", one)
		mustHold(t, g, "b1", "bob", one)
		ended := map[string]chan error{}
		wait := func(id, tenant string, n Need) {
			ended[id] = make(chan error, 1)
			go func() { ended[id] <- g.Hold(t.Context(), id, tenant, n) }()
			synctest.Wait()
		}
		want := func(id, kind string) {
			t.Helper()
			synctest.Wait()
			select {
			case err := <-ended[id]:
				if got := kindOf(err); got != kind {
					t.Errorf("%s came to %s, want %s", id, got, kind)
				}
			default:
				if kind != "waits" {
					t.Errorf("%s waits, want %s", id, kind)
				}
			}
			check(t, g)
		}
		wait("a2", "ann", one)
		wait("a3", "ann", one)
		wait("b2", "bob", Need{Memory: 8 << 30, CPUs: 1, Pids: 1})
		wait("b3", "bob", one)

		// What is there is too much, and stays. One waiter is too large for the new host by
		// itself, one would be above its tenant's new quota; the others go on to wait.
		lower := Config{Total: Limits{Sandboxes: 1, Memory: 4 << 30}, Tenants: map[string]Tenant{"ann": {Limits: Limits{Sandboxes: 2}}}, Wait: time.Second}
		g.Change(lower)
		want("b2", "quota")
		want("a3", "quota")
		want("a2", "waits")
		want("b3", "waits")
		if s := g.Snapshot(); s.Used.Sandboxes != 2 || s.Total.Sandboxes != 1 {
			t.Errorf("after the host has got smaller: %+v", s)
		}
		g.Release("a1")
		want("a2", "waits")
		if err := g.Hold(t.Context(), "b4", "bob", Need{Memory: 5 << 30}); kindOf(err) != "quota" {
			t.Errorf("who comes now is judged by the old bounds: %v", err)
		}
		if g.MaxWait() != time.Second {
			t.Errorf("the longest wait is %v", g.MaxWait())
		}
		time.Sleep(30 * time.Second)
		want("a2", "waits") // for as long as it was told

		lower.Total.Sandboxes, lower.Tenants = 3, nil
		g.Change(lower)
		want("a2", "<nil>")
		want("b3", "<nil>")
		for _, id := range []string{"b1", "a2", "b3"} {
			g.Release(id)
		}
		check(t, g)
		if s := g.Snapshot(); s.Used != (Limits{}) || len(s.Tenants) != 0 {
			t.Errorf("something is left: %+v", s)
		}
	})
}

// TestChangeKeepsNoRoomForWhoIsRefused refuses one for whom room was kept.
func TestChangeKeepsNoRoomForWhoIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Total: Limits{Memory: 4 << 30}})
		mustHold(t, g, "a", "ann", one)
		large := make(chan error, 1)
		go func() { large <- g.Hold(t.Context(), "b", "bob", Need{Memory: 4 << 30}) }()
		synctest.Wait()
		for i := range maxPassed + 1 {
			id := fmt.Sprint("c", i)
			go func() {
				if g.Hold(t.Context(), id, "cid", one) == nil {
					g.Release(id)
				}
			}()
			synctest.Wait()
		}
		if g.kept == nil {
			t.Fatal("no room is kept: the test has not brought about what it is for")
		}
		g.Change(Config{Total: Limits{Memory: 2 << 30}})
		if err := <-large; kindOf(err) != "quota" || g.kept != nil {
			t.Errorf("it came to %v, and room is kept for %+v", err, g.kept)
		}
		mustHold(t, g, "d", "cid", one)
		check(t, g)
	})
}

// TestChangedWeight gives a tenant that is known already its new part.
func TestChangedWeight(t *testing.T) {
	g := New(Config{Default: Tenant{Limits: Limits{Sandboxes: 1}}})
	mustHold(t, g, "a1", "ann", one)
	g.Change(Config{Default: Tenant{Limits: Limits{Sandboxes: 2}, Weight: 3}})
	mustHold(t, g, "a2", "ann", one)
	if s := g.Snapshot(); len(s.Tenants) != 1 || s.Tenants[0].Quota.Weight != 3 || s.Tenants[0].Quota.Sandboxes != 2 {
		t.Errorf("ann has %+v", s.Tenants)
	}
}
