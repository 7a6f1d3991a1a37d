package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestOpenConfig refuses a config that anybody could put commands into.
func TestOpenConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte("development: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		mode os.FileMode
		ok   bool
	}{{0o600, true}, {0o644, true}, {0o664, true}, {0o646, false}, {0o666, false}} {
		if err := os.Chmod(path, tt.mode); err != nil {
			t.Fatal(err)
		}
		_, err := Load(path)
		var bad *Error
		if (err == nil) != tt.ok || err != nil && (!errors.As(err, &bad) || bad.Remedy() != "run chmod o-w "+path) {
			t.Errorf("mode %v: %v", tt.mode, err)
		}
	}
}
