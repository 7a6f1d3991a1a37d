package tree

import (
	"errors"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// cleanPath makes a source's name relative to the root, and refuses what no honest
// archive holds.
func cleanPath(unsafePath string) (string, error) {
	if len(unsafePath) > maxPath {
		return "", &EntryError{Entry: unsafePath, Why: "its name is longer than Linux allows"}
	}
	depth := 0
	for name := range strings.SplitSeq(unsafePath, "/") {
		if name == ".." {
			return "", &EntryError{Entry: unsafePath, Why: "it leads upwards"}
		}
		depth++
	}
	if depth > maxDepth {
		return "", &LimitError{What: "directories above one another", Limit: maxDepth}
	}
	if strings.IndexByte(unsafePath, 0) >= 0 {
		return "", &EntryError{Entry: unsafePath, Why: "its name holds a NUL byte"}
	}
	return path.Clean("./" + unsafePath), nil
}

// explain translates errnos that would mislead here.
func explain(err error) string {
	var inner *EntryError
	switch {
	case errors.As(err, &inner):
		return inner.Why
	case errors.Is(err, unix.ENOTEMPTY):
		return "it would replace a directory that has content"
	case errors.Is(err, unix.EEXIST):
		return "its parent is a link to nothing"
	case errors.Is(err, unix.ENOTDIR):
		return "its parent is not a directory"
	case errors.Is(err, unix.ELOOP):
		return "its parent is a link to itself"
	case errors.Is(err, unix.EXDEV):
		return "its parent is on another mount"
	case errors.Is(err, unix.ENOENT):
		return "it is a link to a file that is not there, or has no name"
	}
	return err.Error()
}
