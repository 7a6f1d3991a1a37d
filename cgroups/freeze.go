package cgroups

import (
	"fmt"
	"path/filepath"
	"time"
)

// freezeBound is how long Freeze waits for the last process to stop.
const freezeBound = 5 * time.Second

// Freeze stops all processes of the group and of those below it, or lets them go on. It
// returns once the kernel says that they have, and is idempotent. A frozen group can be
// killed like any other.
func (g Group) Freeze(on bool) error {
	want := "0"
	if on {
		want = "1"
	}
	if err := write(filepath.Join(g.Dir, "cgroup.freeze"), want); err != nil {
		return err
	}
	deadline := time.Now().Add(freezeBound)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		c, err := g.ReadCurrent()
		if err != nil || c.Frozen == on {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cannot change the freezing of cgroup %s to %s within %v", g.Dir, want, freezeBound)
		}
		time.Sleep(pause)
	}
}
