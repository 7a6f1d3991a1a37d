package rootfs

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// opaqueXattr hides, below a directory of the layer, whatever the image has there.
const opaqueXattr = "trusted.overlay.opaque"

// SECURITY: nothing an image has at or below these directories exists in a sandbox.
// An image can hold /dev -> /host, /proc -> / or a file /workload; a runtime that mounts
// there would follow it. In the layer they are real directories, and opaque.
// Holds because: the layer is the topmost lower directory, and a real directory above a
// symbolic link or file of the same name hides it.
// Not covered: /etc, which is merged so that the image's certificates stay.
// Checked by: TestHostileImages.
var layerDirs = []struct {
	path   string
	mode   os.FileMode
	merged bool
}{
	{path: "dev", mode: 0o755},
	{path: "proc", mode: 0o555},
	{path: "sys", mode: 0o555},
	{path: "sys/fs", mode: 0o555},
	{path: "sys/fs/cgroup", mode: 0o555},
	{path: "tmp", mode: 0o1777},
	{path: "run", mode: 0o755},
	{path: "run/secrets", mode: 0o755},
	{path: "workload", mode: 0o755},
	{path: ".engine", mode: 0o755},
	{path: "etc", mode: 0o755, merged: true},
}

// SECURITY: the files that name users, hosts and resolvers are the engine's own, never the image's.
// A runtime or library that opens /etc/resolv.conf -> /etc/shadow, or asks an image's passwd
// who a number is, acts on an attacker's word.
// Holds because: they are regular files in a real /etc above the image's.
// Not covered: every other file of the image's /etc.
// Checked by: TestHostileImages.
var layerFiles = []struct{ path, content string }{
	{"etc/passwd", "root:x:0:0:root:/root:/bin/sh\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n" +
		"sandbox:x:65532:65532::/workload:/bin/sh\n"},
	{"etc/group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\nsandbox:x:65532:\n"},
	{"etc/hosts", "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n"},
	{"etc/hostname", "sandbox\n"},
	{"etc/resolv.conf", "# No resolver: this sandbox has no network.\n"},
	// Under gVisor a file bound over one of procfs needs one below it to lie on.
	{"proc/cpuinfo", ""},
	{"proc/meminfo", ""},
	{"proc/stat", ""},
	{"etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n" +
		"networks: files\nprotocols: files\nservices: files\n"},
}

// Programs are the engine's own inside every sandbox, by their paths on the host.
type Programs struct {
	Init  string // becomes /.engine/init
	Guest string // becomes /.engine/guest
}

// program is one of them.
type program struct {
	object string // for errors
	source string // on the host
	inside string // in the layer
	st     unix.Stat_t
	bytes  []byte
}

// inspect looks at the programs on the host, without reading them.
func (p Programs) inspect() ([]program, error) {
	all := []program{
		{object: "init", source: p.Init, inside: ".engine/init"},
		{object: "guest", source: p.Guest, inside: ".engine/guest"},
	}
	for i := range all {
		p := &all[i]
		if err := unix.Stat(p.source, &p.st); err != nil {
			return nil, openError("use", p.object, p.source, err)
		}
		if p.st.Mode&unix.S_IFMT != unix.S_IFREG || p.st.Size == 0 {
			return nil, &PathError{Verb: "use", Object: p.object, Path: p.source, Why: "it is not a program"}
		}
	}
	return all, nil
}

// EnsureLayer returns the directory of the engine's own top layer below runDir,
// which holds copies of its programs in /.engine, and builds it first when it
// is not there. It may be called by any number of processes at once; what it
// returns is complete and never changes. Layers of other versions of the programs
// stay, since running sandboxes may stand on them; a reboot clears runDir.
//
// The programs are not read again while a stamp of their devices, inodes, sizes and
// times leads to a layer. That trusts runDir to be writable by root alone, which
// is checked, and root not to forge the change time of a file.
func EnsureLayer(runDir string, programs Programs) (dir string, err error) {
	all, err := programs.inspect()
	if err != nil {
		return "", err
	}
	stamp := filepath.Join(runDir, stampName(all))
	if name, err := os.Readlink(stamp); err == nil {
		if err := checkRunDir(runDir); err != nil {
			return "", err
		}
		dir := filepath.Join(runDir, name)
		if complete(dir, all) {
			return dir, nil
		}
	}
	return buildLayer(runDir, all, stamp)
}

