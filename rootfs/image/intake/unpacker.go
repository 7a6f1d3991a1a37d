package intake

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image/tree"
)

// Unpacker is the program that takes archives apart: engine-image, started as a child
// that sees nothing but the directory it fills. Its main must call Confined when
// IsConfined says so. It must be built without cgo.
type Unpacker struct {
	Program string // required, absolute path
}

// UnpackError reports a child that could not do its work.
type UnpackError struct {
	Why string
	Fix string
}

func (e *UnpackError) Error() string { return "cannot unpack in a confined process: " + e.Why }

// Remedy returns the cure, or "" when none is known.
func (e *UnpackError) Remedy() string { return e.Fix }

// report is what the child has to say when it ends.
type report struct {
	Counts  tree.Counts `json:"counts"`
	Opaque  [][]byte    `json:"opaque"` // names need not be UTF-8
	Hiding  [][]byte    `json:"hiding"`
	Implied [][]byte    `json:"implied"`
	Failure *failure    `json:"failure"`
}

// failure is an error on its way between the processes.
type failure struct {
	Entry []byte `json:"entry"` // an *EntryError
	Why   string `json:"why"`
	What  string `json:"what"` // a *LimitError
	Limit int64  `json:"limit"`
	Fix   string `json:"fix"`
	Errno int    `json:"errno"`
	Cut   bool   `json:"cut"` // the archive ends too early
	Setup bool   `json:"setup"`
}

const maxReport = 64 << 20

func (r report) marks() tree.Marks {
	set := func(names [][]byte) map[string]bool {
		all := make(map[string]bool, len(names))
		for _, n := range names {
			all[string(n)] = true
		}
		return all
	}
	return tree.Marks{Opaque: set(r.Opaque), Hiding: set(r.Hiding), Implied: set(r.Implied)}
}

func (f *failure) err() error {
	switch {
	case f == nil:
		return nil
	case f.Setup:
		return &UnpackError{Why: f.Why}
	case f.What != "":
		return &tree.LimitError{What: f.What, Limit: f.Limit, Fix: f.Fix}
	case f.Errno == int(unix.ENOSPC), f.Errno == int(unix.EDQUOT):
		return syscall.Errno(f.Errno)
	case f.Cut:
		return io.ErrUnexpectedEOF
	case f.Entry != nil:
		return &tree.EntryError{Entry: string(f.Entry), Why: f.Why}
	}
	return errors.New(f.Why)
}

// Unpack fills dir, an empty directory, from the plain archive that stream carries,
// and reads the stream to its end. lock is inherited by the child. An error of the
// stream's is returned as it is.
//
// SECURITY: what takes a foreign archive apart has no right on this host, no network, and sees one directory.
// A fault in it, or in the kernel's lookup of a hostile path, would otherwise be root's.
// Holds because: the child is in user, mount, PID, network, IPC and UTS namespaces of its own, its
// root is the directory, its capabilities are those that owners and modes need and count inside
// its user namespace only, its system calls are those of a sandboxed program, it gets no
// environment but its own, and four descriptors: the archive, its report,
// the import's lock, and a pipe for the words of a crash. Decompression and digests are this
// process's, so that the child cannot pass one layer off as another.
// Not covered: kernel faults in the system calls that are left. Checked by: TestUnpackerIsConfined.
func (u Unpacker) Unpack(ctx context.Context, dir string, l tree.Limits, lock *os.File, stream io.Reader) (report, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return report{}, fmt.Errorf("cannot make directory=%s absolute: %w", dir, err)
	}
	limits, err := json.Marshal(l)
	if err != nil {
		return report{}, fmt.Errorf("internal error: cannot encode limits: %w", err)
	}
	attr, err := namespaces()
	if err != nil {
		return report{}, err
	}
	archive, feed, err := os.Pipe()
	if err != nil {
		return report{}, &UnpackError{Why: err.Error()}
	}
	defer feed.Close()
	defer archive.Close()
	told, tell, err := os.Pipe()
	if err != nil {
		return report{}, &UnpackError{Why: err.Error()}
	}
	defer told.Close()
	defer tell.Close()
	// Fewer switches between the two; where the limit is lower the default stays.
	_, _ = unix.FcntlInt(feed.Fd(), unix.F_SETPIPE_SZ, 1<<20)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	words := &bounded{left: 4 << 10}
	cmd := exec.CommandContext(ctx, u.Program, dir, string(limits))
	cmd.Args[0] = confinedName
	cmd.Env = []string{"GOTRACEBACK=none", "GOMAXPROCS=2", "GODEBUG=asyncpreemptoff=1"} // see filterCalls
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stderr = archive, words
	cmd.ExtraFiles = []*os.File{tell, lock}
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		return report{}, &UnpackError{Why: err.Error(), Fix: startFix(err)}
	}
	archive.Close()
	tell.Close()
	answer := make(chan answered, 1)
	go func() {
		var a answered
		a.data, a.err = io.ReadAll(io.LimitReader(told, maxReport+1))
		answer <- a
	}()
	_, copyErr := io.CopyBuffer(struct{ io.Writer }{feed}, struct{ io.Reader }{stream}, make([]byte, 256<<10))
	feed.Close()
	if copyErr != nil && !errors.Is(copyErr, unix.EPIPE) {
		cancel() // the child is not to take half an archive for a whole one
	}
	a := <-answer
	waitErr := cmd.Wait()
	if copyErr != nil && !errors.Is(copyErr, unix.EPIPE) {
		return report{}, copyErr
	}
	return a.report(waitErr, words.String())
}

// answered is what came through the report's pipe.
type answered struct {
	data []byte
	err  error
}

func (a answered) report(waitErr error, words string) (report, error) {
	var r report
	if a.err != nil {
		return r, &UnpackError{Why: a.err.Error()}
	}
	if len(a.data) > maxReport {
		return r, &UnpackError{Why: "its report is too long"}
	}
	if err := json.Unmarshal(a.data, &r); err != nil {
		why := "it ended without a report"
		if waitErr != nil {
			why += ": " + waitErr.Error()
		}
		if words != "" {
			why += ": " + tree.Quote(words)
		}
		return r, &UnpackError{Why: why}
	}
	return r, r.Failure.err()
}

func startFix(err error) string {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		return "allow user namespaces: sysctl user.max_user_namespaces=10000"
	}
	return ""
}

// namespaces puts the child into ones of its own. Its user namespace maps every id to
// itself, so that files get the owners the archive names, and is its own all the same:
// no capability in it counts outside.
func namespaces() (*syscall.SysProcAttr, error) {
	uids, err := sameIDs("/proc/self/uid_map")
	if err != nil {
		return nil, err
	}
	gids, err := sameIDs("/proc/self/gid_map")
	if err != nil {
		return nil, err
	}
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		UidMappings: uids, GidMappings: gids,
		Setsid: true, // a terminal's interrupt is the parent's to handle
	}, nil
}

// sameIDs maps each id that this process has to itself.
func sameIDs(path string) ([]syscall.SysProcIDMap, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, &UnpackError{Why: err.Error()}
	}
	var all []syscall.SysProcIDMap
	for line := range strings.Lines(string(data)) {
		var inside, outside, count int
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err != nil {
			return nil, &UnpackError{Why: "cannot read " + path + ": " + err.Error()}
		}
		all = append(all, syscall.SysProcIDMap{ContainerID: inside, HostID: inside, Size: count})
	}
	return all, nil
}

// bounded keeps the first bytes that are written to it.
type bounded struct {
	bytes.Buffer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	b.Buffer.Write(p[:n])
	return len(p), nil
}
