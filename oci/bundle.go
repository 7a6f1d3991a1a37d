package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// maxConfig bounds the config.json of a foreign bundle, in bytes.
const maxConfig = 4 << 20

// Bundle is what the engine runs of somebody's bundle. All else of a sandbox is
// the engine's own.
type Bundle struct {
	Root     string // absolute path on the host
	Args     []string
	Env      []string
	Cwd      string // inside
	UID      uint32 // inside; never 0
	GID      uint32
	Hostname string  // "": the engine's
	Umask    *uint32 // nil: the engine's
	Tmpfs    []Tmpfs // Size 0 where the bundle names none
	Rlimits  []Rlimit
}

// Change is one thing that the engine does otherwise than the bundle says.
type Change struct {
	Field string `json:"field"` // as in config.json, "process.terminal"
	Was   string `json:"was"`
	Now   string `json:"now"`
	Why   string `json:"why"`
}

// BundleError refuses a bundle for one field.
type BundleError struct {
	Field string // as in config.json, "mounts[3].source"; "config.json" for the file itself
	Value string
	Why   string
	Fix   string // one imperative sentence
}

func (e *BundleError) Error() string {
	return fmt.Sprintf("cannot accept %s=%.200q: %s", e.Field, e.Value, e.Why)
}

// Remedy says how the bundle becomes acceptable.
func (e *BundleError) Remedy() string { return e.Fix }

// ReadBundle reads the config.json of a bundle that others wrote, and refuses, as
// a *BundleError, what asks for the host or steers a runtime. What else the engine
// does in its own way is in the list of changes, in the order of config.json.
//
// The program's arguments and environment are always kept, HOME and TMPDIR apart,
// which must be writable; LD_PRELOAD and its kin touch only the sandboxed program.
// A working directory is kept unless it is "/", the default of every tool, where
// nothing can be written. With asIs all of these stay, and so does what takes no
// guarantee away: user and group that are not 0, host name, umask, resource limits
// below the engine's, tmpfs mounts of the bundle's own. Capabilities, namespaces,
// cgroup limits, devices, seccomp, masks and the mounts of the kernel's file
// systems are the engine's with asIs, too.
//
// SECURITY: a bundle names no file of the host but its own root.
// Holds because: binds are refused, root.path lies below dir and has no symbolic link in it.
// Not covered: somebody who may write to dir while it is read or run.
// Checked by: TestReadBundleRefuses, FuzzReadBundle.
func ReadBundle(dir string, asIs bool) (Bundle, []Change, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Bundle{}, nil, fmt.Errorf("cannot read bundle=%s: %w", dir, err)
	}
	data, err := readConfig(dir)
	if err != nil {
		return Bundle{}, nil, err
	}
	r := reader{asIs: asIs}
	if err := r.read(data); err != nil {
		return Bundle{}, nil, err
	}
	if r.bundle.Root, err = bundleRoot(dir, r.spec.Root.Path); err != nil {
		return Bundle{}, nil, err
	}
	return r.bundle, r.changes, nil
}

// readConfig reads a regular file and no link: a bundle could name a device or a
// file that only root may read.
func readConfig(dir string) ([]byte, error) {
	f, err := os.OpenFile(filepath.Join(dir, configName), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &BundleError{configName, dir, "there is no config.json in this folder", "name the folder that holds config.json and the root file system"}
	}
	if errors.Is(err, syscall.ELOOP) {
		return nil, &BundleError{configName, dir, "a symbolic link", "make config.json a regular file"}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read bundle=%s: %w", dir, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot read bundle=%s: %w", dir, err)
	}
	if !info.Mode().IsRegular() {
		return nil, &BundleError{configName, info.Mode().String(), "not a regular file", "make config.json a regular file"}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read bundle=%s: %w", dir, err)
	}
	if len(data) > maxConfig {
		return nil, &BundleError{configName, fmt.Sprintf("%d bytes", info.Size()), "longer than 4 MiB", "shorten config.json"}
	}
	return data, nil
}

// parse reads JSON strictly as to types and tolerantly as to fields that a later
// runtime-spec may have.
func parse(data []byte) (*specs.Spec, error) {
	var spec specs.Spec
	err := json.Unmarshal(data, &spec)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return nil, &BundleError{orConfig(wrong.Field), wrong.Value, "not of the type that the runtime-spec gives it", "write " + jsonType(wrong.Type) + " there"}
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return nil, &BundleError{configName, around(data, syntax.Offset), position(data, syntax.Offset) + ": " + syntax.Error(), "correct it there, or write config.json anew, for example with runc spec"}
	}
	if err != nil {
		return nil, &BundleError{configName, err.Error(), "not JSON of the runtime-spec", "write config.json anew, for example with runc spec"}
	}
	return &spec, nil
}

// position says where the parser stopped, after offset bytes.
func position(data []byte, offset int64) string {
	read := data[:max(offset-1, 0)]
	return fmt.Sprintf("line %d, column %d", bytes.Count(read, []byte("\n"))+1, len(read)-bytes.LastIndexByte(read, '\n'))
}

// around is the text at which the parser stopped.
func around(data []byte, offset int64) string {
	const before, after = 40, 20
	return string(data[max(offset-before, 0):min(offset+after, int64(len(data)))])
}

// jsonType names what JSON calls a type of Go's.
func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return jsonType(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "a number"
}

func orConfig(field string) string {
	if field == "" {
		return configName
	}
	return field
}

// bundleRoot finds the root file system below dir.
func bundleRoot(dir, unsafePath string) (string, error) {
	no := func(why string) (string, error) {
		return "", &BundleError{"root.path", unsafePath, why, "put the root file system into the bundle's folder and name it there, like rootfs"}
	}
	for _, part := range strings.Split(unsafePath, "/") {
		if part == ".." {
			return no("it goes up with ..")
		}
	}
	relative := filepath.Clean(unsafePath)
	if filepath.IsAbs(relative) {
		below, ok := strings.CutPrefix(relative, strings.TrimSuffix(dir, "/")+"/")
		if !ok {
			return no("outside the bundle")
		}
		relative = below
	}
	if relative == "." {
		return no("the bundle's folder itself, which holds config.json")
	}
	current := dir
	for _, part := range strings.Split(relative, "/") {
		current = filepath.Join(current, part)
		info, err := os.Lstat(current)
		if err != nil {
			return no("no such folder")
		}
		if !info.IsDir() {
			return no("a symbolic link or file is on the way")
		}
	}
	return current, nil
}
