// Package integration holds the black-box tests: they run the built programs as a
// user would, on a real kernel, under every runtime, and look at what comes out, from
// outside and, with the probe, from inside a sandbox.
//
// They need root and pure cgroup v2, and change the machine they run on: make test-vm
// brings one of its own, make test-host takes this one. After every test the host is
// compared with what it was before.
package integration
