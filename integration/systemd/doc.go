// Package systemd tests the engine as a service under a real systemd: a small Debian
// that is booted in namespaces and a cgroup of its own, in the test machine, where limits
// are real, or on this host. The engine is put into it as make install does.
package systemd
