package image

import (
	"fmt"
	"strings"

	"github.com/direct-oci/engine/rootfs/image/tree"
)

// NameError reports a name that no image can have.
type NameError struct{ Name string }

func (e *NameError) Error() string {
	return "cannot use image=" + tree.Quote(e.Name) + ": it is not a valid image name"
}

// Remedy returns the cure.
func (e *NameError) Remedy() string {
	return "use lower-case letters, digits and . _ - / in the name, and one tag after a colon at most, as in team/node:20"
}

// ExistsError reports an import under a name that is taken.
type ExistsError struct{ Name string }

func (e *ExistsError) Error() string {
	return "cannot import image=" + e.Name + ": it is already there"
}

// Remedy returns the cure.
func (e *ExistsError) Remedy() string { return "run engine image rm " + e.Name }

// NotFoundError reports a name that no image has.
type NotFoundError struct{ Name string }

func (e *NotFoundError) Error() string {
	return "cannot open image=" + e.Name + ": there is no such image"
}

// Remedy returns the cure.
func (e *NotFoundError) Remedy() string {
	return "run engine image pull " + e.Name + ", or engine image import SOURCE " + e.Name
}

// HeldError reports an image that a run stands on.
type HeldError struct{ Name string }

func (e *HeldError) Error() string {
	return "cannot remove image=" + e.Name + ": a run uses it"
}

// Remedy returns the cure.
func (e *HeldError) Remedy() string { return "wait for the run, or end it with engine kill" }

// PlatformError reports an image made for another kind of machine.
type PlatformError struct {
	Image string   // what is asked for; "" while it is being imported
	Has   []string // "linux/arm64"; several when it comes in variants
	Want  string   // "linux/amd64", this host's or the one asked for
	Seen  string   // the program that tells; "" when the image says so itself
}

func (e *PlatformError) Error() string {
	which := "an image"
	if e.Image != "" {
		which = "image=" + e.Image
	}
	seen := ""
	if e.Seen != "" {
		seen = " (seen in " + tree.Quote(e.Seen) + ")"
	}
	has := make([]string, len(e.Has))
	for i, p := range e.Has {
		has[i] = tree.Quote(p)
	}
	return fmt.Sprintf("cannot use %s for %s: %s is wanted%s", which, strings.Join(has, ", "), e.Want, seen)
}

// Remedy returns the cure.
func (e *PlatformError) Remedy() string { return "use the image's variant for " + e.Want }

// FormatError reports a document of an image, a manifest or a configuration, that is
// refused.
type FormatError struct {
	What string // "manifest", "index", "configuration", "layer"
	Why  string
	Fix  string
}

func (e *FormatError) Error() string { return "cannot accept the image's " + e.What + ": " + e.Why }

// Remedy returns the cure, or "" when none is known.
func (e *FormatError) Remedy() string { return e.Fix }
