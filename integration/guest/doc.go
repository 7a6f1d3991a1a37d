// Package guest proves from the outside what programs and their callers have of the
// sandbox's own file systems: terminals and files by /.engine/guest, on real sandboxes
// under every runtime, each test with directories and a cgroup of its own.
//
// The tests need root. On a host whose controllers belong to cgroup v1 they run with
// limits that nobody enforces, and where root itself is limited, without crun.
package guest
