package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

// Names and numbers are those of cmd/engine-guest/files.c.
const (
	helloMagic   = 0x31464745 // "EGF1"
	helloVersion = 1
	helloSize    = 16
	headerSize   = 16
	maxPayload   = 256 << 10
	statSize     = 32
	maxPath      = 4095
	maxName      = 255

	keep = 0xffffffff // of a mode or a time
	lost = 0xffffffff // of a watch: news were lost
)

type op byte

const (
	opStat op = 1 + iota
	opList
	opOpen
	opRead
	opCreate
	opWrite
	opCommit
	opClose
	opMkdir
	opRename
	opRemove
	opSymlink
	opLink
	opReadlink
	opChmod
	opWatch
	opUnwatch
)

var opNames = map[op]string{
	opStat: "stat", opList: "list", opOpen: "open", opRead: "read", opCreate: "create", opWrite: "write",
	opCommit: "commit", opClose: "close", opMkdir: "mkdir", opRename: "rename", opRemove: "remove",
	opSymlink: "symlink", opLink: "link", opReadlink: "readlink", opChmod: "chmod", opWatch: "watch", opUnwatch: "unwatch",
}

func (o op) String() string { return opNames[o] }

type flags byte

const (
	noFollow flags = 1 << iota
	directory
	parents
	exclusive
	recursive
)

const (
	kindDone = iota
	kindError
	kindEvent
)

// request is what the guest is asked.
type request struct {
	op      op
	flags   flags
	base    uint32
	payload []byte
}

// encode writes the request as it is sent.
func (r request) encode(id uint32) []byte {
	b := make([]byte, 0, headerSize+len(r.payload))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.payload)))
	b = binary.LittleEndian.AppendUint32(b, id)
	b = append(b, byte(r.op), byte(r.flags), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, r.base)
	return append(b, r.payload...)
}

// answer is what the guest says. Nobody vouches for it.
type answer struct {
	id      uint32
	kind    byte
	value   uint32
	payload []byte
}

// header reads an answer's header, and the size of the payload that follows.
func parseHeader(unsafeHeader []byte) (a answer, size int, err error) {
	h := unsafeHeader
	n := binary.LittleEndian.Uint32(h)
	a = answer{id: binary.LittleEndian.Uint32(h[4:]), kind: h[8], value: binary.LittleEndian.Uint32(h[12:])}
	switch {
	case n > maxPayload:
		return a, 0, fmt.Errorf("an answer of %d bytes", n)
	case a.kind > kindEvent || h[9] != 0 || h[10] != 0 || h[11] != 0:
		return a, 0, fmt.Errorf("an answer of unknown kind %x", h[8:12])
	case a.kind == kindError && (n != 0 || a.value == 0 || a.value >= 4096):
		return a, 0, fmt.Errorf("an error with number %d and %d bytes", a.value, n)
	case a.kind == kindEvent && (a.id != 0 || n < 8 || n > 8+maxName):
		return a, 0, fmt.Errorf("news of %d bytes for request %d", n, a.id)
	}
	return a, int(n), nil
}

func parseHello(unsafeHello []byte) error {
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(unsafeHello[4*i:]) }
	if word(0) != helloMagic || word(1) != helloVersion || word(2) != maxPayload || word(3) != 0 {
		return fmt.Errorf("a first message %x, which is not that of this version's guest", unsafeHello)
	}
	return nil
}

// Info is what a sandbox says about one of its files.
type Info struct {
	Name    string // the last name of its path
	Mode    fs.FileMode
	Size    int64
	UID     uint32 // inside
	GID     uint32
	ModTime time.Time
}

// parseStat reads a stat. Sizes and times are bounded, so that no caller has to.
func parseStat(unsafeStat []byte, name string) (Info, error) {
	b := unsafeStat
	if len(b) < statSize {
		return Info{}, fmt.Errorf("a stat of %d bytes", len(b))
	}
	mode, ok := fileMode(binary.LittleEndian.Uint32(b))
	size := binary.LittleEndian.Uint64(b[16:])
	seconds, nanoseconds := int64(binary.LittleEndian.Uint64(b[24:])), binary.LittleEndian.Uint32(b[12:])
	if !ok || size > 1<<62 || seconds < -1<<40 || seconds > 1<<40 || nanoseconds >= 1e9 {
		return Info{}, fmt.Errorf("an impossible stat %x", b[:statSize])
	}
	return Info{
		Name: name, Mode: mode, Size: int64(size), ModTime: time.Unix(seconds, int64(nanoseconds)),
		UID: binary.LittleEndian.Uint32(b[4:]), GID: binary.LittleEndian.Uint32(b[8:]),
	}, nil
}

