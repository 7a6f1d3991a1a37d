// Package job is what engine and engine-image say to each other: one job, as the only
// argument of engine-image, and one answer, on its standard output.
//
// The two are programs apart because everything that pulls, unpacks and exports links
// HTTP, TLS and decompressors, which every start of engine would pay for.
package job

import (
	"github.com/direct-oci/engine/rootfs/image"
)

// Job is one piece of work.
type Job struct {
	Do    string `json:"do"`    // Pull, Import, Export or Seal
	Store string `json:"store"` // directory
	Name  string `json:"name"`  // of the image in the store; Pull: empty means the reference itself

	Source   string `json:"source,omitempty"`   // Pull: a reference; Import: a path or "-"; Seal: what errors call standard input
	Platform string `json:"platform,omitempty"` // empty: this host's
	Ref      string `json:"ref,omitempty"`      // Import: which image of several
	Output   string `json:"output,omitempty"`   // Export: a path
	Top      string `json:"top,omitempty"`      // Seal: the one directory that the archive holds

	MaxBytes   int64 `json:"maxBytes,omitempty"`   // Seal
	MaxEntries int64 `json:"maxEntries,omitempty"` // Seal

	AuthFile   string   `json:"authFile,omitempty"`
	Mirrors    []string `json:"mirrors,omitempty"`
	CAFile     string   `json:"caFile,omitempty"`
	PlainHTTP  []string `json:"plainHttp,omitempty"`
	TokenHosts []string `json:"tokenHosts,omitempty"`

	Quiet bool `json:"quiet,omitempty"` // no progress, also on a terminal
}

// What a job may do.
const (
	Pull   = "pull"
	Import = "import"
	Export = "export"
	Seal   = "seal" // the plain archive on standard input becomes a read-only image
)

// Answer is what came of a job.
type Answer struct {
	Image   *image.Image `json:"image,omitempty"`
	Digest  string       `json:"digest,omitempty"` // Export: of the manifest that was written
	Failure *Failure     `json:"failure,omitempty"`
}

// Failure is an error, ready to be shown.
type Failure struct {
	Request bool   `json:"request"` // the caller's turn, otherwise the host's
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Fix     string `json:"fix"`
}
