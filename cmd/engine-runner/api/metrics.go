package api

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/service"
	"github.com/direct-oci/engine/service/admission"
)

// metrics are the figures of one server. No label has a value that a caller can choose.
type metrics struct {
	registry *prometheus.Registry
	handler  http.Handler

	requests  *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	panics    prometheus.Counter
	reloads   *prometheus.CounterVec
	runs      *prometheus.CounterVec
	phases    *prometheus.HistogramVec
	decisions *prometheus.CounterVec
	leaks     *prometheus.CounterVec
	gcSeconds prometheus.Histogram
}

// Buckets of times, in seconds: of an answer, and of a step of a run.
var (
	answerBuckets = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10}
	phaseBuckets  = []float64{.0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 5, 20, 60, 300}
)

func newMetrics(log *slog.Logger) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	m := &metrics{
		registry:  prometheus.NewRegistry(),
		requests:  counter("engine_http_requests_total", "Requests answered; status 499: the client left before.", "method", "route", "status"),
		seconds:   histogram("engine_http_request_seconds", "Time to answer, of routes that do not wait for something else.", answerBuckets, "route"),
		reloads:   counter("engine_config_reloads_total", "Configs read again, by whether they are in force.", "result"),
		runs:      counter("engine_runs_ended_total", "Runs ended, by reason; refused: the program never started.", "reason", "runtime"),
		phases:    histogram("engine_run_phase_seconds", "Steps of runs.", phaseBuckets, "phase"),
		decisions: counter("engine_proxy_decisions_total", "Destinations of ended runs, by what was decided; rule of what was denied.", "decision", "rule"),
		leaks:     counter("engine_gc_found_total", "What gc found of dead runs: ended, removed, or stuck.", "action"),
		panics:    prometheus.NewCounter(prometheus.CounterOpts{Name: "engine_http_panics_total", Help: "Requests that met a bug."}),
		gcSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "engine_gc_seconds", Help: "Time of a collection.", Buckets: answerBuckets}),
	}
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "engine_info", Help: "Always 1, with the version."}, []string{"version"})
	info.WithLabelValues(engine.Version).Set(1)
	m.registry.MustRegister(m.requests, m.seconds, m.reloads, m.runs, m.phases, m.decisions, m.leaks, m.panics, m.gcSeconds, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	// A figure that cannot be had keeps no other back; it is counted and logged.
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		Registry: m.registry, ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError),
	})
	return m
}

// gauges adds what is read when it is asked for.
func (m *metrics) gauges(s *Server) {
	if s.sandboxes != nil {
		m.registry.MustRegister(room{s.sandboxes})
	}
	m.registry.MustRegister(
		linkMetrics{s},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "engine_runs_live", Help: "Runs known not to have ended."},
			func() float64 { return float64(s.follower.live()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "engine_draining", Help: "1: nothing new may start."}, func() float64 {
			if on, err := s.drain.on(); err != nil || on {
				return 1
			}
			return 0
		}),
	)
}

// room are the figures of sandboxes and of the room for them, read when they are asked for.
type room struct{ sandboxes *service.Manager }

var (
	sandboxesDesc = prometheus.NewDesc("engine_sandboxes", "Sandboxes on record, by state.", []string{"state"}, nil)
	waitingDesc   = prometheus.NewDesc("engine_admission_waiting", "Sandboxes that wait for room.", nil, nil)
	usedDesc      = prometheus.NewDesc("engine_admission_used", "What sandboxes take: memory in bytes, cpus, pids, and their number.", []string{"resource"}, nil)
	totalDesc     = prometheus.NewDesc("engine_admission_total", "The bounds of it; 0: none.", []string{"resource"}, nil)
	admittedDesc  = prometheus.NewDesc("engine_admission_decisions_total", "What became of those who asked for room.", []string{"decision"}, nil)
)

// Describe tells what Collect gives.
func (r room) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(r, to) }

// Collect reads the figures.
func (r room) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s := r.sandboxes.Gate().Snapshot()
	gauge(waitingDesc, float64(s.Waiting))
	for d, l := range map[*prometheus.Desc]admission.Limits{usedDesc: s.Used, totalDesc: s.Total} {
		gauge(d, float64(l.Sandboxes), "sandboxes")
		gauge(d, float64(l.Memory), "memory")
		gauge(d, l.CPUs, "cpus")
		gauge(d, float64(l.Pids), "pids")
	}
	for decision, n := range map[string]int64{"admitted": s.Counters.Admitted, "refused": s.Counters.Refused, "expired": s.Counters.Expired} {
		to <- prometheus.MustNewConstMetric(admittedDesc, prometheus.CounterValue, float64(n), decision)
	}
	all, err := r.sandboxes.List(context.Background(), service.Filter{})
	if err != nil {
		to <- prometheus.NewInvalidMetric(sandboxesDesc, err)
		return
	}
	states := map[service.State]int{service.Queued: 0, service.Starting: 0, service.Ready: 0, service.Paused: 0, service.Ended: 0}
	for _, one := range all {
		states[one.State]++
	}
	for state, n := range states {
		gauge(sandboxesDesc, float64(n), string(state))
	}
}

// methods are those that the API knows: a label never has a stranger's word.
var methods = map[string]bool{"GET": true, "HEAD": true, "POST": true, "PUT": true, "DELETE": true}

func (m *metrics) request(method, route string, status int, took time.Duration, long bool) {
	if !methods[method] {
		method = "other"
	}
	m.requests.WithLabelValues(method, route, strconv.Itoa(status)).Inc()
	if !long {
		m.seconds.WithLabelValues(route).Observe(took.Seconds())
	}
}

// ended counts a run that has ended.
func (m *metrics) ended(r engine.Result) {
	reason := "refused"
	if r.Reason != nil {
		reason = string(*r.Reason)
	}
	m.runs.WithLabelValues(reason, r.Runtime.Name).Inc()
	for _, p := range r.Timing.Phases {
		m.phases.WithLabelValues(p.Name).Observe(p.Ms / 1000)
	}
	for _, d := range r.Network.Denied {
		m.decisions.WithLabelValues("denied", d.Rule).Add(float64(d.Count))
	}
	for _, a := range r.Network.Allowed {
		m.decisions.WithLabelValues("allowed", "").Add(float64(a.Count))
	}
}

func (m *metrics) collected(actions []engine.GCAction, took time.Duration) {
	m.gcSeconds.Observe(took.Seconds())
	for _, a := range actions {
		m.leaks.WithLabelValues(a.Action).Inc()
	}
}

// Reloaded counts a config that was read again.
func (s *Server) Reloaded(err error) {
	result := "in force"
	if err != nil {
		result = "refused"
	}
	s.metrics.reloads.WithLabelValues(result).Inc()
}

func (s *Server) serveMetrics(x *exchange) error {
	s.metrics.handler.ServeHTTP(x.w, x.r)
	return nil
}
