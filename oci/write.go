package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// configName is the bundle's one file, by the runtime-spec.
const configName = "config.json"

// document is a spec whose capability sets are written even when they are empty,
// which specs.Spec leaves out: a reader need not know what absence means.
type document struct {
	*specs.Spec
	Process process `json:"process"`
}

type process struct {
	*specs.Process
	Capabilities capabilitySets `json:"capabilities"`
}

type capabilitySets struct {
	Bounding    []string `json:"bounding"`
	Effective   []string `json:"effective"`
	Inheritable []string `json:"inheritable"`
	Permitted   []string `json:"permitted"`
	Ambient     []string `json:"ambient"`
}

// Marshal writes a rendered spec as config.json holds it: indented, and with all
// five capability sets present.
func Marshal(spec *specs.Spec) ([]byte, error) {
	if spec == nil || spec.Process == nil || spec.Process.Capabilities == nil {
		return nil, errors.New("internal error: spec without a process or its capabilities")
	}
	data, err := json.MarshalIndent(document{
		Spec:    spec,
		Process: process{Process: spec.Process, Capabilities: capabilitySets(*spec.Process.Capabilities)},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("cannot write spec as JSON: %w", err)
	}
	return append(data, '\n'), nil
}

// WriteBundle writes spec as dir's config.json, readable by the owner alone. The
// file appears whole or not at all. The directory must exist.
func WriteBundle(dir string, spec *specs.Spec) error {
	data, err := Marshal(spec)
	if err != nil {
		return err
	}
	// CreateTemp makes the file with mode 0600 and follows no link.
	f, err := os.CreateTemp(dir, "."+configName+"-*")
	if err != nil {
		return fmt.Errorf("cannot write bundle=%s: %w", dir, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, configName))
	}
	if err != nil {
		return fmt.Errorf("cannot write bundle=%s: %w", dir, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
