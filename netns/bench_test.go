package netns

import (
	"net"
	"slices"
	"testing"
	"time"
)

// BenchmarkNewGateway reports the median and the 95th of a hundred too: the mean
// hides what one run feels.
func BenchmarkNewGateway(b *testing.B) {
	requireRoot(b)
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		g, err := NewGateway(GatewayConfig{Policy: mixed, Limits: Limits{Connections: 256}})
		took = append(took, time.Since(start))
		if err != nil {
			b.Fatal(err)
		}
		g.Close()
	}
	report(b, took)
}

// BenchmarkNewGatewayAfterPause has caches as cold as those of an engine that starts
// a run now and then.
func BenchmarkNewGatewayAfterPause(b *testing.B) {
	requireRoot(b)
	var took []time.Duration
	for b.Loop() {
		<-time.After(30 * time.Millisecond)
		start := time.Now()
		g, err := NewGateway(GatewayConfig{Policy: mixed, Limits: Limits{Connections: 256}})
		took = append(took, time.Since(start))
		if err != nil {
			b.Fatal(err)
		}
		g.Close()
	}
	report(b, took)
}

// BenchmarkNewGatewayAlive keeps what it makes, and tells the first tenth from the last.
func BenchmarkNewGatewayAlive(b *testing.B) {
	requireRoot(b)
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		g, err := NewGateway(GatewayConfig{Policy: mixed, Limits: Limits{Connections: 256}})
		took = append(took, time.Since(start))
		if err != nil {
			b.Fatal(err)
		}
		defer g.Close()
	}
	tenth := max(len(took)/10, 1)
	b.ReportMetric(ms(median(took[:tenth])), "first-ms")
	b.ReportMetric(ms(median(took[len(took)-tenth:])), "last-ms")
	report(b, took)
}

func BenchmarkCounters(b *testing.B) {
	g := newGateway(b, GatewayConfig{Policy: mixed})
	for b.Loop() {
		if _, err := g.Counters(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSetPolicy(b *testing.B) {
	g := newGateway(b, GatewayConfig{Policy: mixed})
	for b.Loop() {
		if err := g.SetPolicy(mixed); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkListen(b *testing.B) {
	g := newGateway(b, GatewayConfig{Policy: mixed})
	for b.Loop() {
		l, err := g.Listen("tcp", "0.0.0.0:1")
		if err != nil {
			b.Fatal(err)
		}
		l.Close()
	}
}

func BenchmarkTransfer(b *testing.B) {
	for _, upload := range []bool{true, false} {
		b.Run(map[bool]string{true: "sent", false: "received"}[upload], func(b *testing.B) {
			g := newGateway(b, GatewayConfig{Policy: mixed, Limits: Limits{Connections: 256}})
			const size = 256 << 20
			b.SetBytes(size)
			for b.Loop() {
				transfer(b, g, size, upload)
			}
		})
	}
}

// BenchmarkRefusal dials what is not allowed.
func BenchmarkRefusal(b *testing.B) {
	g := newGateway(b, GatewayConfig{Policy: mixed})
	err := within(int(g.sandbox.Fd()), func() error {
		for b.Loop() {
			if c, err := net.DialTimeout("tcp", "9.9.9.9:80", patience); err == nil {
				c.Close()
				b.Error("dialled what is not allowed")
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

func report(b *testing.B, took []time.Duration) {
	b.ReportMetric(ms(median(took)), "median-ms")
	slices.Sort(took)
	b.ReportMetric(ms(took[len(took)*95/100]), "p95-ms")
}

func median(took []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[len(sorted)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
