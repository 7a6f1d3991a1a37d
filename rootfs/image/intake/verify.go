package intake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"syscall"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

// verified reads a blob and fails at its end unless digest and size are as promised,
// and as soon as there is more of it than promised.
type verified struct {
	ctx    context.Context
	r      io.Reader
	want   Descriptor
	h      hash.Hash
	read   int64
	notify func(int64) // told how much has been read; may be nil
	failed error       // what the reader has been told, but for the end
}

func verify(ctx context.Context, r io.Reader, want Descriptor, notify func(int64)) *verified {
	return &verified{ctx: ctx, r: r, want: want, h: sha256.New(), notify: notify}
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.next(p)
	if err != nil && !errors.Is(err, io.EOF) {
		v.failed = err
	}
	return n, err
}

func (v *verified) next(p []byte) (int, error) {
	if err := v.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := v.r.Read(p)
	v.h.Write(p[:n])
	if v.read += int64(n); v.read > v.want.Size {
		return 0, &BlobError{v.want.Digest, fmt.Sprintf("it is longer than the %d bytes it should have", v.want.Size)}
	}
	if v.notify != nil && n > 0 {
		v.notify(v.read)
	}
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if v.read < v.want.Size {
		return n, &BlobError{v.want.Digest, fmt.Sprintf("it ends after %d of %d bytes", v.read, v.want.Size)}
	}
	if got := "sha256:" + hex.EncodeToString(v.h.Sum(nil)); got != v.want.Digest {
		return n, &BlobError{v.want.Digest, "its digest is " + got}
	}
	return n, io.EOF
}

// blame finds out whether what a reader stumbled over is the blob's fault, or the
// fault of who made it.
func (v *verified) blame(err error) error {
	var (
		entry  *tree.EntryError
		limit  *tree.LimitError
		unpack *UnpackError
		errno  syscall.Errno
	)
	if v.failed != nil || v.ctx.Err() != nil || errors.As(err, &entry) || errors.As(err, &limit) || errors.As(err, &unpack) || errors.As(err, &errno) {
		return err
	}
	if _, rest := io.Copy(io.Discard, v); rest != nil {
		return rest
	}
	return &image.FormatError{What: "layer", Why: err.Error()}
}

// readDocument reads a small blob whole.
func readDocument(ctx context.Context, src Source, d Descriptor) ([]byte, error) {
	if d.Size > MaxDocument {
		return nil, &BlobError{d.Digest, fmt.Sprintf("a document of %d bytes is more than the %d that are taken", d.Size, MaxDocument)}
	}
	r, err := src.Blob(ctx, d)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(verify(ctx, r, d, nil))
	return data, errors.Join(err, r.Close())
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
