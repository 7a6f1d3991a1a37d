//go:build !failpoint

package engine

// failpoint marks a point between two steps of a run. It does nothing, except in
// programs built for the fault tests, see failpoint_on.go.
func failpoint(string) {}

// failpointEnv is what a monitor's environment has for the sake of failpoints.
func failpointEnv() []string { return nil }

// failpointGroup tells failpoints the run's cgroup.
func failpointGroup(string) {}
