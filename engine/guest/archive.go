package guest

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ArchiveLimits bound what goes in or out at once. Zero values are the defaults.
type ArchiveLimits struct {
	Entries int   // files, directories and links; 0: 200000
	Bytes   int64 // of files together; 0: 4 GiB
}

func (l ArchiveLimits) withDefaults() ArchiveLimits {
	return ArchiveLimits{cmp.Or(l.Entries, 200_000), cmp.Or(l.Bytes, 4<<30)}
}

// Archived says what went in or out.
type Archived struct {
	Entries int
	Bytes   int64
	// Skipped are paths that were left out or changed meanwhile, with the reason; the
	// first hundred.
	Skipped []Skipped
}

// Skipped is one path that an archive does not hold as it was.
type Skipped struct{ Path, Why string }

// ArchiveError reports an archive that is not taken as it stands, or a directory that is
// larger than asked for.
type ArchiveError struct {
	Path string // in the archive
	Why  string
}

func (e *ArchiveError) Error() string {
	if e.Path == "" {
		return "cannot read the archive: " + e.Why
	}
	return fmt.Sprintf("cannot archive path=%.200q: %s", e.Path, e.Why)
}

const (
	maxDepth   = 256
	maxSkipped = 100
	maxHeld    = 1 << 16 // names in memory: of the directories from the top to where it is
)

func (a *Archived) skip(path, why string) {
	if len(a.Skipped) < maxSkipped {
		a.Skipped = append(a.Skipped, Skipped{path, why})
	}
}

// count is called before each entry.
func (a *Archived) count(path string, size int64, l ArchiveLimits) error {
	if a.Entries++; a.Entries > l.Entries {
		return &ArchiveError{path, fmt.Sprintf("more than %d files", l.Entries)}
	}
	if size > l.Bytes-a.Bytes {
		return &ArchiveError{path, fmt.Sprintf("more than %d bytes", l.Bytes)}
	}
	a.Bytes += size
	return nil
}

// exporter walks one directory.
type exporter struct {
	*Files
	ctx    context.Context
	base   uint32
	limits ArchiveLimits
	out    *tar.Writer
	done   Archived
	pages  int
	held   int // names in memory
}

// Export writes what is below dir as a tar archive, its names relative to dir.
//
// SECURITY: an archive that a sandbox made can be unpacked without a thought.
// A name with "..", a link that leads out and a file below it, or a device in an archive
// write where the archive does not belong, or open what they should not.
// Holds because: names are put together from checked parts; only directories, regular files
// and symbolic links that stay inside are written; no owner, set-id bit or attribute is.
// Not covered: what files hold; an archive that is one of several unpacked in one place.
// Checked by: TestExportIsSafe, TestHostileArchives.
func (f *Files) Export(ctx context.Context, dir string, w io.Writer, l ArchiveLimits) (Archived, error) {
	at, err := absolute(opOpen, dir)
	if err != nil {
		return Archived{}, err
	}
	base, err := f.openAt(ctx, at, directory)
	if err != nil {
		return Archived{}, err
	}
	defer base.Close()
	e := &exporter{Files: f, ctx: ctx, base: base.handle, limits: l.withDefaults(), out: tar.NewWriter(w)}
	if err := e.directory(".", 0); err != nil {
		return e.done, err
	}
	return e.done, e.out.Close()
}

func (e *exporter) at(rel string) place { return place{e.base, rel, rel} }

// vanished reports whether err means that somebody inside removed or replaced a file
// while it was on its way.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EINVAL)
}

func (e *exporter) directory(rel string, depth int) error {
	if depth > maxDepth {
		return &ArchiveError{rel, fmt.Sprintf("more than %d directories deep", maxDepth)}
	}
	entries, err := e.list(rel)
	if err != nil {
		if depth > 0 && (vanished(err) || errors.Is(err, fs.ErrPermission)) {
			e.done.skip(rel, err.Error())
			return nil
		}
		return err
	}
	defer func() { e.held -= len(entries) }()
	for _, info := range entries {
		below := path.Join(rel, info.Name)
		if len(below) > maxPath {
			return &ArchiveError{below, "a path of more than 4095 bytes"}
		}
		if err := e.entry(below, info, depth); err != nil {
			return err
		}
	}
	return nil
}

