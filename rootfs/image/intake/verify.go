package intake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
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
}

func verify(ctx context.Context, r io.Reader, want Descriptor, notify func(int64)) *verified {
	return &verified{ctx: ctx, r: r, want: want, h: sha256.New(), notify: notify}
}

func (v *verified) Read(p []byte) (int, error) {
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
