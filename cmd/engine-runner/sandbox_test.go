package main

import (
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/client/wire"
)

func TestParsePlace(t *testing.T) {
	for text, want := range map[string]place{
		"dev:/a/b":          {"dev", "/a/b"},
		"wf:1:step:/a":      {"wf:1:step", "/a"},
		"dev:/":             {"dev", "/"},
		"dev:/a/./b/.":      {"dev", "/a/./b/."},
		"a/b":               {"", "a/b"},
		"/a:/b":             {"", "/a:/b"},
		"./dev:/a":          {"", "./dev:/a"},
		"dir/dev:/a":        {"", "dir/dev:/a"},
		":/a":               {"", ":/a"},
		"dev:relative":      {"", "dev:relative"},
		"":                  {"", ""},
		"file:with:colons:": {"", "file:with:colons:"},
	} {
		if got := parsePlace(text); got != want {
			t.Errorf("parsePlace(%q) = %+v, want %+v", text, got, want)
		}
	}
}

// TestSandboxTable shows what a tenant chose, and nothing that steers a terminal.
func TestSandboxTable(t *testing.T) {
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	soon, oom := now.Add(90*time.Second), "oom"
	got := sandboxTable([]wire.Sandbox{
		{Name: "dev", ID: "aaaaaaaaaaaaaaa1", Owner: "uid 0", State: "ready", Alive: true, Image: "debian", Deadline: &soon, CreatedAt: now.Add(-time.Hour), Limits: wire.SandboxLimits{CPUs: 0.5, MemoryMB: 512}, Labels: map[string]string{"b": "2", "a": "\x1b[2J\t1"}},
		{Name: "old", ID: "aaaaaaaaaaaaaaa2", Owner: "\x1b]0;x\a", State: "ended", Rootfs: "/srv", CreatedAt: now.Add(-72 * time.Hour), Limits: wire.SandboxLimits{CPUs: 8, MemoryMB: 4096}, Result: &wire.Result{Reason: &oom}},
	}, now)
	want := strings.TrimPrefix(`
NAME  ID                OWNER         STATE        IMAGE   CPUS  MEMORY   AGE  LEFT  LABELS
dev   aaaaaaaaaaaaaaa1  uid 0         ready        debian  0.5   512MiB   1h   1m    a=\x1b[2J\t1,b=2
old   aaaaaaaaaaaaaaa2  \x1b]0;x\x07  ended (oom)  /srv    8     4096MiB  3d   -     -
`, "\n")
	if got != want {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
}
