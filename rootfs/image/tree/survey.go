package tree

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

// Facts is what one pass over a finished tree finds out.
type Facts struct {
	Digest string          // "sha256:…", of a listing of the tree
	Disk   int64           // bytes allocated
	Arch   string          // of its programs, as Go calls it; "" when it has none
	Teller string          // the program that tells
	Top    map[string]bool // names of the top directory
}

// Inspect reads every byte of a finished tree. The digest is the SHA-256 of a
// listing with one line per entry, in the order of a walk: what kind it is, its mode,
// owner, time in whole seconds (all an archive is sure to hold), name, and then a
// file's size, content's SHA-256 and attributes or a link's target. Whether two names
// are one file does not count. The same tree gives the same digest, whichever kind of
// source it came from.
func Inspect(ctx context.Context, root *os.File) (Facts, error) {
	s := survey{ctx: ctx, listing: sha256.New(), seen: map[inode]bool{}, buf: make([]byte, 1<<20)}
	s.Top = map[string]bool{}
	if _, err := Walk(root, s.visit); err != nil {
		return Facts{}, err
	}
	s.Digest = "sha256:" + hex.EncodeToString(s.listing.Sum(nil))
	s.Arch, s.Teller = s.program.arch, s.program.file
	return s.Facts, nil
}

type survey struct {
	Facts
	ctx     context.Context
	listing hash.Hash
	seen    map[inode]bool // files of several names that were counted
	program programs
	buf     []byte
}

func (s *survey) visit(f Found) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	id := inode{uint64(f.Stat.Dev), f.Stat.Ino}
	if !s.seen[id] {
		s.Disk += f.Stat.Blocks * 512
	}
	if f.Kind() == unix.S_IFREG && f.Stat.Nlink > 1 {
		s.seen[id] = true
	}
	if f.Dir != nil && f.Path == f.Name && f.Path != "." {
		s.Top[f.Name] = true
	}
	fmt.Fprintf(s.listing, "%o %d %d %d %q", f.Stat.Mode, f.Stat.Uid, f.Stat.Gid, f.Stat.Mtim.Sec, f.Path)
	var err error
	switch f.Kind() {
	case unix.S_IFREG:
		err = s.file(f)
	case unix.S_IFLNK:
		var target string
		target, err = f.Readlink()
		fmt.Fprintf(s.listing, " %q", target)
	case unix.S_IFDIR:
		err = s.directory(f)
	}
	if err != nil {
		return fmt.Errorf("cannot read back image file=%s: %w", Quote(f.Path), err)
	}
	_, err = io.WriteString(s.listing, "\n")
	return err
}

func (s *survey) file(f Found) error {
	file, err := f.Open()
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
	fmt.Fprintf(s.listing, " %d %x", f.Stat.Size, h.Sum(nil))
	return s.attributes(file)
}

func (s *survey) directory(f Found) error {
	fd, err := unix.Openat(int(f.Dir.Fd()), f.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), f.Path)
	defer dir.Close()
	return s.attributes(dir)
}

func (s *survey) attributes(f *os.File) error {
	return Xattrs(f, func(name string, value []byte) error {
		if KeepXattr(name) {
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
func (p *programs) see(f Found, start []byte) {
	const minimal = 20
	if f.Stat.Mode&0o111 == 0 || len(start) < minimal || string(start[:4]) != "\x7fELF" {
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
		if path == f.Path {
			rank = i + 1
		}
	}
	if rank > len(tellers) && arch == runtime.GOARCH {
		rank = len(tellers) + 1 // one program that runs here is enough
	}
	if p.rank == 0 || rank < p.rank {
		p.arch, p.file, p.rank = arch, f.Path, rank
	}
}

// Disk returns the bytes that a tree's files take on disk.
func Disk(root *os.File) (int64, error) {
	var disk int64
	seen := map[inode]bool{}
	_, err := Walk(root, func(f Found) error {
		if f.Kind() == unix.S_IFREG && f.Stat.Nlink > 1 {
			id := inode{uint64(f.Stat.Dev), f.Stat.Ino}
			if seen[id] {
				return nil
			}
			seen[id] = true
		}
		disk += f.Stat.Blocks * 512
		return nil
	})
	return disk, err
}
