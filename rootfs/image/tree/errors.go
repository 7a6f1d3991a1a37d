package tree

import (
	"fmt"
	"strconv"
)

// EntryError reports one entry of a source that was refused.
type EntryError struct {
	Entry string // as the source names it
	Why   string
	cause error
}

func (e *EntryError) Error() string { return "cannot import entry=" + Quote(e.Entry) + ": " + e.Why }

// Unwrap returns the cause, if there was one.
func (e *EntryError) Unwrap() error { return e.cause }

// LimitError reports a source that is larger than an image may be.
type LimitError struct {
	What  string // "bytes of files", "entries", "directories above one another"
	Limit int64
	Fix   string
}

// contentOfFiles is What of the limit that a full disk lowers.
const contentOfFiles = "bytes of files"

// OfDisk says that it is not the image that is too large, but the disk that is too full.
func (e *LimitError) OfDisk() bool { return e.What == contentOfFiles && e.Limit < defaultMaxBytes }

func (e *LimitError) Error() string {
	if e.OfDisk() {
		return fmt.Sprintf("cannot import more than %d %s: the disk has no room", e.Limit, e.What)
	}
	return fmt.Sprintf("cannot import more than %d %s", e.Limit, e.What)
}

// Remedy returns the cure, or "" when none is known.
func (e *LimitError) Remedy() string { return e.Fix }

// Quote makes a hostile name harmless on a terminal and bounds its length.
func Quote(name string) string {
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
