// Package runner proves the governed runner from the outside: the programs as they are
// built, on real sandboxes, each test with directories and a cgroup of its own.
//
// The tests need root. On a host whose controllers belong to cgroup v1 they run with
// limits that nobody enforces.
package runner
