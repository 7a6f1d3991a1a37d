// Package integration holds the black-box tests of the built binaries on a real
// kernel. They run in the test machine (make test-vm), or on a host set apart for
// them (make test-host); elsewhere they are skipped.
package integration
