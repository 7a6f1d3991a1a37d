package intake

import (
	"archive/tar"
	"errors"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image/tree"
)

const (
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
		case (errors.Is(err, io.EOF) || errors.Is(err, tar.ErrHeader)) && w.Counts.Entries == 0 && !layer:
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
