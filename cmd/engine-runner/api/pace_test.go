package api

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestRequestsAreHeldBack has one tenant ask without a pause, from many clients: it is
// answered at its rate, and another and an admin at once.
func TestRequestsAreHeldBack(t *testing.T) {
	b := newBed(t, "{requestsPerSecond: 10, access: [{user: '1001', allow: run, tenant: flood}, {user: '1002', allow: run, tenant: flood}, "+
		"{user: '1003', allow: run, tenant: other}, {user: '1004', allow: admin}]}")
	synctest.Test(t, func(t *testing.T) {
		ask := func(uid uint32) (status int) {
			status, f := b.as(peer{uid: uid}, "GET", "/v1/version", "")
			if status != 200 && f.Error.Kind != "too_often" {
				t.Errorf("status %d, %+v", status, f.Error)
			}
			return status
		}
		const span = time.Minute
		end := time.Now().Add(span)
		var answered, refused atomic.Int64
		var clients sync.WaitGroup
		for i := range 100 {
			clients.Go(func() {
				for time.Now().Before(end) {
					if ask(uint32(1001+i%2)) == 200 {
						answered.Add(1)
					} else {
						refused.Add(1)
					}
				}
			})
		}
		for _, uid := range []uint32{0, 1003, 1004} {
			clients.Go(func() {
				for time.Now().Before(end) {
					began := time.Now()
					if status := ask(uid); status != 200 || time.Since(began) > 0 {
						t.Errorf("uid %d: status %d after %v, beside a flood", uid, status, time.Since(began))
					}
					time.Sleep(150 * time.Millisecond)
				}
			})
		}
		clients.Wait()
		if n := answered.Load(); n < 590 || n > 670 {
			t.Errorf("%d requests of the flood were answered in %v, want 10 a second", n, span)
		}
		if n := refused.Load(); n == 0 || n > 100*60/5 {
			t.Errorf("%d requests of the flood were refused: each of its clients waits five seconds for that", n)
		}
	})
}