// list is a whole directory, by name.
func (e *exporter) list(rel string) ([]Info, error) {
	var entries []Info
	for page := (Page{More: true}); page.More; {
		var err error
		if page, err = e.listAt(e.ctx, e.at(rel), page.Next, 0); err != nil {
			return nil, err
		}
		entries = append(entries, page.Entries...)
		if e.pages++; e.pages > e.limits.Entries || e.done.Entries+len(entries) > e.limits.Entries {
			return nil, &ArchiveError{rel, fmt.Sprintf("more than %d files", e.limits.Entries)}
		}
		if e.held+len(entries) > maxHeld {
			return nil, &ArchiveError{rel, fmt.Sprintf("more than %d files in it and the directories above", maxHeld)}
		}
	}
	slices.SortFunc(entries, func(a, b Info) int { return cmp.Compare(a.Name, b.Name) })
	entries = slices.CompactFunc(entries, func(a, b Info) bool { return a.Name == b.Name })
	e.held += len(entries)
	return entries, nil
}

func (e *exporter) entry(rel string, info Info, depth int) error {
	header := &tar.Header{
		Name: rel, Mode: int64(info.Mode.Perm()), ModTime: info.ModTime.Truncate(time.Second), Format: tar.FormatPAX,
	}
	switch {
	case info.Mode.IsDir():
		header.Typeflag, header.Name = tar.TypeDir, rel+"/"
		if err := e.begin(rel, 0, header); err != nil {
			return err
		}
		return e.directory(rel, depth+1)
	case info.Mode.IsRegular():
		return e.file(rel, header)
	case info.Mode&fs.ModeSymlink != 0:
		return e.link(rel, header)
	}
	e.done.skip(rel, "no file, directory or link")
	return nil
}

func (e *exporter) begin(rel string, size int64, header *tar.Header) error {
	if err := e.done.count(rel, size, e.limits); err != nil {
		return err
	}
	return e.out.WriteHeader(header)
}

// file writes as many bytes as it had when it was opened.
func (e *exporter) file(rel string, header *tar.Header) error {
	r, err := e.openAt(e.ctx, e.at(rel), 0)
	if err != nil {
		if vanished(err) || errors.Is(err, fs.ErrPermission) {
			e.done.skip(rel, err.Error())
			return nil
		}
		return err
	}
	defer r.Close()
	if !r.Info.Mode.IsRegular() {
		e.done.skip(rel, "it was replaced meanwhile")
		return nil
	}
	header.Typeflag, header.Size = tar.TypeReg, r.Info.Size
	if err := e.begin(rel, r.Info.Size, header); err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{e.out}, io.LimitReader(r, r.Info.Size), make([]byte, maxPayload))
	if err != nil {
		return err
	}
	if n < r.Info.Size {
		e.done.skip(rel, "it became shorter meanwhile: the rest is zeros")
		_, err = io.CopyN(e.out, zeros{}, r.Info.Size-n)
	}
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func (e *exporter) link(rel string, header *tar.Header) error {
	target, err := e.readlinkAt(e.ctx, e.at(rel))
	switch {
	case err != nil && vanished(err):
		e.done.skip(rel, err.Error())
		return nil
	case err != nil:
		return err
	case !staysInside(rel, target):
		e.done.skip(rel, "a link that leads out of the directory")
		return nil
	}
	header.Typeflag, header.Linkname = tar.TypeSymlink, target
	return e.begin(rel, 0, header)
}

// staysInside reports whether a link's target, from where the link is, never rises above
// the top. Names on the way may be links themselves, so ".." counts only at the start.
func staysInside(rel, target string) bool {
	if path.IsAbs(target) {
		return false
	}
	up := 0
	for target != "" {
		name, rest, _ := strings.Cut(target, "/")
		if name != ".." {
			break
		}
		up, target = up+1, rest
	}
	for name := range strings.SplitSeq(target, "/") {
		if name == ".." {
			return false
		}
	}
	return up <= strings.Count(rel, "/")
}
