package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// timing is what a result says of where the time went.
type timing struct {
	TotalMs float64 `json:"totalMs"`
	Phases  []phase `json:"phases"`
}

type phase struct {
	Name    string  `json:"name"`
	StartMs float64 `json:"startMs"`
	Ms      float64 `json:"ms"`
}

// phases shows the medians of a run's phases, and what no phase explains.
func (b *bench) phases() error {
	starts, lengths := map[string][]time.Duration{}, map[string][]time.Duration{}
	var names []string
	var totals, gaps []time.Duration
	for range max(b.n/2, 5) {
		out, err := b.engine("embedded", []string{"/bin/true"}, "--json").Output()
		if err != nil {
			return fmt.Errorf("engine run --json: %w\n%s", err, out)
		}
		var result struct {
			Timing timing `json:"timing"`
		}
		if err := json.Unmarshal(out, &result); err != nil {
			return err
		}
		for _, p := range result.Timing.Phases {
			if !slices.Contains(names, p.Name) {
				names = append(names, p.Name)
			}
			starts[p.Name] = append(starts[p.Name], duration(p.StartMs))
			lengths[p.Name] = append(lengths[p.Name], duration(p.Ms))
		}
		totals = append(totals, duration(result.Timing.TotalMs))
		gaps = append(gaps, duration(result.Timing.unexplained()))
		time.Sleep(gap)
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(median(starts[a]), median(starts[b])) })
	fmt.Println("\nphases of an embedded run, medians")
	for _, name := range names {
		fmt.Printf("  %-12s from %6.2f ms, %6.2f ms long\n", name, millis(median(starts[name])), millis(median(lengths[name])))
	}
	share := 100 * float64(median(gaps)) / float64(median(totals))
	fmt.Printf("  %-12s %22.2f ms\n", "whole", millis(median(totals)))
	target(share < 10, "unexplained %.1f %%, to be less than 10", share)
	return nil
}

func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// unexplained is the part of the whole during which no phase was under way.
func (t timing) unexplained() float64 {
	phases := slices.Clone(t.Phases)
	slices.SortFunc(phases, func(a, b phase) int { return cmp.Compare(a.StartMs, b.StartMs) })
	var until, gaps float64
	for _, p := range phases {
		gaps += max(0, p.StartMs-until)
		until = max(until, p.StartMs+p.Ms)
	}
	return gaps + max(0, t.TotalMs-until)
}
