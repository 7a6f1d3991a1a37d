package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"time"
)

// gap is left between samples: what the one before does after it has answered must
// not fall into the next.
const gap = 60 * time.Millisecond

const warmups = 3

// pair is the samples of two things measured in turn.
type pair struct{ a, b []time.Duration }

// alternate takes n samples each of two commands, in turn and each first as often as
// the other, so that neither finds the better hour of the host.
func (b *bench) alternate(n int, nameA, nameB string, cmdA, cmdB func() *exec.Cmd) (pair, error) {
	var p pair
	for i := range n + warmups {
		order := []struct {
			name string
			cmd  func() *exec.Cmd
			into *[]time.Duration
		}{{nameA, cmdA, &p.a}, {nameB, cmdB, &p.b}}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, o := range order {
			took, err := timed(o.cmd())
			if err != nil {
				return p, err
			}
			if i >= warmups {
				*o.into = append(*o.into, took)
				b.sample(o.name, took)
			}
			time.Sleep(gap)
		}
	}
	return p, nil
}

// timed runs a command that must succeed.
func timed(cmd *exec.Cmd) (time.Duration, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil {
		return 0, fmt.Errorf("%s: %w\n%s", cmd.Path, err, stderr.Bytes())
	}
	return took, nil
}

// sample keeps one figure for benchstat.
func (b *bench) sample(name string, took time.Duration) {
	fmt.Fprintf(b.samples, "Benchmark%s 1 %d ns/op\n", name, took.Nanoseconds())
}

func (p pair) ratio() float64 { return float64(median(p.b)) / float64(median(p.a)) }

func (p pair) print(nameA, nameB string) {
	printSamples(nameA, p.a)
	printSamples(nameB, p.b)
}

func printSamples(name string, s []time.Duration) {
	fmt.Printf("  %-26s median %7.2f ms   least %7.2f   p90 %7.2f   n %d\n",
		name, millis(median(s)), millis(slices.Min(s)), millis(quantile(s, 0.9)), len(s))
}

func median(s []time.Duration) time.Duration { return quantile(s, 0.5) }

// quantile of samples, of which there is at least one.
func quantile(s []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}