// stampName names the link that leads from one state of the programs to their layer.
func stampName(programs []program) string {
	h := sha256.New()
	writeLayout(h)
	for _, p := range programs {
		st := &p.st
		fmt.Fprintln(h, p.inside, st.Dev, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec)
	}
	return "layer-stamp-" + hex.EncodeToString(h.Sum(nil)[:16])
}

// writeLayout writes everything about the layer except the bytes of the programs.
func writeLayout(w io.Writer) {
	for _, d := range layerDirs {
		fmt.Fprintf(w, "%q %o %v\n", d.path, d.mode, d.merged)
	}
	for _, f := range layerFiles {
		fmt.Fprintf(w, "%q %q\n", f.path, f.content)
	}
}

// SECURITY: the layer comes from a directory in which only root can write.
// Its init is PID 1 of every sandbox and receives every secret.
// Holds because: EnsureLayer refuses a run directory of another owner, or one that its
// group or others may write.
// Not covered: the directories above it. Checked by: TestEnsureLayerRefusesSharedRunDir.
func checkRunDir(runDir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(runDir, &st); err != nil {
		return openError("use", "run-dir", runDir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return openError("use", "run-dir", runDir, unix.ENOTDIR)
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return &PathError{
			Verb: "use", Object: "run-dir", Path: runDir,
			Why: fmt.Sprintf("it belongs to uid %d with mode %#o, so that others than root may change it", st.Uid, st.Mode&0o7777),
			Fix: "run chown root:root " + runDir + " && chmod 0711 " + runDir,
		}
	}
	return nil
}

// complete reports whether dir holds a finished layer with programs of these sizes.
// A layer appears by rename after it was synced, so more need not be looked at.
func complete(dir string, programs []program) bool {
	for _, p := range programs {
		var st unix.Stat_t
		err := unix.Lstat(filepath.Join(dir, p.inside), &st)
		if err != nil || st.Mode != unix.S_IFREG|0o755 || st.Uid != 0 || st.Size != p.st.Size {
			return false
		}
	}
	return true
}

func buildLayer(runDir string, programs []program, stamp string) (string, error) {
	if err := os.MkdirAll(runDir, 0o711); err != nil {
		return "", fmt.Errorf("cannot create run-dir=%s: %w", runDir, err)
	}
	if err := checkRunDir(runDir); err != nil {
		return "", err
	}
	h := sha256.New()
	writeLayout(h)
	for i := range programs {
		if err := programs[i].read(); err != nil {
			return "", err
		}
		fmt.Fprintln(h, programs[i].inside, len(programs[i].bytes))
		h.Write(programs[i].bytes)
	}
	dir := filepath.Join(runDir, "layer-"+hex.EncodeToString(h.Sum(nil)[:16]))

	lock, err := lockDir(runDir)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if !complete(dir, programs) {
		if err := replaceLayer(runDir, dir, programs); err != nil {
			return "", err
		}
	}
	return dir, setStamp(stamp, filepath.Base(dir))
}

// read takes the program's bytes, and its size from them: it may have been replaced since.
func (p *program) read() (err error) {
	if p.bytes, err = os.ReadFile(p.source); err != nil {
		return fmt.Errorf("cannot read %s=%s: %w", p.object, p.source, err)
	}
	p.st.Size = int64(len(p.bytes))
	if !static(p.bytes) {
		return &PathError{
			Verb: "use", Object: p.object, Path: p.source, Why: "it is not a statically linked program",
			Fix: "install the engine-" + p.object + " that was built with this engine",
		}
	}
	return nil
}

// SECURITY: the engine's own programs in a sandbox execute no byte of the image.
// A dynamically linked init would load the image's loader and libraries, a script its shell,
// and they would be handed the secrets; a guest, the files that are written through it.
// Holds because: a layer is built only from a 64-bit ELF file without a PT_INTERP segment.
// Not covered: what the program does by itself. Checked by: TestEnsureLayerRefusesPrograms.
func static(program []byte) bool {
	const (
		headerSize  = 64
		segmentSize = 56
		ptInterp    = 3
	)
	if len(program) < headerSize || !bytes.HasPrefix(program, []byte("\x7fELF\x02\x01")) {
		return false
	}
	at := binary.LittleEndian.Uint64(program[32:])
	size := uint64(binary.LittleEndian.Uint16(program[54:]))
	count := uint64(binary.LittleEndian.Uint16(program[56:]))
	if size != segmentSize || at > uint64(len(program)) || count*size > uint64(len(program))-at {
		return false
	}
	for ; count > 0; count-- {
		if binary.LittleEndian.Uint32(program[at:]) == ptInterp {
			return false
		}
		at += size
	}
	return true
}

// lockDir serialises the builders of one run directory. The kernel lets go of the
// lock when its holder dies.
func lockDir(runDir string) (*os.File, error) {
	path := filepath.Join(runDir, "layer.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open lock=%s: %w", path, err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot take lock=%s: %w", path, err)
	}
	return f, nil
}

// replaceLayer builds the layer beside dir and renames it there.
// Preconditions: the caller holds the lock, so every other build beside it is a dead one's.
func replaceLayer(runDir, dir string, programs []program) error {
	stale, err := filepath.Glob(filepath.Join(runDir, ".layer-*"))
	if err != nil {
		return fmt.Errorf("internal error: cannot list run-dir=%s: %w", runDir, err)
	}
	temp := filepath.Join(runDir, ".layer-"+strconv.Itoa(os.Getpid()))
	for _, path := range append(stale, temp, dir) { // a dir that is there is torn
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("cannot remove unfinished layer=%s: %w", path, err)
		}
	}
	if err := writeLayer(temp, programs); err != nil {
		return errors.Join(fmt.Errorf("cannot build layer=%s: %w", temp, err), os.RemoveAll(temp))
	}
	if err := os.Rename(temp, dir); err != nil {
		return errors.Join(fmt.Errorf("cannot publish layer=%s: %w", dir, err), os.RemoveAll(temp))
	}
	return nil
}

