package main

import (
	"testing"

	"github.com/direct-oci/engine/rootfs/image/tree"
)

// TestAFullDiskIsTheOperatorsTurn proves that an image which does not fit is told apart
// from one that is larger than any may be.
func TestAFullDiskIsTheOperatorsTurn(t *testing.T) {
	for _, tt := range []struct {
		limit   int64
		kind    string
		request bool
	}{{4096, "no_space", false}, {64 << 30, "bad_image", true}} {
		f := describe(&tree.LimitError{What: "bytes of files", Limit: tt.limit})
		if f.Kind != tt.kind || f.Request != tt.request {
			t.Errorf("a limit of %d bytes is %q, the caller's turn %v; want %q, %v", tt.limit, f.Kind, f.Request, tt.kind, tt.request)
		}
	}
}
