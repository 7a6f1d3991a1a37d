package engine

import (
	"testing"

	"github.com/direct-oci/engine/engine/journal"
)

// TestHistoryIsBounded adds records by number and by size, and wants the oldest gone.
func TestHistoryIsBounded(t *testing.T) {
	for _, tt := range []struct {
		name string
		size int64
		asks int64
		add  int
		want int // that stay
	}{
		{"small ones", 100, 100, execsKept + 50, execsKept},
		{"large ones", maxHistory / 10, 100, 50, 10},
		{"larger than all", maxHistory + 1, 100, 3, 1},
		{"large commands", 100, maxAsked / 10, 50, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var h history
			var first []*journal.ExecRecord
			var gone []*journal.ExecRecord
			for range tt.add {
				r := new(journal.ExecRecord)
				first = append(first, r)
				gone = append(gone, h.add(kept{r, tt.size, tt.asks})...)
			}
			if len(h.records) != tt.want || len(gone) != tt.add-tt.want {
				t.Fatalf("%d stay and %d went, want %d to stay", len(h.records), len(gone), tt.want)
			}
			for i, r := range gone {
				if r != first[i] {
					t.Fatalf("record %d went before an older one", i)
				}
			}
			if want := int64(tt.want) * tt.size; h.bytes != want {
				t.Errorf("bytes = %d, want %d", h.bytes, want)
			}
			if want := int64(tt.want) * tt.asks; h.asked != want {
				t.Errorf("asked = %d, want %d", h.asked, want)
			}
		})
	}
}
