package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"
)

// closeBound is how long a handle's end is waited for, whose caller may have given up.
const closeBound = 10 * time.Second

// Reader reads one file. It is for one caller at a time.
type Reader struct {
	Info   Info
	files  *Files
	ctx    context.Context
	handle uint32
	about  string
	offset int64
}

// Open opens a regular file for reading, following symbolic links. ctx bounds all that
// is read. Close the reader: a guest has 64 handles.
func (f *Files) Open(ctx context.Context, path string) (*Reader, error) {
	at, err := absolute(opOpen, path)
	if err != nil {
		return nil, err
	}
	r, err := f.openAt(ctx, at, 0)
	if err != nil {
		return nil, err
	}
	if r.Info.Mode.IsDir() {
		r.Close()
		return nil, &RequestError{opOpen.String(), path, "it is a directory"}
	}
	return r, nil
}

func (f *Files) openAt(ctx context.Context, at place, fl flags) (*Reader, error) {
	a, err := f.do(ctx, opOpen, fl, at, nil)
	if err != nil {
		return nil, err
	}
	info, err := parseStat(a.payload, at.about)
	switch {
	case err != nil:
	case a.value == 0 || a.value > 64 || len(a.payload) != statSize:
		err = fmt.Errorf("the handle %d with %d bytes", a.value, len(a.payload))
	case !info.Mode.IsRegular() && !info.Mode.IsDir():
		err = fmt.Errorf("an open file of mode %v", info.Mode)
	}
	if err != nil {
		return nil, f.distrust(err)
	}
	return &Reader{Info: info, files: f, ctx: ctx, handle: a.value, about: at.about}, nil
}

// Read reads on from the last place.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.ReadAt(p[:min(len(p), maxPayload)], r.offset)
	r.offset += int64(n)
	if n > 0 && err == io.EOF {
		err = nil // told with the next call
	}
	return n, err
}

// ReadAt reads from an offset.
func (r *Reader) ReadAt(p []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, &RequestError{opRead.String(), r.about, "a negative offset"}
	}
	for n := 0; ; {
		want := min(len(p)-n, maxPayload)
		if want == 0 {
			return n, nil
		}
		payload := binary.LittleEndian.AppendUint64(nil, uint64(offset)+uint64(n))
		payload = binary.LittleEndian.AppendUint32(payload, uint32(want))
		a, err := r.files.ask(r.ctx, r.about, request{op: opRead, base: r.handle, payload: payload}, nil)
		switch {
		case err != nil:
			return n, err
		case len(a.payload) > want:
			return n, r.files.distrust(fmt.Errorf("%d bytes of a file, of %d asked for", len(a.payload), want))
		case len(a.payload) == 0:
			return n, io.EOF
		}
		n += copy(p[n:], a.payload)
	}
}

// Close gives the handle back.
func (r *Reader) Close() error {
	if r.handle == 0 {
		return nil
	}
	handle := r.handle
	r.handle = 0
	return r.files.closeHandle(r.about, handle)
}

func (f *Files) closeHandle(about string, handle uint32) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeBound)
	defer cancel()
	return f.always(ctx, about, request{op: opClose, base: handle})
}

// Read returns at most limit bytes of a file from an offset on.
func (f *Files) Read(ctx context.Context, path string, offset int64, limit int) ([]byte, error) {
	r, err := f.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	var data []byte
	if offset > 0 {
		r.offset = offset
	}
	data, err = io.ReadAll(io.LimitReader(r, int64(limit)))
	return data, errors.Join(err, r.Close())
}

// WriteOptions say how a file is made.
type WriteOptions struct {
	Mode      *fs.FileMode // nil: that of the file it replaces, or 0644
	ModTime   time.Time    // zero: now
	Parents   bool         // make the directories that are missing, 0755
	Exclusive bool         // nothing may be there yet
}

// Writer writes a file that appears at its path with Commit, complete, in place of what
// was there. It is for one caller at a time.
type Writer struct {
	files   *Files
	ctx     context.Context
	handle  uint32
	about   string
	modTime time.Time
}

// Create begins to write a file. ctx bounds all that is written. Close the writer: what
// was not committed is removed then.
func (f *Files) Create(ctx context.Context, path string, o WriteOptions) (*Writer, error) {
	at, err := absolute(opCreate, path)
	if err != nil {
		return nil, err
	}
	return f.createAt(ctx, at, o)
}

func (f *Files) createAt(ctx context.Context, at place, o WriteOptions) (*Writer, error) {
	mode := uint32(keep)
	if o.Mode != nil {
		mode = kernelMode(*o.Mode)
	}
	a, err := f.do(ctx, opCreate, flagIf(o.Parents, parents)|flagIf(o.Exclusive, exclusive), at, u32(mode))
	if err != nil {
		return nil, err
	}
	if a.value == 0 || a.value > 64 || len(a.payload) != 0 {
		return nil, f.distrust(fmt.Errorf("the handle %d with %d bytes", a.value, len(a.payload)))
	}
	return &Writer{f, ctx, a.value, at.about, o.ModTime}, nil
}

// Write appends.
func (w *Writer) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		n := min(len(p), maxPayload)
		if _, err := w.files.ask(w.ctx, w.about, request{op: opWrite, base: w.handle, payload: p[:n]}, nil); err != nil {
			return written, err
		}
		written += n
		p = p[n:]
	}
	return written, nil
}

// Commit puts the file at its path.
func (w *Writer) Commit() error {
	var payload []byte
	if w.modTime.IsZero() {
		payload = binary.LittleEndian.AppendUint32(make([]byte, 8), keep)
	} else {
		payload = binary.LittleEndian.AppendUint64(nil, uint64(w.modTime.Unix()))
		payload = binary.LittleEndian.AppendUint32(payload, uint32(w.modTime.Nanosecond()))
	}
	handle := w.handle
	w.handle = 0
	return w.files.always(w.ctx, w.about, request{op: opCommit, base: handle, payload: payload})
}

// Close removes what was not committed.
func (w *Writer) Close() error {
	if w.handle == 0 {
		return nil
	}
	handle := w.handle
	w.handle = 0
	return w.files.closeHandle(w.about, handle)
}

// Write makes path a file with what is read from r, and returns its size. What was there
// is replaced at once, or, when this fails, not touched.
func (f *Files) Write(ctx context.Context, path string, r io.Reader, o WriteOptions) (int64, error) {
	w, err := f.Create(ctx, path, o)
	if err != nil {
		return 0, err
	}
	return w.fill(r)
}

// fill writes all of r and commits.
func (w *Writer) fill(r io.Reader) (int64, error) {
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, r, make([]byte, maxPayload))
	if err == nil {
		err = w.Commit()
	}
	return n, errors.Join(err, w.Close())
}
