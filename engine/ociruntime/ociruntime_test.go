package ociruntime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestVersionsAreJudged(t *testing.T) {
	tests := []struct {
		runtime, version string
		want             string // fine, warned or refused
	}{
		{"runc", "1.5.3", "fine"},
		{"runc", "1.6.0", "fine"},
		{"runc", "2.0", "fine"},
		{"runc", "1.5.2", "warned"},
		{"runc", "1.5.3-rc.1", "warned"},
		{"runc", "1.2.0", "warned"},
		{"runc", "1.1.15", "refused"},
		{"runc", "1.1.5+ds1", "refused"},
		{"runc", "nonsense", "refused"},
		{"crun", "1.20", "fine"},
		{"crun", "1.8.1", "warned"},
		{"crun", "0.17", "refused"},
		{"runsc", "release-20260905-160fafc42237", "fine"},
		{"runsc", "release-20260905.0", "fine"},
		{"runsc", "release-20250101.0", "warned"},
		{"runsc", "release-20221219.0", "refused"},
		{"runsc", "VERSION_MISSING", "warned"},
	}
	for _, tt := range tests {
		warning, refused := Floor(tt.runtime, tt.version)
		got := "fine"
		if warning != "" {
			got = "warned"
		}
		if refused != nil {
			got = "refused"
		}
		if got != tt.want {
			t.Errorf("%s %s is %s (%s%v), want %s", tt.runtime, tt.version, got, warning, refused, tt.want)
		}
	}
}

func TestParseVersion(t *testing.T) {
	for out, want := range map[string]string{
		"runc version 1.5.3\ncommit: x\nspec: 1.2.1\n":               "1.5.3",
		"crun version 1.8.1\ncommit: f8a\n":                          "1.8.1",
		"runsc version release-20260905-160fafc42237\nspec: 1.2.1\n": "release-20260905-160fafc42237",
		"something else": "",
		"version":        "",
		"":               "",
	} {
		if got := parseVersion(out); got != want {
			t.Errorf("parseVersion(%q) = %q, want %q", out, got, want)
		}
	}
}

// TestFindRemembersAndNoticesChange wants a runtime's version asked once, and asked
// again when the program is another one.
func TestFindRemembersAndNoticesChange(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	install := func(version string) {
		script := "#!/bin/sh\necho asked >>" + dir + "/asked\necho runc version " + version + "\n"
		tmp := filepath.Join(dir, "new")
		if err := os.WriteFile(tmp, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, "runc")); err != nil {
			t.Fatal(err)
		}
	}
	find := func() Info {
		r, err := Find(context.Background(), "runc", []string{dir}, cache)
		if err != nil {
			t.Fatal(err)
		}
		return r.Info()
	}
	install("1.5.3")
	find()
	if got := find().Version; got != "1.5.3" {
		t.Errorf("version = %q, want 1.5.3", got)
	}
	asked, err := os.ReadFile(filepath.Join(dir, "asked"))
	if err != nil || strings.Count(string(asked), "asked") != 1 {
		t.Errorf("the program was asked %d times (%v), want once", strings.Count(string(asked), "asked"), err)
	}
	install("1.9.0")
	if got := find().Version; got != "1.9.0" {
		t.Errorf("version after an upgrade = %q, want 1.9.0", got)
	}
	install("1.0.0")
	_, err = Find(context.Background(), "runc", []string{dir}, cache)
	var unsupported *UnsupportedError
	if !errors.As(err, &unsupported) || unsupported.Remedy() == "" {
		t.Errorf("Find of runc 1.0.0 = %v, want an UnsupportedError with a remedy", err)
	}
}

// TestRunscFlagsAreComplete keeps the switches that isolation rests on.
func TestRunscFlagsAreComplete(t *testing.T) {
	flags := runscFlags(Container{StateDir: "/x"})
	for _, want := range []string{
		"--platform=systrap", "--network=none", "--net-raw=false", "--allow-packet-socket-write=false",
		"--host-uds=none", "--host-fifo=none", "--overlay2=none", "--allow-flag-override=false",
		"--allow-suid=false", "--debug=false",
	} {
		if !slices.Contains(flags, want) {
			t.Errorf("runsc is not told %s", want)
		}
	}
	if slices.Contains(flags, "--network=host") || slices.Contains(runscFlags(Container{Network: true}), "--network=host") {
		t.Error("runsc is given the host's network")
	}
}

// TestStartReportsTheRuntimesWords wants the runtime's own error, from its log, in
// what Start returns.
func TestStartReportsTheRuntimesWords(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "runc")
	script := "#!/bin/sh\nprintf '{\"level\":\"info\",\"msg\":\"x\"}\\n{\"level\":\"error\",\"msg\":\"no such\\\\nthing\"}\\n' >" + dir + "/log.json\necho noise >&2\nexit 4\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r, err := New("runc", path, "1.5.3")
	if err != nil {
		t.Fatal(err)
	}
	guest, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	err = r.Start(context.Background(), Container{ID: "x", Bundle: dir, StateDir: dir, Guest: guest})
	if err == nil || !strings.Contains(err.Error(), "no such thing") || strings.Contains(err.Error(), "noise") {
		t.Errorf("Start = %v, want the error of the runtime's log alone", err)
	}
}
