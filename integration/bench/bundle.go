package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

func (b *bench) bundle() string { return filepath.Join(b.work, "bundle") }

// writeBundle makes the bundle of the bare runtimes: what runc spec writes, with
// /bin/true for a command and no terminal.
func (b *bench) writeBundle() error {
	if err := os.MkdirAll(b.bundle(), 0o755); err != nil {
		return err
	}
	path := filepath.Join(b.bundle(), "config.json")
	if err := os.RemoveAll(path); err != nil { // runc spec writes over nothing
		return err
	}
	if out, err := exec.Command(filepath.Join(b.bin, "runc"), "spec", "--bundle", b.bundle()).CombinedOutput(); err != nil {
		return fmt.Errorf("runc spec: %w\n%s", err, out)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := json.Unmarshal(data, &spec); err != nil {
		return err
	}
	process, ok := spec["process"].(map[string]any)
	if !ok {
		return fmt.Errorf("%s has no process", path)
	}
	process["terminal"] = false
	process["args"] = []string{"/bin/true"}
	spec["root"] = map[string]any{"path": b.root(), "readonly": true}
	if data, err = json.MarshalIndent(spec, "", "\t"); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