func writeLayer(temp string, programs []program) error {
	if err := makeDir(temp, 0o755, false); err != nil {
		return err
	}
	for _, d := range layerDirs {
		if err := makeDir(filepath.Join(temp, d.path), d.mode, !d.merged); err != nil {
			return err
		}
	}
	for _, f := range layerFiles {
		if err := makeFile(filepath.Join(temp, f.path), 0o644, []byte(f.content)); err != nil {
			return err
		}
	}
	for _, p := range programs {
		if err := makeFile(filepath.Join(temp, p.inside), 0o755, p.bytes); err != nil {
			return err
		}
	}
	f, err := os.Open(temp)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd())) // otherwise a power cut may leave the name without the bytes
}

// makeDir makes a directory with exactly this mode, whatever the umask is.
func makeDir(path string, mode os.FileMode, opaque bool) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	if err := own(path, mode); err != nil {
		return err
	}
	if !opaque {
		return nil
	}
	err := unix.Lsetxattr(path, opaqueXattr, []byte("y"), unix.XATTR_CREATE)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) {
		return &UnsupportedError{
			Feature: "setting trusted extended attributes", Where: filepath.Dir(path),
			Fix: "run the engine as root with CAP_SYS_ADMIN, and use a --run-dir on tmpfs, ext4, xfs or btrfs",
		}
	}
	if err != nil {
		return fmt.Errorf("cannot set %s of %s: %w", opaqueXattr, path, err)
	}
	return nil
}

func makeFile(path string, mode os.FileMode, content []byte) error {
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	return own(path, mode)
}

func own(path string, mode os.FileMode) error {
	if err := os.Lchown(path, 0, 0); err != nil {
		return err
	}
	return unix.Chmod(path, uint32(mode)) // os.Chmod knows the sticky bit by another name
}

// setStamp makes the link stamp lead to the layer of this name.
func setStamp(stamp, layer string) error {
	temp := stamp + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot replace stamp=%s: %w", stamp, err)
	}
	if err := os.Symlink(layer, temp); err != nil {
		return fmt.Errorf("cannot write stamp=%s: %w", stamp, err)
	}
	if err := os.Rename(temp, stamp); err != nil {
		return fmt.Errorf("cannot write stamp=%s: %w", stamp, err)
	}
	return nil
}
