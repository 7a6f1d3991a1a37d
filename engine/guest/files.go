package guest

import (
	"context"
	"encoding/binary"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// place is a path as the guest is told: absolute, or below an open directory.
type place struct {
	base  uint32
	path  string // what is sent
	about string // what an error says
}

func absolute(o op, unsafePath string) (place, error) {
	clean, err := checkPath(unsafePath)
	if err != nil {
		return place{}, &RequestError{o.String(), unsafePath, err.Error()}
	}
	return place{path: clean, about: clean}, nil
}

// do asks about one place, with the numbers that come before its path.
func (f *Files) do(ctx context.Context, o op, fl flags, at place, before []byte) (answer, error) {
	return f.ask(ctx, at.about, request{o, fl, at.base, append(before, at.path...)}, nil)
}

func u32(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }

// Stat says what is at path, following symbolic links.
func (f *Files) Stat(ctx context.Context, path string) (Info, error) {
	return f.stat(ctx, path, 0)
}

// Lstat says what is at path, a symbolic link as such.
func (f *Files) Lstat(ctx context.Context, path string) (Info, error) {
	return f.stat(ctx, path, noFollow)
}

func (f *Files) stat(ctx context.Context, name string, fl flags) (Info, error) {
	at, err := absolute(opStat, name)
	if err != nil {
		return Info{}, err
	}
	return f.statAt(ctx, at, fl)
}

func (f *Files) statAt(ctx context.Context, at place, fl flags) (Info, error) {
	a, err := f.do(ctx, opStat, fl, at, nil)
	if err != nil {
		return Info{}, err
	}
	info, err := parseStat(a.payload, path.Base(at.about))
	if err == nil && len(a.payload) != statSize {
		err = fmt.Errorf("a stat of %d bytes", len(a.payload))
	}
	if err != nil {
		return Info{}, f.distrust(err)
	}
	return info, nil
}

// maxPage is how many files one page of a directory holds at most.
const maxPage = 1000

// Page is a part of a directory, in no order.
type Page struct {
	Entries []Info // links as such
	Next    uint64 // where the next page begins
	More    bool   // there may be one
}

// List reads a directory from after on, which is 0 or an earlier page's Next, at most
// limit files (0: as many as there are in a page). A directory that changes meanwhile
// may show a file twice or not at all.
func (f *Files) List(ctx context.Context, dir string, after uint64, limit int) (Page, error) {
	at, err := absolute(opList, dir)
	if err != nil {
		return Page{}, err
	}
	return f.listAt(ctx, at, after, limit)
}

func (f *Files) listAt(ctx context.Context, at place, after uint64, limit int) (Page, error) {
	if limit <= 0 || limit > maxPage {
		limit = maxPage
	}
	before := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, after), uint32(limit))
	a, err := f.do(ctx, opList, 0, at, before)
	if err != nil {
		return Page{}, err
	}
	next, entries, err := parseList(a.payload, limit)
	if err == nil && a.value > 1 {
		err = fmt.Errorf("a page with the mark %d", a.value)
	}
	if err != nil {
		return Page{}, f.distrust(err)
	}
	return Page{entries, next, a.value == 1}, nil
}

// Mkdir makes a directory. With all, those above it that are missing are made too, and
// one that is there already is fine.
func (f *Files) Mkdir(ctx context.Context, path string, mode fs.FileMode, all bool) error {
	at, err := absolute(opMkdir, path)
	if err != nil {
		return err
	}
	_, err = f.do(ctx, opMkdir, flagIf(all, parents), at, u32(kernelMode(mode)))
	return err
}

// Rename moves a file or directory. Without replace nothing may be at to.
func (f *Files) Rename(ctx context.Context, from, to string, replace bool) error {
	first, err := absolute(opRename, from)
	if err != nil {
		return err
	}
	second, err := absolute(opRename, to)
	if err != nil {
		return err
	}
	second.about = first.about + " to " + second.about
	_, err = f.do(ctx, opRename, flagIf(!replace, exclusive), second, text16(first.path))
	return err
}

// Remove removes a file, a symbolic link as such, or an empty directory; with all, a
// directory with everything below it. No link is followed there.
func (f *Files) Remove(ctx context.Context, path string, all bool) error {
	at, err := absolute(opRemove, path)
	if err != nil {
		return err
	}
	_, err = f.do(ctx, opRemove, flagIf(all, recursive), at, nil)
	return err
}

// Symlink makes path a symbolic link to target, which may be anything.
func (f *Files) Symlink(ctx context.Context, target, path string) error {
	at, err := absolute(opSymlink, path)
	if err != nil {
		return err
	}
	return f.symlinkAt(ctx, target, at, 0)
}

func (f *Files) symlinkAt(ctx context.Context, target string, at place, fl flags) error {
	if !isTarget(target) {
		return &RequestError{opSymlink.String(), target, "not the target of a link"}
	}
	_, err := f.do(ctx, opSymlink, fl, at, text16(target))
	return err
}

func isTarget(target string) bool {
	return target != "" && len(target) <= maxPath && !strings.ContainsRune(target, 0)
}

// Readlink returns where a symbolic link leads.
func (f *Files) Readlink(ctx context.Context, path string) (string, error) {
	at, err := absolute(opReadlink, path)
	if err != nil {
		return "", err
	}
	return f.readlinkAt(ctx, at)
}

func (f *Files) readlinkAt(ctx context.Context, at place) (string, error) {
	a, err := f.do(ctx, opReadlink, 0, at, nil)
	if err != nil {
		return "", err
	}
	target := string(a.payload)
	if !isTarget(target) {
		return "", f.distrust(fmt.Errorf("a link to %.100q", target))
	}
	return target, nil
}

// Chmod sets the mode of what is at path, following symbolic links.
func (f *Files) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	at, err := absolute(opChmod, path)
	if err != nil {
		return err
	}
	_, err = f.do(ctx, opChmod, 0, at, u32(kernelMode(mode)))
	return err
}

func flagIf(yes bool, fl flags) flags {
	if yes {
		return fl
	}
	return 0
}

// text16 is a text after its size.
func text16(s string) []byte {
	return append(binary.LittleEndian.AppendUint16(nil, uint16(len(s))), s...)
}
