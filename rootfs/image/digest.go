package image

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// facts is what one pass over a finished tree finds out.
type facts struct {
	digest string // "sha256:…"
	disk   int64  // bytes allocated
	arch   string // of its programs; "" when it has none
	top    map[string]bool
}

// inspectTree reads every byte of a finished tree. The digest is the SHA-256 of a
// listing with one line per entry, in the order of a walk: what kind it is, its mode,
// owner, time in whole seconds (all an archive is sure to hold), name, and then a
// file's size, content's SHA-256 and attributes or a link's target. Whether two names
// are one file does not count. The same tree gives the same digest, whichever kind of
// source it came from.
func inspectTree(ctx context.Context, root *os.File) (facts, error) {
	s := survey{ctx: ctx, listing: sha256.New(), seen: map[inode]bool{}, buf: make([]byte, 1<<20)}
	s.top = map[string]bool{}
	w := walker{visit: s.visit}
	if err := w.walk(root); err != nil {
		return facts{}, err
	}
	if err := s.program.check(); err != nil {
		return facts{}, err
	}
	s.digest = "sha256:" + hex.EncodeToString(s.listing.Sum(nil))
	s.arch = s.program.arch
	return s.facts, nil
}

type survey struct {
	facts
	ctx     context.Context
	listing hash.Hash
	seen    map[inode]bool // files of several names that were counted
	program programs
	buf     []byte
}

func (s *survey) visit(f found) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	id := inode{uint64(f.stat.Dev), f.stat.Ino}
	if !s.seen[id] {
		s.disk += f.stat.Blocks * 512
	}
	if f.kind() == unix.S_IFREG && f.stat.Nlink > 1 {
		s.seen[id] = true
	}
	if f.dir != nil && f.path == f.name && f.path != "." {
		s.top[f.name] = true
	}
	fmt.Fprintf(s.listing, "%o %d %d %d %q", f.stat.Mode, f.stat.Uid, f.stat.Gid, f.stat.Mtim.Sec, f.path)
	var err error
	switch f.kind() {
	case unix.S_IFREG:
		err = s.file(f)
	case unix.S_IFLNK:
		var target string
		target, err = f.readlink()
		fmt.Fprintf(s.listing, " %q", target)
	case unix.S_IFDIR:
		err = s.directory(f)
	}
	if err != nil {
		return fmt.Errorf("cannot read back image file=%s: %w", quote(f.path), err)
	}
	_, err = io.WriteString(s.listing, "\n")
	return err
}

func (s *survey) file(f found) error {
	file, err := f.open()
	if err != nil {
		return err
	}
	defer file.Close()
	h := sha256.New()
	n, err := io.ReadFull(file, s.buf)
	if n > 0 {
		s.program.see(f, s.buf[:n])
		h.Write(s.buf[:n])
	}
	if err == nil {
		// A plain writer and reader, so that the buffer is used and not replaced.
		_, err = io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{file}, s.buf)
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	fmt.Fprintf(s.listing, " %d %x", f.stat.Size, h.Sum(nil))
	return s.attributes(file)
}

func (s *survey) directory(f found) error {
	fd, err := unix.Openat(int(f.dir.Fd()), f.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), f.path)
	defer dir.Close()
	return s.attributes(dir)
}

func (s *survey) attributes(f *os.File) error {
	return xattrs(f, func(name string, value []byte) error {
		if keepXattr(name) {
			fmt.Fprintf(s.listing, " %q=%q", name, value)
		}
		return nil
	})
}

// machines are the architectures by their ELF machine number, as people call them.
var machines = map[uint16]string{3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm", 62: "amd64", 183: "arm64", 243: "riscv64", 258: "loong64"}

// tellers are files, foremost first, whose architecture is the image's: an image
// for this host may well carry programs for others besides.
var tellers = []string{"bin/sh", "usr/bin/sh", "usr/bin/dash", "bin/busybox", "usr/bin/env", "bin/bash", "usr/bin/bash"}

// programs finds out an image's architecture.
type programs struct {
	arch string // of the best witness so far
	file string
	rank int // its place among the tellers, from 1; larger for any other program
}

// see looks at the start of a file.
func (p *programs) see(f found, start []byte) {
	const minimal = 20
	if f.stat.Mode&0o111 == 0 || len(start) < minimal || string(start[:4]) != "\x7fELF" {
		return
	}
	order := binary.ByteOrder(binary.LittleEndian)
	if start[5] == 2 {
		order = binary.BigEndian
	}
	const executable, shared = 2, 3
	if kind := order.Uint16(start[16:]); kind != executable && kind != shared {
		return
	}
	machine := order.Uint16(start[18:])
	arch, ok := machines[machine]
	if !ok {
		arch = fmt.Sprintf("ELF machine %d", machine)
	}
	rank := len(tellers) + 2
	for i, path := range tellers {
		if path == f.path {
			rank = i + 1
		}
	}
	if rank > len(tellers) && arch == runtime.GOARCH {
		rank = len(tellers) + 1 // one program that runs here is enough
	}
	if p.rank == 0 || rank < p.rank {
		p.arch, p.file, p.rank = arch, f.path, rank
	}
}

func (p *programs) check() error {
	if p.arch == "" || p.arch == runtime.GOARCH {
		return nil
	}
	return &ArchError{File: p.file, Image: p.arch, Host: runtime.GOARCH}
}
