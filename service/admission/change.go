package admission

// Change puts other bounds into force. What is held stays held, though it be more than may
// be now: nothing starts then until enough of it was given up. Who waits goes on to, for as
// long as was said when they came, but for those who would wait in vain now, or were above
// their tenant's new quota: they are refused.
func (g *Gate) Change(c Config) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.config = c.completed()
	for _, t := range g.tenants {
		t.part = g.config.part(t.name)
		before := t.used
		for at := t.queue.Front(); at != nil; {
			w := at.Value.(*waiter)
			at = at.Next()
			if err := g.neverFits(t, w.id, before, w.need); err != nil {
				g.unqueue(t, w)
				g.keptInVain(w)
				g.stats.Refused++
				w.granted <- err
				continue
			}
			before = before.add(w.need)
		}
	}
	g.dispatch() // there may be room now
	for _, t := range g.tenants {
		g.forget(t)
	}
}
