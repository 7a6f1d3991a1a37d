package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/oci"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

// confinedName is how the child is called.
const confinedName = "engine-image-unpack"

// reportFD is where the child says what it did. The descriptor after it is a lock that
// says that the import is alive, and needs nothing done to it.
const reportFD = 3

const (
	confinedHeap = 96 << 20  // what the collector keeps the child below if it can
	confinedData = 512 << 20 // what the kernel lets it have
)

// IsConfined reports whether this process was started by an Unpacker.
func IsConfined() bool { return len(os.Args) == 3 && os.Args[0] == confinedName }

// Confined is the whole life of the child: it locks itself in, fills the directory
// from its standard input, reports and returns its exit status.
func Confined() int {
	out := os.NewFile(reportFD, "report")
	var r report
	root, limits, err := enter(os.Args[1], os.Args[2])
	if err != nil {
		r.Failure = &failure{Setup: true, Why: err.Error()}
	} else {
		r = fill(root, limits)
	}
	if json.NewEncoder(out).Encode(r) != nil || out.Close() != nil {
		return 1
	}
	return 0
}

func fill(root *os.File, limits tree.Limits) report {
	w, err := tree.NewWriter(context.Background(), root, limits)
	if err != nil {
		return report{Failure: describe(err)}
	}
	err = w.Finish(putTar(w, os.Stdin, limits.Layer))
	list := func(set map[string]bool) [][]byte {
		names := make([][]byte, 0, len(set))
		for name := range set {
			names = append(names, []byte(name))
		}
		return names
	}
	return report{
		Counts: w.Counts, Failure: describe(err),
		Opaque: list(w.Marks.Opaque), Hiding: list(w.Marks.Hiding), Implied: list(w.Marks.Implied),
	}
}

func describe(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Why: err.Error(), Cut: errors.Is(err, io.ErrUnexpectedEOF)}
	var entry *tree.EntryError
	if errors.As(err, &entry) {
		f.Entry, f.Why = []byte(entry.Entry), entry.Why
	}
	var limit *tree.LimitError
	if errors.As(err, &limit) {
		f.What, f.Limit, f.Fix = limit.What, limit.Limit, limit.Fix
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		f.Errno = int(errno)
	}
	return f
}

// enter makes dir the root of this process, which then has nothing else, and gives
// up every right that filling it does not need. The namespaces are there already.
func enter(dir, limits string) (*os.File, tree.Limits, error) {
	var l tree.Limits
	if err := json.Unmarshal([]byte(limits), &l); err != nil {
		return nil, l, fmt.Errorf("cannot read the limits: %w", err)
	}
	debug.SetMemoryLimit(confinedHeap)
	unix.Umask(0)
	if err := pivot(dir); err != nil {
		return nil, l, err
	}
	for what, most := range map[int]uint64{unix.RLIMIT_DATA: confinedData, unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: 512, unix.RLIMIT_MEMLOCK: 0} {
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return nil, l, fmt.Errorf("cannot set limit %d: %w", what, err)
		}
	}
	root, err := os.Open("/")
	if err != nil {
		return nil, l, fmt.Errorf("cannot open the new root: %w", err)
	}
	if err := dropCaps(); err != nil {
		return nil, l, err
	}
	return root, l, filterCalls()
}

func pivot(dir string) error {
	steps := []struct {
		what string
		do   func() error
	}{
		{"make mounts private", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }},
		{"bind the directory", func() error { return unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, "") }},
		{"enter the directory", func() error { return unix.Chdir(dir) }},
		{"forbid programs and devices in it", func() error {
			return unix.MountSetattr(unix.AT_FDCWD, ".", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC})
		}},
		{"make it the root", func() error { return unix.PivotRoot(".", ".") }},
		{"let go of the old root", func() error { return unix.Unmount(".", unix.MNT_DETACH) }},
		{"enter the root", func() error { return unix.Chdir("/") }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("cannot %s: %w", s.what, err)
		}
	}
	return nil
}

// keptCaps are what owners and modes need: a file may belong to anybody, and its
// directory forbid writing. Whiteouts need no capability since Linux 5.8.
const keptCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER

// dropCaps takes all other capabilities from every thread of this process.
func dropCaps() error {
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("cannot forbid new rights (is this program built with cgo?): %w", errno)
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if keptCaps&(1<<c) != 0 {
			continue
		}
		_, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0, 0)
		if errno != 0 && errno != unix.EINVAL { // an older kernel knows fewer
			return fmt.Errorf("cannot drop capability %d: %w", c, errno)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: keptCaps, Permitted: keptCaps}}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return fmt.Errorf("cannot drop capabilities: %w", errno)
	}
	return nil
}

// filterCalls leaves every thread of this process the system calls that a sandboxed
// program has, which are more than enough. Signals to PID 1, which this process is
// in its own namespace, are not among them, and the Go runtime is told to do without.
func filterCalls() error {
	filter := oci.Filter()
	if len(filter) == 0 {
		return errors.New("cannot filter system calls: there is no filter for this architecture")
	}
	program := unix.SockFprog{Len: uint16(len(filter) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(&filter[0]))}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("cannot filter system calls: %w", errno)
	}
	return nil
}
