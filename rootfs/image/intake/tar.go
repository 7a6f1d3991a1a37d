package intake

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image/tree"
)

const (
	maxWindow = 128 << 20 // bytes of history a decompressor may ask for: zstd --long=27, xz -9 takes 64 MiB
	// maxOverhead is what an archive may hold besides the content of its files.
	maxOverhead = 4 << 30
	blockSize   = 512 // of tar; the end mark is two of them, and one is accepted
	xattrRecord = "SCHILY.xattr."
)

// putTar unpacks a plain archive into w, and reads the stream to its end. A layer may
// change nothing and have no entry, and some tools end one without the mark that is
// due, which the layer's digest makes up for.
func putTar(w *tree.Writer, stream io.Reader, layer bool) error {
	limit := w.MaxBytes() + maxOverhead
	if limit < 0 {
		limit = w.MaxBytes()
	}
	in := &boundedReader{r: stream, left: limit, limit: limit}
	r := tar.NewReader(in)
	for {
		before := in.left
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF) && w.Counts.Entries == 0 && !layer:
			return errors.New("it is not a tar archive, or an empty one")
		case errors.Is(err, io.EOF) && before-in.left < blockSize && !layer:
			return io.ErrUnexpectedEOF // no more than padding came: the end mark is missing
		case errors.Is(err, io.EOF):
			_, err := io.Copy(io.Discard, in) // padding, which belongs to the digest
			return err
		case err != nil:
			return err
		}
		if err := putHeader(w, h, r); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, r); err != nil { // content of what was left out
			return err
		}
	}
}

// boundedReader ends a bomb that would go on in headers or in the padding of
// entries that are skipped.
type boundedReader struct {
	r           io.Reader
	left, limit int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, &tree.LimitError{What: "bytes of an unpacked archive", Limit: b.limit}
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

func putHeader(t *tree.Writer, h *tar.Header, content io.Reader) error {
	e := tree.Entry{
		UnsafePath: h.Name,
		Mode:       uint32(h.Mode) & 0o7777,
		Mtime:      unix.Timespec{Sec: h.ModTime.Unix(), Nsec: int64(h.ModTime.Nanosecond())},
		Size:       h.Size,
		UnsafeLink: h.Linkname,
		Xattrs:     recordedXattrs(h),
	}
	if int64(h.Uid) != int64(uint32(h.Uid)) || int64(h.Gid) != int64(uint32(h.Gid)) {
		return &tree.EntryError{Entry: h.Name, Why: "its owner is not a number that Linux can store"}
	}
	e.UID, e.GID = uint32(h.Uid), uint32(h.Gid)
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		e.Kind, e.Content = unix.S_IFREG, content
		if strings.HasSuffix(h.Name, "/") { // how old archives spell a directory
			e.Kind, e.Content = unix.S_IFDIR, nil
		}
	case tar.TypeDir:
		e.Kind = unix.S_IFDIR
	case tar.TypeSymlink:
		e.Kind, e.Mode = unix.S_IFLNK, 0o777
	case tar.TypeLink:
		e.Kind = tree.HardLink
	case tar.TypeXGlobalHeader:
		return t.Count() // a comment
	case tar.TypeFifo:
		t.Counts.Pipes++
		return t.Count()
	case tar.TypeChar, tar.TypeBlock:
		t.Counts.Devices++
		return t.Count()
	default:
		return &tree.EntryError{Entry: h.Name, Why: "tar entries of type " + tree.Quote(string(h.Typeflag)) + " are unknown"}
	}
	return t.Put(e)
}

func recordedXattrs(h *tar.Header) map[string]string {
	var all map[string]string
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, xattrRecord); ok {
			if all == nil {
				all = map[string]string{}
			}
			all[name] = value
		}
	}
	return all
}

// decompress finds out by its first bytes how src is compressed.
//
// SECURITY: archives are unpacked by this process's own code, and memory is bounded.
// An xz or tar found on a PATH, or loaded from the image, is somebody else's program; a
// header may ask for gigabytes.
// Holds because: the decompressors are linked in, and windows above maxWindow are refused.
// Not covered: later blocks of an xz file, which may ask for more than the first; what
// they then take is at most what they unpack to. Checked by: TestBombs.
func decompress(src io.Reader) (io.ReadCloser, string, error) {
	in := bufio.NewReaderSize(src, 1<<20)
	head, err := in.Peek(64)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, "", err
	}
	switch {
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		r, err := gzip.NewReader(in)
		return r, "tar+gzip", err
	case bytes.HasPrefix(head, []byte("\x28\xb5\x2f\xfd")):
		r, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, "tar+zstd", err
		}
		return r.IOReadCloser(), "tar+zstd", nil
	case bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")):
		if !modestXZ(head) {
			return nil, "tar+xz", errors.New("its dictionary is larger than xz itself ever makes it, or it uses a filter besides LZMA2")
		}
		r, err := xz.NewReader(in)
		if err != nil {
			return nil, "tar+xz", err
		}
		return io.NopCloser(r), "tar+xz", nil
	}
	return io.NopCloser(in), "tar", nil
}

// modestXZ reads the dictionary size out of the first block's header, which follows
// 12 bytes of stream header: its size, flags, two sizes of the block if the flags say
// so, then a filter, which must be LZMA2 with one byte of properties.
func modestXZ(head []byte) bool {
	const (
		streamHeader = 12
		lzma2        = 0x21
		sizes        = 0xc0
		moreFilters  = 0x03
	)
	if len(head) < streamHeader+5 || head[streamHeader] == 0 {
		return true // no block at all
	}
	flags, rest := head[streamHeader+1], head[streamHeader+2:]
	if flags&moreFilters != 0 {
		return false
	}
	for range bits.OnesCount8(flags & sizes) {
		_, n := binary.Uvarint(rest)
		if n <= 0 {
			return false
		}
		rest = rest[n:]
	}
	if len(rest) < 3 || rest[0] != lzma2 || rest[1] != 1 || rest[2] > 40 {
		return false
	}
	return (2|uint64(rest[2]&1))<<(rest[2]/2+11) <= maxWindow
}
