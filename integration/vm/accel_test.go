package vm

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestProbeOfHangingKVMEnds gives the probe an emulator that never boots, as on
// hosts where KVM is there and does not work.
func TestProbeOfHangingKVMEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	fake := filepath.Join(dir, program)
	if err := os.WriteFile(fake, []byte("#!/bin/sh\necho $$ >"+pidFile+"\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if probe(context.Background(), spec{program: fake}) {
		t.Error("probe = true, want false")
	}
	if took := time.Since(start); took > probeLimit+5*time.Second {
		t.Errorf("the probe took %v, want about %v", took, probeLimit)
	}
	data, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("the emulator, process %d, still runs", pid)
	}
}

func TestImageKeyFollowsContent(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "f")
	key := func(content string, mode os.FileMode) string {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		k, err := keyOf([]entry{{name: "bin/f", mode: mode, source: file}})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := key("one", 0o755)
	if again := key("one", 0o755); again != first {
		t.Errorf("key of the same content = %s, want %s", again, first)
	}
	if other := key("two", 0o755); other == first {
		t.Error("another content has the same key")
	}
	if other := key("one", 0o644); other == first {
		t.Error("another mode has the same key")
	}
}
