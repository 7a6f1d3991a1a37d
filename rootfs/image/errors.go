package image

import (
	"fmt"
	"strconv"
)

// NameError reports a name that no image can have.
type NameError struct{ Name string }

func (e *NameError) Error() string {
	return "cannot use image=" + quote(e.Name) + ": it is not a valid image name"
}

// Remedy returns the cure.
func (e *NameError) Remedy() string {
	return "Use lower-case letters, digits and . _ - / in the name, and one tag after a colon at most, as in team/node:20."
}

// ExistsError reports an import under a name that is taken.
type ExistsError struct{ Name string }

func (e *ExistsError) Error() string {
	return "cannot import image=" + e.Name + ": it is already there"
}

// Remedy returns the cure.
func (e *ExistsError) Remedy() string { return "Run: engine image rm " + e.Name }

// NotFoundError reports a name that no image has.
type NotFoundError struct{ Name string }

func (e *NotFoundError) Error() string {
	return "cannot open image=" + e.Name + ": there is no such image"
}

// Remedy returns the cure.
func (e *NotFoundError) Remedy() string {
	return "Run: engine image import DIR|TAR " + e.Name
}

// HeldError reports an image that a run stands on.
type HeldError struct{ Name string }

func (e *HeldError) Error() string {
	return "cannot remove image=" + e.Name + ": a run uses it"
}

// Remedy returns the cure.
func (e *HeldError) Remedy() string { return "Wait for the run, or end it with engine kill." }

// SourceError reports something that is no root file system.
type SourceError struct {
	Source string
	Why    string
	Fix    string
	cause  error
}

func (e *SourceError) Error() string { return "cannot import src=" + quote(e.Source) + ": " + e.Why }

// Remedy returns the cure, or "" when none is known.
func (e *SourceError) Remedy() string { return e.Fix }

// Unwrap returns the cause, if there was one.
func (e *SourceError) Unwrap() error { return e.cause }

// EntryError reports one entry of a source that was refused.
type EntryError struct {
	Entry string // as the source names it
	Why   string
	cause error
}

func (e *EntryError) Error() string { return "cannot import entry=" + quote(e.Entry) + ": " + e.Why }

// Unwrap returns the cause, if there was one.
func (e *EntryError) Unwrap() error { return e.cause }

// LimitError reports a source that is larger than an image may be.
type LimitError struct {
	What  string // "bytes", "entries", "directories above one another"
	Limit int64
	Fix   string
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("cannot import more than %d %s", e.Limit, e.What)
}

// Remedy returns the cure, or "" when none is known.
func (e *LimitError) Remedy() string { return e.Fix }

// ArchError reports an image made for another kind of processor.
type ArchError struct {
	File  string // the program that tells
	Image string
	Host  string
}

func (e *ArchError) Error() string {
	return fmt.Sprintf("cannot import an image for %s: this host is %s (seen in %s)", e.Image, e.Host, quote(e.File))
}

// Remedy returns the cure.
func (e *ArchError) Remedy() string { return "Use the image's variant for " + e.Host + "." }

// quote makes a hostile name harmless on a terminal and bounds its length.
func quote(name string) string {
	const most = 256
	if len(name) > most {
		name = name[:most] + "..."
	}
	quoted := strconv.QuoteToASCII(name)
	if quoted == `"`+name+`"` {
		return name
	}
	return quoted
}
