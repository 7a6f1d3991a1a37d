package main

import (
	"math"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	samples := []time.Duration{5, 1, 4, 2, 3}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 3, 0.9: 5, 1: 5} {
		if got := quantile(samples, q); got != want {
			t.Errorf("quantile %v of %v = %v, want %v", q, samples, got, want)
		}
	}
}

func TestUnexplained(t *testing.T) {
	tests := []struct {
		name   string
		timing timing
		want   float64
	}{
		{"nothing is explained without phases", timing{TotalMs: 3}, 3},
		{"phases side by side count once", timing{TotalMs: 4, Phases: []phase{{"a", 0, 2}, {"b", 1, 3}, {"c", 1.5, 0.5}}}, 0},
		{"gaps before, between and after", timing{TotalMs: 10, Phases: []phase{{"b", 5, 1}, {"a", 1, 2}}}, 7},
		{"a phase that outlasts the whole", timing{TotalMs: 2, Phases: []phase{{"a", 0, 3}}}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.timing.unexplained(); math.Abs(got-tt.want) > 1e-9 {
				t.Errorf("unexplained = %v ms, want %v", got, tt.want)
			}
		})
	}
}
