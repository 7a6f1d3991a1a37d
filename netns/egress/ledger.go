package egress

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// Sink receives decisions, one call each, from many goroutines. It must not block.
// After maxReported calls there are no more, so a guest cannot fill a disk; the
// counts of Stats go on.
type Sink interface {
	Decision(Decision)
}

const (
	maxReported     = 20_000
	maxDestinations = 1024
)

// Others stands for the destinations that did not fit into Stats.
const Others = "(others)"

// Destination is what happened to one destination, all its connections together.
type Destination struct {
	Host    string `json:"host"` // a name, or an address in text
	Port    uint16 `json:"port"`
	Proto   string `json:"proto"`
	Rule    string `json:"rule"`
	Count   int64  `json:"count"`
	TxBytes int64  `json:"txBytes"` // payload out of the sandbox; 0 when denied
	RxBytes int64  `json:"rxBytes"`
}

// Stats is a copy of the counts so far, in the order of host, port, proto and rule.
type Stats struct {
	Denied  []Destination `json:"denied"`
	Allowed []Destination `json:"allowed"`
	Open    int           `json:"open"` // connections right now
}

type destKey struct {
	host  string
	port  uint16
	proto string
	rule  string
}

type traffic struct {
	count  int64 // guarded by ledger.mu
	tx, rx atomic.Int64
}

// ledger counts decisions and bytes per destination, in bounded memory.
type ledger struct {
	sink     Sink
	reported atomic.Int64

	mu      sync.Mutex
	denied  map[destKey]*traffic
	allowed map[destKey]*traffic
}

func newLedger(sink Sink) *ledger {
	return &ledger{sink: sink, denied: map[destKey]*traffic{}, allowed: map[destKey]*traffic{}}
}

// record counts a decision and reports it. The result is where the bytes of an
// allowed one are counted.
func (l *ledger) record(d Decision) *traffic {
	if l.sink != nil && l.reported.Add(1) <= maxReported {
		l.sink.Decision(d)
	}
	host := d.Host
	if host == "" && d.Addr.IsValid() {
		host = d.Addr.String()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.denied
	if d.Allowed {
		m = l.allowed
	}
	key := destKey{host, d.Port, d.Proto, d.Rule}
	t, ok := m[key]
	if !ok && len(m) >= maxDestinations {
		key = destKey{Others, 0, d.Proto, ""}
		t, ok = m[key]
	}
	if !ok {
		t = &traffic{}
		m[key] = t
	}
	t.count += d.Count
	return t
}

func (l *ledger) stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{Denied: destinations(l.denied), Allowed: destinations(l.allowed)}
}

func destinations(m map[destKey]*traffic) []Destination {
	list := make([]Destination, 0, len(m))
	for k, t := range m {
		list = append(list, Destination{k.host, k.port, k.proto, k.rule, t.count, t.tx.Load(), t.rx.Load()})
	}
	slices.SortFunc(list, func(a, b Destination) int {
		return cmp.Or(cmp.Compare(hostKey(a.Host), hostKey(b.Host)), cmp.Compare(a.Host, b.Host),
			cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Rule, b.Rule))
	})
	return list
}

// hostKey sorts addresses by value and before names.
func hostKey(host string) string {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return "\xff"
	}
	b := addr.As16()
	return string(b[:])
}
