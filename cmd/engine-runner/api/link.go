package api

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/cmd/engine-runner/link"
	"github.com/direct-oci/engine/engine"
)

// linkBound is how long the link may be down without being a failure: a plane that is
// restarted is back before, and the longest wait between two attempts is half of it.
const linkBound = 2 * time.Minute

// linkFigures are those of the link; false: the config has no control plane.
func (s *Server) linkFigures() (link.Figures, bool) {
	if s.link == nil {
		return link.Figures{}, false
	}
	f := s.link()
	return f, f.URL != ""
}

// linkChecks is what health says of the link. Its failure is a minor one: runs of all other
// callers start without it, and whoever restarts this service for it, or sends its callers
// elsewhere, makes the plane's outage theirs.
func (s *Server) linkChecks() []wire.Check {
	f, there := s.linkFigures()
	if !there {
		return nil
	}
	since := time.Since(f.Since).Round(time.Second)
	cause := cmp.Or(f.Cause, "no attempt has ended yet")
	var c wire.Check
	switch {
	case f.Up:
		c = check("link", "connected to "+f.URL+" for "+since.String()+", heard "+time.Since(f.Heard).Round(time.Second).String()+" ago", nil)
	case since < linkBound:
		c = check("link", "not connected to "+f.URL+" for "+since.String()+": "+cause, nil)
	default:
		c = check("link", "", engine.Failed("link_down", "cannot reach the control plane at url=%s for %v: %s", f.URL, since, cause).
			WithFix("look at the control plane, the network between, and controlPlane in the config: everything else goes on"))
	}
	c.Minor = true
	return []wire.Check{c}
}

// linkMetrics are the figures of the link, read when they are asked for.
type linkMetrics struct{ server *Server }

var (
	linkConnected = prometheus.NewDesc("engine_link_connected", "1: connected to the control plane.", nil, nil)
	linkConnects  = prometheus.NewDesc("engine_link_connects_total", "How often the link came up.", nil, nil)
	linkFailures  = prometheus.NewDesc("engine_link_failures_total", "How often it did not, or was lost, by why.", []string{"reason"}, nil)
	linkMessages  = prometheus.NewDesc("engine_link_messages_total", "Messages of the control plane (in) and to it (out).", []string{"direction"}, nil)
	linkHeard     = prometheus.NewDesc("engine_link_heard_seconds", "Since the control plane last said or answered something.", nil, nil)
	linkRoundTrip = prometheus.NewDesc("engine_link_round_trip_seconds", "Until the last ping was answered.", nil, nil)
	linkRequests  = prometheus.NewDesc("engine_link_requests_total", "Requests of the control plane, by what became of them; kind of what was refused.", []string{"request", "verdict", "kind"}, nil)
	linkOutbox    = prometheus.NewDesc("engine_link_outbox", "Invocations on disk: running, or answered and not acknowledged.", []string{"state"}, nil)
	linkBytes     = prometheus.NewDesc("engine_link_outbox_bytes", "What they take, with room for results to come.", nil, nil)
	linkMaxBytes  = prometheus.NewDesc("engine_link_outbox_max_bytes", "The most that they may take.", nil, nil)
	linkOldest    = prometheus.NewDesc("engine_link_outbox_oldest_seconds", "Age of the result that waits longest for its acknowledgement; 0: none waits.", nil, nil)
)

// Describe says nothing beforehand: there are figures only while there is a control plane.
func (linkMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect reads the figures.
func (m linkMetrics) Collect(to chan<- prometheus.Metric) {
	f, there := m.server.linkFigures()
	if !there {
		return
	}
	tell := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	up, oldest := 0.0, 0.0
	if f.Up {
		up = 1
	}
	if !f.Oldest.IsZero() {
		oldest = time.Since(f.Oldest).Seconds()
	}
	tell(linkConnected, gauge, up)
	tell(linkConnects, counter, float64(f.Connects))
	for _, reason := range link.Reasons {
		tell(linkFailures, counter, float64(f.Failures[reason]), reason)
	}
	tell(linkMessages, counter, float64(f.In), "in")
	tell(linkMessages, counter, float64(f.Out), "out")
	if !f.Heard.IsZero() {
		tell(linkHeard, gauge, time.Since(f.Heard).Seconds())
	}
	if f.RoundTrip > 0 {
		tell(linkRoundTrip, gauge, f.RoundTrip.Seconds())
	}
	for v, n := range f.Requests {
		tell(linkRequests, counter, float64(n), v.Request, v.Verdict, v.Kind)
	}
	tell(linkOutbox, gauge, float64(f.Running), "running")
	tell(linkOutbox, gauge, float64(f.Waiting), "answered")
	tell(linkBytes, gauge, float64(f.Bytes))
	tell(linkMaxBytes, gauge, float64(f.MaxBytes))
	tell(linkOldest, gauge, oldest)
}
