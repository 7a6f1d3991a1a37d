package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOpenToAll shows which files of secrets the check warns of.
func TestOpenToAll(t *testing.T) {
	top, err := os.MkdirTemp("", "open") // t.TempDir is below a directory of its owner's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	path := filepath.Join(top, "secret")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name      string
		dir, file os.FileMode
		want      bool
	}{
		{"its owner's alone", 0o755, 0o600, false},
		{"its group's too", 0o755, 0o640, false},
		{"everybody's", 0o755, 0o644, true},
		{"everybody's, in a directory that is closed", 0o700, 0o644, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.Chmod(path, tt.file); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(top, tt.dir); err != nil {
				t.Fatal(err)
			}
			if got := openToAll(path); got != tt.want {
				t.Errorf("openToAll = %v, want %v", got, tt.want)
			}
		})
	}
	if openToAll(filepath.Join(top, "none")) || openToAll("") {
		t.Error("a file that is not there is open")
	}
}
