package ociruntime

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestSweepVersions keeps the newest answer of each runtime, and what is being written.
func TestSweepVersions(t *testing.T) {
	dir := t.TempDir()
	files := map[string]time.Duration{
		"version-runc-1-2-3-4": 3 * time.Hour, "version-runc-1-5-3-4": time.Hour, "version-runc-1-6-3-4": 2 * time.Hour,
		"version-runsc-a-b-c-d": 5 * time.Hour, "version-runc-1-9-3-4.17": time.Hour, "version-runc-1-9-3-4.18": 0, "version-notes": time.Hour,
	}
	for name, age := range files {
		path, at := filepath.Join(dir, name), time.Now().Add(-age)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"version-runc-1-2-3-4", "version-runc-1-6-3-4", "version-runc-1-9-3-4.17"}
	for _, dryRun := range []bool{true, false} {
		got, err := SweepVersions(dir, dryRun)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("SweepVersions(%t) = %q, %v, want %q", dryRun, got, err, want)
		}
	}
	if got, err := SweepVersions(dir, false); err != nil || len(got) > 0 {
		t.Errorf("a second SweepVersions = %q, %v, want nothing", got, err)
	}
}
