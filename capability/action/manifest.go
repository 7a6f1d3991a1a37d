// Package action is capabilities that a customer installs: a directory each, with a
// manifest and the code, run in a sandbox like any other program.
//
// An action gets its arguments as one line of JSON on stdin and prints its output as
// JSON on stdout; both are held against the schemas of its manifest. What it prints
// on stderr is its progress. It has the secrets and the egress that its manifest
// declares. Its bytes are read anew for each call, and are part of what is approved.
package action

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/engine"
)

// ManifestName is the manifest's file in the directory of an action.
const ManifestName = "action.json"

// manifest is what an action says about itself.
type manifest struct {
	Name        string            `json:"name"`
	Description string            `json:"description"`
	Tags        []string          `json:"tags"`
	Hazard      capability.Hazard `json:"hazard"`
	Input       json.RawMessage   `json:"input"`
	Output      json.RawMessage   `json:"output"`
	Secrets     map[string]string `json:"secrets"` // why each is needed
	Egress      any               `json:"egress"`
	Limits      struct {
		CPUs           float64 `json:"cpus"`
		MemoryMB       float64 `json:"memoryMb"`
		TimeoutSeconds float64 `json:"timeoutSeconds"`
	} `json:"limits"`
	Entrypoint   string        `json:"entrypoint"`
	Dependencies *dependencies `json:"dependencies"` // nil: none are installed
}

// dependencies says how what its manifests name is installed.
type dependencies struct {
	Scripts bool `json:"scripts"`
}

const manifestSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["name", "description", "input", "output", "entrypoint"],
  "properties": {
    "name": {"type": "string", "maxLength": 100, "pattern": "^[a-zA-Z][a-zA-Z0-9_-]*(\\.[a-zA-Z0-9_-]+)*$"},
    "description": {"type": "string", "minLength": 1, "maxLength": 500},
    "tags": {"type": "array", "items": {"type": "string", "minLength": 1}},
    "hazard": {"enum": ["read", "write", "unknown"]},
    "input": {"type": "object"},
    "output": {"type": "object"},
    "secrets": {"type": "object", "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}, "additionalProperties": {"type": "string", "minLength": 1}},
    "egress": {"type": ["boolean", "string", "array"], "items": {"type": "string"}},
    "limits": {
      "type": "object",
      "additionalProperties": false,
      "properties": {
        "cpus": {"type": "number", "exclusiveMinimum": 0},
        "memoryMb": {"type": "number", "exclusiveMinimum": 0},
        "timeoutSeconds": {"type": "number", "exclusiveMinimum": 0}
      }
    },
    "entrypoint": {"type": "string", "minLength": 1},
    "dependencies": {"type": "object", "additionalProperties": false, "properties": {"scripts": {"type": "boolean"}}}
  }
}`

const (
	maxFiles = 4096
	maxBytes = 32 << 20
)

// read reads an action once: its files, and the manifest that is one of them. The error
// is about all that is wrong with the manifest.
func read(dir string) (manifest, []engine.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return manifest{}, nil, err
	}
	defer root.Close()
	files, err := readFiles(root)
	if err != nil {
		return manifest{}, nil, err
	}
	i := slices.IndexFunc(files, func(f engine.File) bool { return f.Path == ManifestName })
	if i < 0 {
		return manifest{}, nil, fmt.Errorf("cannot read %s: there is none", ManifestName)
	}
	m, err := parseManifest(files[i].Data)
	if err == nil {
		_, err = m.command(files)
	}
	return m, files, err
}

func parseManifest(data []byte) (manifest, error) {
	v, err := jsjson.Parse(data)
	if err != nil {
		return manifest{}, fmt.Errorf("cannot read %s: %w", ManifestName, err)
	}
	schema, err := capability.CompileSchema([]byte(manifestSchema))
	if err != nil {
		return manifest{}, err
	}
	if wrong := schema.Validate(v); wrong != nil {
		return manifest{}, fmt.Errorf("cannot accept %s: %w", ManifestName, wrong)
	}
	m := manifest{Hazard: capability.Write}
	// What was validated is read, and not what another reader makes of equal keys.
	canonical, err := jsjson.Canonical(v)
	if err == nil {
		err = json.Unmarshal(canonical, &m)
	}
	if err != nil {
		return manifest{}, fmt.Errorf("cannot accept %s: %w", ManifestName, err)
	}
	for name, text := range map[string]json.RawMessage{"input": m.Input, "output": m.Output} {
		if _, err := capability.CompileSchema(text); err != nil {
			return manifest{}, fmt.Errorf("cannot accept /%s of %s: %w", name, ManifestName, err)
		}
	}
	return m, nil
}

func readFile(root *os.Root, name string, limit int64) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("it is larger than %d bytes", limit)
	}
	return data, err
}

// readFiles reads all files of an action. A link is an error: what it leads to would
// not be what was reviewed.
func readFiles(root *os.Root) ([]engine.File, error) {
	var files []engine.File
	left := int64(maxBytes)
	err := fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("cannot use file=%q: it is not a regular file", path)
		}
		if !engine.ValidFilePath(path) {
			return fmt.Errorf("cannot use file=%q: a sandbox cannot have a file of this name", path)
		}
		if len(files) == maxFiles {
			return fmt.Errorf("cannot use more than %d files", maxFiles)
		}
		data, err := readFile(root, path, left)
		if err != nil {
			return fmt.Errorf("cannot use file=%q: %w", path, err)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		left -= int64(len(data))
		mode := uint32(0o644)
		if info.Mode()&0o100 != 0 || bytes.HasPrefix(data, []byte("#!")) {
			mode = 0o755
		}
		files = append(files, engine.File{Path: path, Data: data, Mode: mode})
		return nil
	})
	return files, err
}

// command is what runs the entrypoint.
func (m manifest) command(files []engine.File) ([]string, error) {
	i := slices.IndexFunc(files, func(f engine.File) bool { return f.Path == m.Entrypoint })
	if i < 0 {
		return nil, fmt.Errorf("cannot run /entrypoint=%q: it is none of the files", m.Entrypoint)
	}
	program, known := sandbox.Interpreter(m.Entrypoint, string(files[i].Data[:min(2, len(files[i].Data))]))
	switch {
	case known && program != "":
		return []string{program, "/workload/" + m.Entrypoint}, nil
	case known || files[i].Mode&0o100 != 0:
		return []string{"/workload/" + m.Entrypoint}, nil
	}
	return nil, fmt.Errorf("cannot run /entrypoint=%q: nothing is known to run it", m.Entrypoint)
}

// secretNames are the names that the manifest declares, sorted.
func (m manifest) secretNames() []string {
	names := []string{}
	for name := range m.Secrets {
		names = append(names, name)
	}
	slices.SortFunc(names, strings.Compare)
	return names
}