// fileMode translates a mode of the kernel's.
func fileMode(unsafeMode uint32) (fs.FileMode, bool) {
	mode := fs.FileMode(unsafeMode & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{syscall.S_ISUID: fs.ModeSetuid, syscall.S_ISGID: fs.ModeSetgid, syscall.S_ISVTX: fs.ModeSticky} {
		if unsafeMode&bit != 0 {
			mode |= flag
		}
	}
	switch unsafeMode &^ 0o7777 {
	case syscall.S_IFREG:
	case syscall.S_IFDIR:
		mode |= fs.ModeDir
	case syscall.S_IFLNK:
		mode |= fs.ModeSymlink
	case syscall.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case syscall.S_IFSOCK:
		mode |= fs.ModeSocket
	case syscall.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case syscall.S_IFBLK:
		mode |= fs.ModeDevice
	default:
		return 0, false
	}
	return mode, true
}

// kernelMode is the inverse, of what can be asked for.
func kernelMode(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	for bit, flag := range map[uint32]fs.FileMode{syscall.S_ISUID: fs.ModeSetuid, syscall.S_ISGID: fs.ModeSetgid, syscall.S_ISVTX: fs.ModeSticky} {
		if mode&flag != 0 {
			bits |= bit
		}
	}
	return bits
}

// parseList reads a page of a directory.
func parseList(unsafePage []byte, most int) (next uint64, entries []Info, err error) {
	b := unsafePage
	if len(b) < 8 {
		return 0, nil, fmt.Errorf("a page of %d bytes", len(b))
	}
	next = binary.LittleEndian.Uint64(b)
	for b = b[8:]; len(b) > 0; {
		if len(b) < statSize+2 {
			return 0, nil, fmt.Errorf("a page that ends in %d bytes", len(b))
		}
		size := int(binary.LittleEndian.Uint16(b[statSize:]))
		if size > len(b)-statSize-2 {
			return 0, nil, fmt.Errorf("a page that ends within a name of %d bytes", size)
		}
		name := string(b[statSize+2 : statSize+2+size])
		if !isName(name) {
			return 0, nil, fmt.Errorf("a file called %q", name)
		}
		info, err := parseStat(b, name)
		if err != nil {
			return 0, nil, err
		}
		if entries = append(entries, info); len(entries) > most {
			return 0, nil, fmt.Errorf("more than the %d files asked for", most)
		}
		b = b[statSize+2+size:]
	}
	return next, entries, nil
}

// isName reports whether a name can be that of a file in a directory.
func isName(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= maxName && !strings.ContainsAny(name, "/\x00")
}

var errPath = errors.New("not an absolute path of at most 4095 bytes, each name of at most 255")

// checkPath makes a caller's path one that the guest takes: absolute, without "." and "..".
func checkPath(unsafePath string) (string, error) {
	clean := path.Clean(unsafePath)
	if !path.IsAbs(unsafePath) || len(clean) > maxPath || strings.ContainsRune(clean, 0) {
		return "", errPath
	}
	for name := range strings.SplitSeq(clean, "/") {
		if len(name) > maxName {
			return "", errPath
		}
	}
	return clean, nil
}

// Error is what the kernel said inside about a file. It is also the error of the standard
// library that belongs to the number: errors.Is(err, fs.ErrNotExist).
type Error struct {
	Op    string // "open"
	Path  string // absolute inside, or below what is imported or exported
	Errno syscall.Errno
}

func (e *Error) Error() string {
	at := e.Path
	if !utf8.ValidString(at) {
		at = strconv.Quote(at) // whoever shows the error cannot show its bytes
	}
	return fmt.Sprintf("cannot %s %s inside the sandbox: %s", e.Op, at, e.Errno.Error())
}

// Unwrap returns the number.
func (e *Error) Unwrap() error { return e.Errno }

// RequestError reports a caller's argument that the guest was not asked about.
type RequestError struct {
	Op   string
	Path string
	Why  string
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("cannot %s path=%.200q: %s", e.Op, e.Path, e.Why)
}

// ProtocolError reports a guest that says what none would: a program of the sandbox speaks
// in its place. Nothing more is asked of it.
type ProtocolError struct{ Why string }

func (e *ProtocolError) Error() string {
	return "cannot go on with the sandbox's files: the guest sent " + e.Why
}

// ErrGone is the end of the conversation from the other side: the guest, or its sandbox,
// has ended.
var ErrGone = errors.New("cannot reach the sandbox's files: the guest has ended")

// ErrSilent is the end of a conversation in which the guest did not answer: a program of
// the sandbox has stopped it, or the sandbox is paused. It may still be there.
var ErrSilent = errors.New("cannot reach the sandbox's files: the guest does not answer")
