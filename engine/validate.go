package engine

import (
	"math"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/oci"
)

// Bounds of what may be asked for. They keep arithmetic and kernel interfaces far
// from their edges; an operator's maxima are a matter for the caller.
const (
	maxCPUs    = 4096
	minMemory  = 4 << 20
	maxBytes   = 1 << 50
	minTmpfs   = 4 << 10
	maxPids    = 4 << 20
	maxTimeout = 366 * 24 * time.Hour
	maxCommand = 1 << 20 // bytes of argv, and of the environment
	maxLabels  = 64
	maxLabel   = 1 << 10
	maxID      = 65535 // highest uid or gid of a run's own block
	maxTmpfs   = 16
	maxMounts  = 32
	maxSecret  = 1 << 20 // bytes of one secret
	maxFiles   = 4096
	maxFile    = 32 << 20 // bytes of all files together
	maxPath    = 1024     // bytes of a file's path
	maxSecrets = 4 << 20  // of all of them; with the command and the environment they fit into one message
)

// Runtimes are the names a request may give.
var Runtimes = []string{"auto", "direct", "embedded", "runc", "crun", "runsc"}

// Validate reports the first thing that is wrong with the request, as an *Error of
// class request. It looks at nothing but the request.
func (r Request) Validate() error {
	r.Limits = r.Limits.Sized()
	if r.ID != "" && !journal.ValidID(r.ID) {
		return Refused("bad_id", "cannot accept id=%q: want 16 lower-case letters and digits", r.ID)
	}
	if !slices.Contains(Runtimes, r.Runtime) {
		return Refused("bad_runtime", "cannot accept runtime=%q: want one of %s", r.Runtime, strings.Join(Runtimes, ", "))
	}
	if (r.Image == "") == (r.Rootfs == "") {
		return Refused("bad_root", "cannot choose a root: want exactly one of image=%q and rootfs=%q", r.Image, r.Rootfs).
			WithFix("name an imported image, or a directory: --image or --rootfs")
	}
	if r.Rootfs != "" && (!path.IsAbs(r.Rootfs) || path.Clean(r.Rootfs) == "/") {
		return Refused("bad_root", "cannot accept rootfs=%q: want the absolute path of a directory other than /", r.Rootfs)
	}
	if err := r.Egress.Validate(); err != nil {
		return Refused("bad_network", "%w", err)
	}
	for _, check := range []func() error{r.validateProgram, r.validateUser, r.validateLabels, r.Limits.validate, r.validateBundle, r.validateMounts, r.validateFiles, r.validateLayers, r.validateSession} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (r Request) validateProgram() error {
	if len(r.Command) == 0 && r.Image == "" && r.Session == nil || len(r.Command) > 0 && r.Command[0] == "" {
		return Refused("bad_command", "cannot accept command=%q: it names no program", r.Command)
	}
	size := 0
	for _, a := range r.Command {
		if size += len(a) + 1; strings.ContainsRune(a, 0) {
			return Refused("bad_command", "cannot accept argument=%q: it holds a NUL byte", a)
		}
	}
	if size > maxCommand {
		return Refused("bad_command", "cannot accept a command of %d bytes: the limit is %d", size, maxCommand)
	}
	size = 0
	for _, kv := range r.Env {
		if size += len(kv) + 1; size > maxCommand {
			return Refused("bad_env", "cannot accept an environment of more than %d bytes", maxCommand)
		}
		name, _, ok := strings.Cut(kv, "=")
		if !ok || !ValidEnvName(name) || strings.ContainsRune(kv, 0) {
			return Refused("bad_env", "cannot accept env=%q: want NAME=VALUE, the name of letters, digits and _", kv)
		}
	}
	for _, name := range r.SecretNames {
		if !ValidEnvName(name) {
			return Refused("bad_secret", "cannot accept secret=%q: want a name of letters, digits and _", name)
		}
	}
	if r.Workdir != "" {
		return validateInside("workdir", r.Workdir)
	}
	return nil
}

// validateInside checks a path inside the sandbox: absolute, clean, and not in
// a file system of the kernel's (CVE-2024-21626 used /proc/self/fd/N).
func validateInside(what, unsafePath string) error {
	clean := path.Clean(unsafePath)
	if !path.IsAbs(unsafePath) || strings.ContainsRune(unsafePath, 0) || len(unsafePath) > 4000 {
		return Refused("bad_"+what, "cannot accept %s=%q: want an absolute path inside the sandbox", what, unsafePath)
	}
	for _, dir := range []string{"/proc", "/sys", "/dev", "/.engine"} {
		if clean == dir || strings.HasPrefix(clean, dir+"/") {
			return Refused("bad_"+what, "cannot accept %s=%q: %s is not a place for programs", what, unsafePath, dir)
		}
	}
	return nil
}

func (r Request) validateUser() error {
	if r.UID == 0 && r.GID == 0 {
		return nil // the image's, or the default
	}
	if r.UID == 0 || r.UID > maxID || r.GID == 0 || r.GID > maxID {
		return Refused("bad_user", "cannot accept user=%d:%d: want ids from 1 to %d (nothing inside needs root)", r.UID, r.GID, maxID)
	}
	return nil
}

func (r Request) validateLabels() error {
	if len(r.Labels) > maxLabels {
		return Refused("bad_label", "cannot accept %d labels: the limit is %d", len(r.Labels), maxLabels)
	}
	for k, v := range r.Labels {
		if k == "" || len(k) > maxLabel || len(v) > maxLabel || strings.ContainsAny(k, "=\x00\n") {
			return Refused("bad_label", "cannot accept label=%q: want KEY=VALUE of at most %d bytes each", k, maxLabel)
		}
	}
	return nil
}

func (l Limits) validate() error {
	if math.IsNaN(l.CPUs) || l.CPUs < 0.01 || l.CPUs > maxCPUs {
		return Refused("bad_limit", "cannot accept cpus=%v: want 0.01 to %d", l.CPUs, maxCPUs)
	}
	if l.Pids < 1 || l.Pids > maxPids {
		return Refused("bad_limit", "cannot accept pids=%d: want 1 to %d", l.Pids, maxPids)
	}
	sizes := []struct {
		name     string
		value    int64
		min, max int64
	}{
		{"memory", l.Memory, minMemory, maxBytes},
		{"tmp-size", l.TmpSize, minTmpfs, maxBytes},
		{"workspace-size", l.WorkspaceSize, minTmpfs, maxBytes},
		{"output-limit", l.OutputKept, 0, 1 << 30},
		{"output-max", l.OutputMax, 0, math.MaxInt64},
	}
	for _, s := range sizes {
		if s.value < s.min || s.value > s.max {
			return Refused("bad_limit", "cannot accept %s=%s: want %s to %s", s.name,
				oci.FormatSize(s.value), oci.FormatSize(s.min), oci.FormatSize(s.max)).
				WithFix("give a number with its unit, like 512MiB")
		}
	}
	for _, s := range sizes[1:3] {
		if s.value > l.Memory {
			return Refused("bad_limit", "cannot accept %s=%s: what is written there is memory, and memory=%s ends before that",
				s.name, oci.FormatSize(s.value), oci.FormatSize(l.Memory)).
				WithFix("lower --" + s.name + ", or raise --memory")
		}
	}
	if l.Timeout < time.Millisecond || l.Timeout > maxTimeout {
		return Refused("bad_limit", "cannot accept timeout=%v: want 1ms to %v", l.Timeout, maxTimeout)
	}
	return nil
}

// validateBundle checks what only somebody's bundle can ask for.
func (r Request) validateBundle() error {
	if len(r.Hostname) > 64 || strings.ContainsAny(r.Hostname, "\x00/ \n") {
		return Refused("bad_hostname", "cannot accept hostname=%q: want at most 64 bytes without spaces", r.Hostname)
	}
	if len(r.Tmpfs) > maxTmpfs {
		return Refused("bad_mount", "cannot accept %d tmpfs mounts: the limit is %d", len(r.Tmpfs), maxTmpfs)
	}
	for _, t := range r.Tmpfs {
		if err := validateInside("mount", t.Path); err != nil {
			return err
		}
		if t.Size < minTmpfs || t.Size > maxBytes {
			return Refused("bad_mount", "cannot accept tmpfs=%q of %d bytes: want %d to %d", t.Path, t.Size, minTmpfs, int64(maxBytes))
		}
	}
	return nil
}

// validateFiles checks the files as a whole and one by one.
func (r Request) validateFiles() error {
	if len(r.Files) > maxFiles {
		return Refused("bad_file", "cannot accept %d files: the limit is %d", len(r.Files), maxFiles)
	}
	var size int64
	seen := map[string]bool{}
	for _, f := range r.Files {
		if !ValidFilePath(f.Path) {
			return Refused("bad_file", "cannot accept file=%q: want a relative path of at most %d bytes, without empty names, \".\" and \"..\"", f.Path, maxPath)
		}
		if f.Mode&^0o777 != 0 {
			return Refused("bad_file", "cannot accept file=%q of mode %#o: want permissions alone", f.Path, f.Mode)
		}
		if seen[f.Path] {
			return Refused("bad_file", "cannot accept file=%q twice", f.Path)
		}
		seen[f.Path] = true
		size += int64(len(f.Data))
	}
	for name := range seen {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if seen[dir] {
				return Refused("bad_file", "cannot accept file=%q: file=%q is where its directory would be", name, dir)
			}
		}
	}
	if size > min(maxFile, r.Limits.WorkspaceSize) {
		return Refused("bad_file", "cannot accept files of %d bytes: the limit is %d", size, min(maxFile, r.Limits.WorkspaceSize))
	}
	return nil
}

// ValidFilePath reports whether a file may have this path below /workload.
func ValidFilePath(unsafePath string) bool {
	for name := range strings.SplitSeq(unsafePath, "/") {
		if name == "" || name == "." || name == ".." || len(name) > 255 {
			return false
		}
	}
	return len(unsafePath) <= maxPath && !strings.ContainsAny(unsafePath, "\x00\\") && utf8.ValidString(unsafePath)
}

// ValidEnvName reports whether name can be an environment variable in any shell.
func ValidEnvName(name string) bool {
	for i, c := range name {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
