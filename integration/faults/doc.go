// Package faults proves that the engine may be killed, and its host refuse any call, at
// any instruction: afterwards every run is finished with its result, still running and
// watched, or reported as lost or interrupted, and nothing of it is left on the host.
//
//	TestKillMatrix       kill -9 of the caller, the monitor and the sandbox at every step
//	TestCollectorKilled  kill -9 of engine gc at every step
//	TestEverySyscall     the monitor's n-th system call fails, or is its last
//	TestRuntimeKilled    the runtime's n-th system call is its last
//	TestPowerCut         the machine loses its power under load, at random moments
//	TestSoak             many runs, 30 % of them killed at random moments
//	TestSessionKillMatrix, TestSessionEverySyscall, TestSessionDiskFull, TestSessionFewDescriptors
//	                     the same of sessions, while they start, record and end programs
//
// and some more for records, for exhausted resources and for gc. Each test works in
// directories and a cgroup of its own, so they need root and a cgroup2 mount, and not
// the machine for themselves. In the test machine (make test-vm) they take a sample;
// ENGINE_FAULTS=all, which make test-faults sets, makes them take everything, and
// ENGINE_FAULTS=sample a sample on this host.
package faults
