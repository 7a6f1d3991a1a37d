// Package workload is workload.execute: a program that somebody wrote for the
// occasion, run once in a sandbox, with the files, the secrets and the network that a
// human approved and nothing else.
//
// A Spec is what was asked for, and its Digest names it: the same digest as the
// JavaScript program computes, so that approvals outlive the change of programs.
package workload
