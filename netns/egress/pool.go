package egress

import (
	"net/netip"
	"sync"

	"github.com/direct-oci/engine/netns"
)

// maxNames bounds the names one run can make the pool remember.
const maxNames = 8192

// pool gives each name an address that stands for it, the same one for the whole
// run, and never gives an address to a second name.
type pool struct {
	mu     sync.RWMutex
	byName map[string]netip.Addr
	byAddr map[netip.Addr]string
	last   netip.Addr
}

func newPool() *pool {
	return &pool{byName: map[string]netip.Addr{}, byAddr: map[netip.Addr]string{}, last: netns.Synthetic.Addr()}
}

// addr returns the address of a canonical name; false when the pool is full.
func (p *pool) addr(name string) (netip.Addr, bool) {
	p.mu.RLock()
	a, ok := p.byName[name]
	p.mu.RUnlock()
	if ok {
		return a, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, ok := p.byName[name]; ok {
		return a, true
	}
	if len(p.byName) >= maxNames {
		return netip.Addr{}, false
	}
	p.last = p.last.Next()
	if b := p.last.As4(); b[3] == 0 || b[3] == 255 {
		p.last = p.last.Next()
		if b[3] == 255 {
			p.last = p.last.Next()
		}
	}
	p.byName[name], p.byAddr[p.last] = p.last, name
	return p.last, true
}

func (p *pool) name(addr netip.Addr) (string, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	name, ok := p.byAddr[addr]
	return name, ok
}
