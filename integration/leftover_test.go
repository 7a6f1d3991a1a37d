package integration

import (
	"testing"

	"github.com/direct-oci/engine/integration/testenv"
)

// TestRunLeavesNothing proves that a run is gone without a trace when engine run
// returns, but for its record.
func TestRunLeavesNothing(t *testing.T) {
	testenv.RequireCgroup(t, "cpu", "memory", "pids")
	root := testenv.BusyboxRoot(t)
	testenv.EachRuntime(t, func(t *testing.T, runtime string) {
		testenv.NothingLeft(t)
		res := testenv.Exec(t, "run", "--runtime", runtime, "--rootfs", root, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
		if res.Stdout != "out\n" || res.Stderr != "err\n" || res.Status != 7 {
			t.Errorf("want stdout out, stderr err, status 7, got\n%s", res)
		}
	})
}
