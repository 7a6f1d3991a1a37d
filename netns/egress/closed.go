package egress

import (
	"fmt"
	"net/netip"
	"sync"
)

// Guard judges the addresses that this host itself connects to on somebody else's
// word, by the rules that hold for sandboxes: what is public is open, a private range
// has to be granted by a prefix within it, an address of this host, loopback and
// link-local ones one by one, and metadata services never are. The zero Guard grants
// nothing beyond what is public. It is safe for use by many goroutines.
type Guard struct {
	Allow []netip.Prefix

	once sync.Once
	own  hostAddrs
}

// Check returns an error that says why addr is closed, or nil.
func (g *Guard) Check(addr netip.Addr) error {
	g.once.Do(func() { g.own.list = interfaceAddrs })
	addr = addr.Unmap().WithZone("")
	r, closed, err := g.own.closedNow(addr)
	if err != nil {
		return err
	}
	if !closed {
		return nil
	}
	for _, p := range g.Allow {
		if p.Contains(addr) && r.opens(p) {
			return nil
		}
	}
	return fmt.Errorf("%s is %s", addr, r.what)
}
