package api

import (
	"context"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/direct-oci/engine/engine"
)

// maxHeldBack is how long a request waits at most for its turn. What would wait longer is
// refused, after that time too: whoever asks again at once gains nothing.
const maxHeldBack = 5 * time.Second

// pace lets the requests of each tenant in at so many a second, and a second's worth of
// them at once. Root and admins who are confined to no tenant are not held back: somebody
// must be able to look.
//
// SECURITY: nobody uses up the service with requests.
// One tenant that asks without a pause would make all others wait for the processors.
// Holds because: no handler runs before a request has had its turn, and who is refused has
// waited. Not covered: what a request costs before it is known whose it is.
// Checked by: TestRequestsAreHeldBack.
type pace struct {
	mu sync.Mutex
	of map[string]*rate.Limiter // by tenant, or caller without one: as many as the config has, or the host users
}

// enter waits for the caller's turn.
func (p *pace) enter(ctx context.Context, c Caller, perSecond float64) error {
	key := "tenant " + c.Tenant
	if c.Tenant == "" {
		if c.Class == Admin {
			return nil
		}
		key = c.Name
	}
	turn := p.limiter(key, perSecond).Reserve()
	wait := turn.Delay()
	if wait == 0 {
		return nil
	}
	late := wait > maxHeldBack
	if late {
		turn.Cancel()
		wait = maxHeldBack
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		late = true
	}
	if late {
		return engine.Refused("too_often", "cannot answer %s: more than %v requests a second come from there", key, perSecond).
			WithFix("ask less often, or have service.requestsPerSecond raised in the config")
	}
	return nil
}

// limiter is the one of a key, with the limit that is in force now.
func (p *pace) limiter(key string, perSecond float64) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.of[key]; l != nil && l.Limit() == rate.Limit(perSecond) {
		return l
	}
	if p.of == nil {
		p.of = map[string]*rate.Limiter{}
	}
	p.of[key] = rate.NewLimiter(rate.Limit(perSecond), int(math.Ceil(perSecond)))
	return p.of[key]
}
