package integration

import (
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/direct-oci/engine/integration/testenv"
)

// TestFirstRunsLoadOverlay proves that of several runs at once, the first since boot,
// none is refused because the kernel is still loading overlayfs for another.
func TestFirstRunsLoadOverlay(t *testing.T) {
	if !testenv.InVM() {
		t.Skip("the test machine only: it takes a module out of the kernel")
	}
	begin(t)
	for range 5 {
		testenv.WaitFor(t, testenv.Patience, "no overlay to be in use", func() bool {
			_, err := os.Stat("/sys/module/overlay")
			return err != nil || exec.Command("rmmod", "overlay").Run() == nil
		})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				r := testenv.Exec(t, runArgs("embedded", nil, "/bin/sh", "-c", "exit 0")...)
				if r.Status != 0 {
					t.Error(r)
				}
			})
		}
		wg.Wait()
	}
}
