package tree

import (
	"errors"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// seal makes of an entry what may stand in a sealed tree: it is root's, nobody may
// write to it, and it has no time and no attributes, so that the same files give the
// same digest whenever and by whomever they were made.
//
// SECURITY: what a program in a sandbox has put together does not leave the tree that it becomes.
// Installers run foreign code; what they leave is shown to later runs as their root.
// Holds because: owners, modes and times are the writer's own, set-id bits and attributes are
// dropped, and a symbolic link may go up at its start only, so that no other link on its way can
// make more of it, and never out of the top's directory that it is in.
// Not covered: what the files say. Checked by: TestSealed.
func (e Entry) seal(clean string) (Entry, error) {
	e.UID, e.GID, e.Mtime, e.Xattrs = 0, 0, unix.Timespec{}, nil
	switch {
	case e.Kind == unix.S_IFDIR:
		e.Mode = sealedDir
	case e.Kind == unix.S_IFREG && e.Mode&0o111 != 0:
		e.Mode = 0o555
	case e.Kind == unix.S_IFREG:
		e.Mode = 0o444
	case e.Kind == unix.S_IFLNK && !staysInside(clean, e.UnsafeLink):
		return e, errors.New("it is a link that leads out")
	}
	return e, nil
}

const sealedDir = 0o555

// staysInside reports whether the link at clean leads to a place below the same
// directory of the top, whatever stands there.
func staysInside(clean, unsafeTarget string) bool {
	if path.IsAbs(unsafeTarget) || unsafeTarget == "" || strings.IndexByte(unsafeTarget, 0) >= 0 {
		return false
	}
	up, down := strings.Count(clean, "/"), false
	for name := range strings.SplitSeq(unsafeTarget, "/") {
		switch name {
		case "..":
			if up--; down || up < 1 {
				return false
			}
		case "", ".":
		default:
			down = true
		}
	}
	return true
}
