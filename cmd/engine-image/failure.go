package main

import (
	"context"
	"errors"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/intake"
	"github.com/direct-oci/engine/rootfs/image/job"
	"github.com/direct-oci/engine/rootfs/image/registry"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

// describe says what went wrong, and whose turn it is: the caller's where it is known
// what is wrong with what was given.
func describe(err error) *job.Failure {
	f := &job.Failure{Kind: "image_store", Message: err.Error()}
	var cured interface{ Remedy() string }
	if errors.As(err, &cured) {
		f.Fix = cured.Remedy()
	}
	var (
		space  *intake.SpaceError
		limit  *tree.LimitError
		remote *registry.Error
	)
	switch {
	case errors.Is(err, context.Canceled):
		*f = job.Failure{Request: true, Kind: "cancelled", Message: "cannot go on: interrupted; nothing is left behind"}
	case errors.As(err, &space), errors.As(err, &limit) && limit.OfDisk():
		f.Kind = "no_space"
	case errors.As(err, &remote):
		f.Kind = string(remote.Kind)
		f.Request = remote.Kind != registry.NoRoute && remote.Kind != registry.Busy
	case isCallers(err):
		f.Request, f.Kind = true, "bad_image"
		var none *image.NotFoundError
		if errors.As(err, &none) {
			f.Kind = "not_found"
		}
	}
	return f
}

func isCallers(err error) bool {
	var (
		name     *image.NameError
		exists   *image.ExistsError
		none     *image.NotFoundError
		platform *image.PlatformError
		format   *image.FormatError
		source   *intake.SourceError
		blob     *intake.BlobError
		entry    *tree.EntryError
		limit    *tree.LimitError
	)
	return errors.As(err, &name) || errors.As(err, &exists) || errors.As(err, &none) || errors.As(err, &platform) ||
		errors.As(err, &format) || errors.As(err, &source) || errors.As(err, &blob) || errors.As(err, &entry) || errors.As(err, &limit)
}
