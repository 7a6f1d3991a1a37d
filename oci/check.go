package oci

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Patterns are matched by hand: compiling them costs a third of a millisecond at
// every start of a program that links this package.
const (
	digits  = "0123456789"
	smalls  = "abcdefghijklmnopqrstuvwxyz"
	letters = smalls + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// only reports whether s is not empty and made of the bytes in set alone.
func only(s, set string) bool { return s != "" && strings.Trim(s, set) == "" }

func isID(s string) bool { return len(s) == 16 && only(s, smalls+digits) }

func isHostname(s string) bool {
	ends := letters + digits
	return len(s) <= 64 && only(s, ends+".-") && only(s[:1], ends) && only(s[len(s)-1:], ends)
}

func isCgroup(s string) bool {
	rest, ok := strings.CutPrefix(s, "/")
	if !ok {
		return false
	}
	for name := range strings.SplitSeq(rest, "/") {
		if !only(name, letters+digits+"._-") || name[0] == '.' || name[0] == '-' {
			return false
		}
	}
	return true
}

func isCPUSet(s string) bool {
	for span := range strings.SplitSeq(s, ",") {
		first, last, isSpan := strings.Cut(span, "-")
		if !only(first, digits) || len(first) > 4 || isSpan && (!only(last, digits) || len(last) > 4) {
			return false
		}
	}
	return true
}

// procFiles are the only files of /proc that may be covered: those by which a
// program learns the size of the machine, and which runc lets be covered.
var procFiles = []string{
	"/proc/cpuinfo", "/proc/diskstats", "/proc/loadavg", "/proc/meminfo", "/proc/stat", "/proc/swaps", "/proc/uptime",
}

// rlimitTypes are those that Linux has.
var rlimitTypes = []string{
	"RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_LOCKS", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE",
	"RLIMIT_NICE", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_RSS", "RLIMIT_RTPRIO", "RLIMIT_RTTIME", "RLIMIT_SIGPENDING", "RLIMIT_STACK",
}

// maxID is the highest uid and gid inside: the block of a run ends there.
const maxID = blockSize - 1

func refuse(field string, value any, why string) error {
	return fmt.Errorf("cannot render %s=%.200q: %s", field, fmt.Sprint(value), why)
}

// check refuses an intent that would need a wider sandbox than the engine has,
// or that a runtime would read otherwise than it is meant.
func (in Intent) check(d dialect) error {
	if in.ID != "" && !isID(in.ID) {
		return refuse("ID", in.ID, "not 16 lower-case letters and digits")
	}
	if !d.selfContained && !isAbsolute(in.Root) {
		return refuse("Root", in.Root, "not a clean absolute path")
	}
	if in.Hostname != "" && !isHostname(in.Hostname) {
		return refuse("Hostname", in.Hostname, "not a host name of at most 64 letters, digits, dots and hyphens")
	}
	if in.NetNS != "" && !isAbsolute(in.NetNS) {
		return refuse("NetNS", in.NetNS, "not a clean absolute path")
	}
	if in.CgroupsPath != "" && !isCgroup(in.CgroupsPath) {
		return refuse("CgroupsPath", in.CgroupsPath, "not an absolute path of plain names")
	}
	if err := in.checkProcess(); err != nil {
		return err
	}
	if err := in.checkIdentity(); err != nil {
		return err
	}
	if err := in.checkLimits(); err != nil {
		return err
	}
	return in.checkMounts(d)
}

func (in Intent) checkProcess() error {
	if len(in.Args) == 0 || in.Args[0] == "" {
		return refuse("Args", in.Args, "no command")
	}
	for _, s := range slices.Concat(in.Args, in.Env) {
		if strings.ContainsRune(s, 0) {
			return refuse("Args or Env", s, "a NUL byte ends a string in the kernel")
		}
	}
	for _, e := range in.Env {
		if strings.IndexByte(e, '=') < 1 {
			return refuse("Env", e, "not NAME=VALUE")
		}
	}
	if !isAbsolute(in.Cwd) || isKernelPath(in.Cwd) {
		return refuse("Cwd", in.Cwd, "not a clean absolute path outside /proc, /sys and /dev")
	}
	if in.Umask != nil && *in.Umask > 0o777 {
		return refuse("Umask", *in.Umask, "not within 0777")
	}
	return nil
}

func (in Intent) checkIdentity() error {
	// Inside, 0 would own the mounts and, without a user namespace, the host.
	if in.UID == 0 || in.UID > maxID {
		return refuse("UID", in.UID, "not within 1 and 65535")
	}
	if in.GID == 0 || in.GID > maxID {
		return refuse("GID", in.GID, "not within 1 and 65535")
	}
	if in.HostID < blockSize || in.HostID > 1<<31-blockSize {
		return refuse("HostID", in.HostID, "the block of 65536 ids would hold the host's own users, or ids above 2^31")
	}
	return nil
}

func (in Intent) checkLimits() error {
	for _, size := range []struct {
		field string
		bytes int64
	}{{"TmpSize", in.TmpSize}, {"WorkspaceSize", in.WorkspaceSize}, {"ShmSize", in.ShmSize}} {
		// The kernel takes size=0 for no limit.
		if size.bytes < 1 || size.bytes > MaxSize {
			return refuse(size.field, size.bytes, "not a positive number of bytes within 1 PiB")
		}
	}
	if in.Memory < 0 || in.Pids < 0 {
		return refuse("Memory or Pids", min(in.Memory, in.Pids), "negative")
	}
	// A quota below a millisecond is refused by the kernel.
	if in.CPUs != 0 && !(in.CPUs >= 0.01 && in.CPUs <= 8192) {
		return refuse("CPUs", in.CPUs, "not within 0.01 and 8192")
	}
	if in.CPUSet != "" && !isCPUSet(in.CPUSet) {
		return refuse("CPUSet", in.CPUSet, "not a list of CPUs like 0-3,8")
	}
	seen := map[string]bool{}
	for _, r := range in.Rlimits {
		if !slices.Contains(rlimitTypes, r.Type) || seen[r.Type] {
			return refuse("Rlimits", r.Type, "unknown, or given twice")
		}
		if r.Soft > r.Hard {
			return refuse("Rlimits", r.Type, "soft limit above the hard one")
		}
		seen[r.Type] = true
	}
	return nil
}

// checkMounts lets a mount hide nothing that the sandbox is made of.
func (in Intent) checkMounts(d dialect) error {
	taken := map[string]bool{tmpDir: true, workDir: true, secretsDir: in.SecretFiles}
	for _, t := range in.Tmpfs {
		if why := tmpfsRefused(t.Path); why != "" {
			return refuse("Tmpfs", t.Path, why)
		}
		if taken[t.Path] || in.SecretFiles && isBelow(t.Path, secretsDir) {
			return refuse("Tmpfs", t.Path, "given twice, or one of the engine's own")
		}
		if t.Size < 1 || t.Size > MaxSize {
			return refuse("Tmpfs", t.Path, "its size is not a positive number of bytes within 1 PiB")
		}
		taken[t.Path] = true
	}
	for _, m := range in.Mounts {
		if !isAbsolute(m.Source) || m.Source == "/" {
			return refuse("Mounts", m.Source, "not a clean absolute path on the host")
		}
		if why := MountRefused(m.Path); why != "" {
			return refuse("Mounts", m.Path, why)
		}
		for other := range taken {
			if taken[other] && (other == m.Path || isBelow(other, m.Path)) {
				return refuse("Mounts", m.Path, "it would hide "+other)
			}
		}
		if m.Owner != nil && (!d.selfContained || m.Owner.UID == 0 || m.Owner.GID == 0) {
			return refuse("Mounts", m.Path, "an owner of root's, or mapped already")
		}
	}
	for _, m := range in.Mounts {
		if taken[m.Path] {
			return refuse("Mounts", m.Path, "given twice")
		}
		taken[m.Path] = true
	}
	for _, b := range in.Binds {
		if !isAbsolute(b.Source) {
			return refuse("Binds", b.Source, "not a clean absolute path on the host")
		}
		if !isAbsolute(b.Destination) || b.Destination == "/" || taken[b.Destination] {
			return refuse("Binds", b.Destination, "not a clean absolute path inside, or given twice")
		}
		if isKernelPath(b.Destination) && !slices.Contains(procFiles, b.Destination) {
			return refuse("Binds", b.Destination, "not one of the files of /proc that may be covered")
		}
		taken[b.Destination] = true
	}
	return nil
}

// tmpfsRefused says why there can be no tmpfs at a path, "" if there can.
func tmpfsRefused(p string) string {
	switch {
	case !isAbsolute(p) || p == "/":
		return "not a clean absolute path below /"
	case strings.ContainsAny(p, "\n\t\\"):
		return "a control character or backslash in the path"
	case isKernelPath(p):
		return "/proc, /sys and /dev belong to the engine"
	case p == "/.engine" || isBelow(p, "/.engine"):
		return "it would hide the engine's init"
	}
	return ""
}

// enginePlaces hold what the engine puts there; no directory of the host lies in one of
// them, or above.
var enginePlaces = []string{"/.engine", "/dev", "/etc", "/proc", secretsDir, "/sys"}

// MountRefused says why no directory of the host can be at a path inside, "" if one can.
func MountRefused(p string) string {
	if !isAbsolute(p) || p == "/" {
		return "not a clean absolute path below /"
	}
	if strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
		return "a control character or backslash in the path"
	}
	for _, place := range enginePlaces {
		if p == place || isBelow(p, place) || isBelow(place, p) {
			return place + " belongs to the engine"
		}
	}
	if p == tmpDir || p == workDir {
		return "the sandbox's own scratch space is there; choose a directory below it"
	}
	return ""
}

func isAbsolute(p string) bool {
	return strings.HasPrefix(p, "/") && path.Clean(p) == p && !strings.ContainsRune(p, 0)
}

func isBelow(p, dir string) bool { return strings.HasPrefix(p, dir+"/") }

// isKernelPath reports whether p is /proc, /sys or /dev or lies in one of them.
func isKernelPath(p string) bool {
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if p == dir || isBelow(p, dir) {
			return true
		}
	}
	return false
}
