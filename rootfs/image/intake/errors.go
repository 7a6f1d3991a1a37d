package intake

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

// SourceError reports something that no image can be made of.
type SourceError struct {
	Source string
	Why    string
	Fix    string
	cause  error
}

func (e *SourceError) Error() string {
	return "cannot import src=" + tree.Quote(e.Source) + ": " + e.Why
}

// Remedy returns the cure, or "" when none is known.
func (e *SourceError) Remedy() string { return e.Fix }

// Unwrap returns the cause, if there was one.
func (e *SourceError) Unwrap() error { return e.cause }

// BlobError reports content that is not what its digest and size promise.
type BlobError struct {
	Digest string
	Why    string
}

func (e *BlobError) Error() string { return "cannot accept blob=" + e.Digest + ": " + e.Why }

// Remedy returns the cure.
func (e *BlobError) Remedy() string {
	return "try again; if it fails in the same way, what serves the image is damaged or lies"
}

// SpaceError reports a full disk.
type SpaceError struct {
	Dir   string
	cause error
}

func (e *SpaceError) Error() string {
	return "cannot write the image: no space left for files in " + e.Dir
}

// Remedy returns the cure.
func (e *SpaceError) Remedy() string {
	return "free space there, for example with engine image prune --all, or use another --state-dir"
}

// Unwrap returns what the kernel said.
func (e *SpaceError) Unwrap() error { return e.cause }

// spaceError recognises a full disk, whatever it was that did not fit.
func spaceError(dir string, err error) error {
	var space *SpaceError
	if err == nil || errors.As(err, &space) || !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	return &SpaceError{Dir: dir, cause: err}
}

// sourceError adds the source's name to errors that name nothing yet.
func sourceError(src string, err error) error {
	var (
		entry    *tree.EntryError
		limit    *tree.LimitError
		blob     *BlobError
		format   *image.FormatError
		platform *image.PlatformError
		exists   *image.ExistsError
		space    *SpaceError
		source   *SourceError
		internal *UnpackError
	)
	if err == nil || errors.As(err, &entry) || errors.As(err, &limit) || errors.As(err, &blob) || errors.As(err, &format) ||
		errors.As(err, &platform) || errors.As(err, &exists) || errors.As(err, &space) || errors.As(err, &source) ||
		errors.As(err, &internal) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	why := err.Error()
	if errors.Is(err, io.ErrUnexpectedEOF) {
		why = "it is cut off"
	}
	return &SourceError{Source: src, Why: why, cause: err}
}
