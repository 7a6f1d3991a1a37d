package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestGCDoesNotWaitForever gives doAll a task that hangs, one that fails and one that
// works, and wants to hear of all three soon after the deadline.
func TestGCDoesNotWaitForever(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	release := make(chan struct{})
	defer close(release)
	tasks := []task{
		{"a", "cgroup", func() ([]GCAction, error) { <-release; return nil, nil }},
		{"b", "directory", func() ([]GCAction, error) { return nil, errors.New("busy") }},
		{"c", "record", func() ([]GCAction, error) { return []GCAction{{"c", "record", actionEnd, "dead"}}, nil }},
	}
	start := time.Now()
	got := doAll(ctx, tasks)
	if took := time.Since(start); took > gcGrace+5*time.Second {
		t.Errorf("doAll took %v", took)
	}
	want := []GCAction{
		{"a", "cgroup", actionStuck, "it was not done in time, or hangs in the kernel"},
		{"b", "directory", actionStuck, "busy"},
		{"c", "record", actionEnd, "dead"},
	}
	if len(got) != len(want) {
		t.Fatalf("doAll = %+v, want %+v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("action %d = %+v, want %+v", i, got[i], want[i])
		}
	}
}

// TestAdmission compares what a host keeps free with what it has.
func TestAdmission(t *testing.T) {
	const tooMuch = 1 << 60
	tests := []struct {
		name         string
		disk, memory int64
		kind         string
	}{
		{"nothing asked for", -1, -1, ""},
		{"the default", 0, 0, ""},
		{"more disk than there is", tooMuch, 0, "disk_full"},
		{"more memory than there is", 0, tooMuch, "no_memory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			err := Host{StateDir: dir, RunDir: dir, MinFreeDisk: tt.disk, MinFreeMemory: tt.memory}.admit()
			var e *Error
			if errors.As(err, &e) != (tt.kind != "") || e != nil && (e.Kind != tt.kind || !strings.Contains(e.Fix, "--min-free-")) {
				t.Errorf("admit() = %v, want kind %q and a remedy", err, tt.kind)
			}
		})
	}
}
