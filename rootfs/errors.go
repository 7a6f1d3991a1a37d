package rootfs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// UnsupportedError reports a host that cannot keep a promise of this package.
type UnsupportedError struct {
	Feature string // "trusted extended attributes"
	Where   string // "/run/engine"
	Fix     string // one imperative sentence
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s unavailable in %s", e.Feature, e.Where)
}

// Remedy returns the cure.
func (e *UnsupportedError) Remedy() string { return e.Fix }

// PathError reports a path that cannot be used as what it was given for.
type PathError struct {
	Verb   string // "use"
	Object string // "lower", "run-dir", "target", "init", "guest", "source", "path"
	Path   string
	Why    string
	Fix    string // empty when no cure is known
	cause  error
}

func (e *PathError) Error() string {
	return fmt.Sprintf("cannot %s %s=%s: %s", e.Verb, e.Object, e.Path, e.Why)
}

// Remedy returns the cure, or "" when none is known.
func (e *PathError) Remedy() string { return e.Fix }

// Unwrap returns the kernel's own error, if there was one.
func (e *PathError) Unwrap() error { return e.cause }

// openError says what an errno of opening a directory without following links means.
func openError(verb, object, path string, err error) error {
	e := &PathError{Verb: verb, Object: object, Path: path, Why: err.Error(), cause: err}
	switch {
	case errors.Is(err, unix.ENOENT):
		e.Why = "it does not exist"
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		e.Why = "it is not a directory, or a symbolic link to one"
		e.Fix = "name the directory itself"
	}
	return e
}
