// Package service proves the service from the outside: engine serve as it is built, its
// clients, and real sandboxes behind it, each test with directories and a cgroup of its
// own.
//
// The tests need root. On a host whose controllers belong to cgroup v1 they run with
// limits that nobody enforces. Those of the TypeScript client need node.
package service
