package ociruntime

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// UnsupportedError reports a runtime that this host has not, or that must not be used.
type UnsupportedError struct {
	Runtime string
	Why     string
	Fix     string
}

func (e *UnsupportedError) Error() string { return "runtime " + e.Runtime + " " + e.Why }

// Remedy is one imperative sentence.
func (e *UnsupportedError) Remedy() string { return e.Fix }

// Find returns the runtime called name, which is runc, crun or runsc: the first
// program of that name in dirs, then on the system's own directories. It refuses a
// version below the floor with an *UnsupportedError. The version is asked of the
// program once and remembered in cacheDir, keyed by the file's identity.
func Find(ctx context.Context, name string, dirs []string, cacheDir string) (Runtime, error) {
	path, err := Look(name, dirs)
	if err != nil {
		return nil, err
	}
	version, err := Version(ctx, path, cacheDir)
	if err != nil {
		return nil, err
	}
	if _, refused := Floor(name, version); refused != nil {
		return nil, refused
	}
	return New(name, path, version)
}

// Look finds the program called name in dirs, then in the system's own directories.
func Look(name string, dirs []string) (string, error) {
	for _, dir := range append(dirs[:len(dirs):len(dirs)], "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin") {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", &UnsupportedError{
		Runtime: name,
		Why:     "is not installed on this host",
		Fix:     "install " + name + ", or choose another with --runtime (engine doctor lists what is here)",
	}
}

// Version asks the program at path for its version, or reads what an earlier call
// found out from cacheDir. "" as cacheDir asks always.
func Version(ctx context.Context, path, cacheDir string) (string, error) {
	return remembered("version", path, cacheDir, func() (string, error) { return askVersion(ctx, path) })
}

// SHA256 returns the SHA-256 of the program at path, in hexadecimal, or reads what an
// earlier call found out from cacheDir. "" as cacheDir reads it always.
func SHA256(path, cacheDir string) (string, error) {
	return remembered("sha256", path, cacheDir, func() (string, error) {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("cannot read runtime=%s: %w", path, err)
		}
		defer f.Close()
		sum := sha256.New()
		if _, err := io.Copy(sum, f); err != nil {
			return "", fmt.Errorf("cannot read runtime=%s: %w", path, err)
		}
		return hex.EncodeToString(sum.Sum(nil)), nil
	})
}

// remembered returns what cacheDir holds of a file, keyed by its identity, or finds it
// out. The time of its last change is part of that: nobody can set it back.
func remembered(what, path, cacheDir string, find func() (string, error)) (string, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return "", fmt.Errorf("cannot look at runtime=%s: %w", path, err)
	}
	cache := filepath.Join(cacheDir, fmt.Sprintf("%s-%s-%x-%x-%x-%x-%x", what, filepath.Base(path), st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()))
	if cacheDir != "" {
		if data, err := os.ReadFile(cache); err == nil && len(data) > 0 && len(data) < 200 {
			return string(data), nil
		}
	}
	value, err := find()
	if err != nil {
		return "", err
	}
	if cacheDir != "" {
		// Only a cache: when it cannot be written, the next call asks again.
		tmp := fmt.Sprintf("%s.%d", cache, os.Getpid())
		if err := os.WriteFile(tmp, []byte(value), 0o600); err == nil {
			os.Rename(tmp, cache)
		}
	}
	return value, nil
}

func askVersion(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", fmt.Errorf("cannot ask runtime=%s for its version: %w", path, err)
	}
	text, _ := io.ReadAll(io.LimitReader(out, 4096)) // what arrived is parsed, whatever ended it
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("cannot ask runtime=%s for its version: %w", path, err)
	}
	version := parseVersion(string(text))
	if version == "" {
		return "", fmt.Errorf("cannot ask runtime=%s for its version: it says %q", path, firstLine(string(text)))
	}
	return version, nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return strings.TrimSpace(line)
}

// parseVersion takes the version out of "runc version 1.5.3", "crun version 1.8.1",
// "runsc version release-20260905-160fafc42237".
func parseVersion(out string) string {
	fields := strings.Fields(firstLine(out))
	for i, f := range fields {
		if f == "version" && i+1 < len(fields) {
			return fields[i+1]
		}
	}
	return ""
}

// Floor judges a version. A warning names a weakness that the engine's own layers
// cover; refused, if not nil, is an *UnsupportedError: a version that cannot run the
// engine's bundles, or has a hole that nothing here closes.
func Floor(name, version string) (warning string, refused error) {
	update := func(what string) *UnsupportedError {
		return &UnsupportedError{Runtime: name, Why: "is too old: " + version + " " + what, Fix: "install a newer " + name + ", or choose another with --runtime"}
	}
	switch name {
	case "runc":
		switch {
		case older(version, 1, 2, 0):
			// CVE-2024-21626 (a leaked descriptor as working directory) is open below 1.1.12.
			return "", update("knows no time namespace, and versions below 1.1.12 leak descriptors (CVE-2024-21626)")
		case older(version, 1, 5, 3):
			return "runc " + version + " is older than 1.5.3, which fixed mount flags of read-only roots and device rules on Linux 6.17 and later", nil
		}
	case "crun":
		switch {
		case older(version, 1, 8, 0):
			return "", update("is older than any version the engine was run with")
		case older(version, 1, 20, 0):
			return "crun " + version + " has had fixes since that the engine's own top layer stands in for", nil
		}
	case "runsc":
		date := releaseDate(version)
		switch {
		case date == 0:
			return "runsc " + version + " does not tell its release date", nil
		case date < 20240101:
			return "", update("cannot pass descriptors to its first process")
		case date < 20260101:
			return "runsc " + version + " is more than a release cycle old", nil
		}
	}
	return "", nil
}

// older reports whether version is below major.minor.patch. What does not parse is older.
func older(version string, major, minor, patch int) bool {
	want := []int{major, minor, patch}
	rest := version
	for i, w := range want {
		part, tail, _ := strings.Cut(rest, ".")
		if part == "" && i > 0 {
			part = "0" // "2.0" is 2.0.0
		}
		rest = tail
		digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil {
			return true
		}
		if n != w {
			return n < w
		}
		if i == len(want)-1 && strings.Contains(part, "-rc") {
			return true
		}
	}
	return false
}

// releaseDate returns the yyyymmdd of "release-20260905-160fafc42237" or
// "release-20260905.0", 0 when there is none.
func releaseDate(version string) int {
	_, rest, ok := strings.Cut(version, "release-")
	if !ok || len(rest) < 8 {
		return 0
	}
	n, err := strconv.Atoi(rest[:8])
	if err != nil {
		return 0
	}
	return n
}
