package intake

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/therootcompany/xz"
	"golang.org/x/sync/semaphore"

	"github.com/direct-oci/engine/rootfs/image/tree"
)

const (
	// maxWindow is how much history one decompressor may keep, in bytes, and all
	// decompressors of this process together: what xz -9 and zstd --long=26 take.
	maxWindow = 64 << 20
	// usualWindow is what every zstd decoder has to manage (RFC 8878, section 3.1.1.1.2).
	usualWindow = 8 << 20
	// MemoryLimit is for the program that takes images in to give to its collector
	// (debug.SetMemoryLimit): the windows, and what the rest of it needs.
	MemoryLimit = maxWindow + 24<<20
)

// windows is what is left of the history that all decompressors may keep together.
// One that finds too little waits for the others.
var windows = semaphore.NewWeighted(maxWindow)

// decompress finds out by its first bytes how src is compressed. Its result must be
// closed as soon as it is not read any more, since others may be waiting for its memory.
//
// SECURITY: archives are unpacked by this process's own code, and memory is bounded.
// An xz or tar found on a PATH, or loaded from the image, is somebody else's program; a
// header may ask for gigabytes, in each of several layers at once.
// Holds because: the decompressors are linked in, each is told the largest window it may
// make, in later frames and blocks too, and has taken as much out of one budget.
// Not covered: memory that the collector has yet to find free.
// Checked by: TestWindows, TestBombs.
func decompress(ctx context.Context, src io.Reader) (io.ReadCloser, string, error) {
	in := bufio.NewReaderSize(src, 1<<20)
	head, err := in.Peek(zstd.HeaderMaxSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, "", err
	}
	switch {
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		r, err := gzip.NewReader(in)
		return r, "tar+gzip", err
	case bytes.HasPrefix(head, []byte("\x28\xb5\x2f\xfd")):
		r, err := openZstd(ctx, in, head)
		return r, "tar+zstd", err
	case bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")):
		r, err := openXZ(ctx, in)
		return r, "tar+xz", err
	}
	return io.NopCloser(in), "tar", nil
}

// openZstd takes the window that the first frame asks for. Later ones get no more.
func openZstd(ctx context.Context, in io.Reader, head []byte) (io.ReadCloser, error) {
	var h zstd.Header
	if err := h.Decode(head); err != nil {
		return nil, err
	}
	window := h.WindowSize
	if h.SingleSegment {
		window = h.FrameContentSize
	}
	if window > maxWindow {
		return nil, windowError(window)
	}
	window = max(window, usualWindow)
	return openWindow(ctx, int64(window), func() (io.Reader, error) {
		r, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(window), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
		return zstdReader{r}, err
	})
}

// openXZ takes the largest window, since each block of the file may ask for another.
func openXZ(ctx context.Context, in io.Reader) (io.ReadCloser, error) {
	return openWindow(ctx, maxWindow, func() (io.Reader, error) {
		r, err := xz.NewReader(in, maxWindow)
		return xzReader{r}, err
	})
}

func openWindow(ctx context.Context, window int64, open func() (io.Reader, error)) (io.ReadCloser, error) {
	if windows.Acquire(ctx, window) != nil {
		return nil, context.Cause(ctx)
	}
	r, err := open()
	if err != nil {
		windows.Release(window)
		return nil, err
	}
	return &decompressor{r, window}, nil
}

func windowError(size uint64) error {
	return &tree.LimitError{
		What: fmt.Sprintf("bytes of history to unpack it (it asks for %d)", size), Limit: maxWindow,
		Fix: "compress it with a smaller window: zstd -19, or --long=26 at most",
	}
}

// decompressor gives its window back when it is closed.
type decompressor struct {
	io.Reader       // nil: it is closed
	window    int64 // what it took
}

func (d *decompressor) Close() error {
	if d.Reader == nil {
		return nil
	}
	d.Reader = nil
	if d.window > usualWindow {
		runtime.GC() // the next one is not to find the old window beside its own
	}
	windows.Release(d.window)
	return nil
}

type zstdReader struct{ r *zstd.Decoder }

func (z zstdReader) Read(p []byte) (int, error) {
	n, err := z.r.Read(p)
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		err = errors.New("a later part of it asks for more history than its first")
	}
	return n, err
}

type xzReader struct{ r *xz.Reader }

func (x xzReader) Read(p []byte) (int, error) {
	n, err := x.r.Read(p)
	switch {
	case errors.Is(err, xz.ErrMemlimit):
		err = errors.New("its dictionary is larger than xz itself ever makes it")
	case errors.Is(err, xz.ErrBuf):
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
