package admission

import (
	"cmp"
	"slices"
)

// Snapshot is what is held and who waits, for people and for metrics.
type Snapshot struct {
	Draining bool          `json:"draining"`
	Total    Limits        `json:"total"` // the bounds
	Used     Limits        `json:"used"`
	Waiting  int           `json:"waiting"`
	Tenants  []TenantShare `json:"tenants"` // by name, those that hold something or wait
	Counters Counters      `json:"counters"`
}

// TenantShare is one tenant's part of a Snapshot.
type TenantShare struct {
	Name    string `json:"name"`
	Quota   Tenant `json:"quota"`
	Used    Limits `json:"used"`
	Waiting int    `json:"waiting"`
}

func (u use) limits() Limits {
	return Limits{u.sandboxes, u.memory, float64(u.microCPUs) / 1e6, u.pids}
}

// Snapshot returns the state of this moment.
func (g *Gate) Snapshot() Snapshot {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := Snapshot{
		Draining: g.draining, Total: g.config.Total, Used: g.used.limits(),
		Waiting: g.waiting, Tenants: []TenantShare{}, Counters: g.stats,
	}
	for _, t := range g.tenants {
		if t.used != (use{}) || t.queue.Len() > 0 {
			s.Tenants = append(s.Tenants, TenantShare{t.name, t.part, t.used.limits(), t.queue.Len()})
		}
	}
	slices.SortFunc(s.Tenants, func(a, b TenantShare) int { return cmp.Compare(a.Name, b.Name) })
	return s
}
