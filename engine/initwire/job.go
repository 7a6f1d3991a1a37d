// Package initwire is the monitor's side of its conversation with engine-init,
// the first process of a sandbox.
//
// The two share a stream socket: Pair makes it, the runtime hands one end to
// engine-init as descriptor 3. The monitor sends one job with Send, later signals
// with Signal, and reads frames with ReadFrame:
//
//	READY, STARTED, EXIT           the job ran
//	READY, STARTED, DEADLINE       it ran into engine-init's own deadline
//	READY, ERR                     it could not be started
//
// then end of file. Or it sends a session with SendSession, and then any number of
// programs with SendExec, each under an id of its own:
//
//	READY, SERVING                 the session takes execs
//	STARTED id, EXIT id            one ran, beside others
//	ERR id                         it could not be started; the session goes on
//	DEADLINE, or ERR without id    the session is over
//
// Closing the monitor's end kills the sandbox. The first message may be
// sent before engine-init runs. What is sent is trusted; what is read comes from
// inside a sandbox and is not, so a Frame is checked before it is returned, and
// whoever reads frames should still expect them in any order.
//
// The other side is the C source in cmd/engine-init.
package initwire

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The limits of one job, which engine-init checks again.
const (
	MaxPayload  = 40 << 20 // bytes of arguments, environment, filter and files together
	MaxStrings  = 65536    // arguments, and variables
	MaxExecEnv  = 4096     // variables of an exec
	MaxFilter   = 4096     // instructions
	MaxCPUMask  = 1024     // bytes
	MaxFiles    = 8192
	MaxDeadline = 1 << 41 * time.Millisecond // 69 years
)

const (
	jobMagic    = 0x454e4731
	version     = 3
	headerSize  = 64
	instruction = 8       // bytes of a struct sock_filter
	modeParents = 1 << 31 // File.Parents
)

// Job is one program to start. It holds secrets, in Env and Files.
type Job struct {
	Args     []string      // required; Args[0] is searched on the PATH of Env unless it has a slash
	Env      []string      // all of it, nothing is added
	Cwd      string        // required, absolute
	Filter   []byte        // an array of struct sock_filter; empty: none is attached
	CPUMask  []byte        // sched_setaffinity's mask; empty: any CPU
	Deadline time.Duration // wall clock from receipt, rounded up to a millisecond; 0: none
	Files    []File        // secret files, and the program's own
}

// File is a file that engine-init creates before it starts the job, owned by the
// job's user. Path is absolute, without empty names, "." or ".."; no part of it may be
// a symbolic link, and its directory has to be on a tmpfs.
type File struct {
	Path    string
	Data    []byte
	Mode    uint32 // permissions, whatever the umask; a secret's are 0400
	Parents bool   // directories that are missing on the way are made, mode 0755
}

// JobError reports a job that cannot be put into a message: the request is wrong,
// and nothing has been sent.
type JobError struct {
	Field string // of Job, or "payload" for all of it
	Why   string
}

func (e *JobError) Error() string { return fmt.Sprintf("cannot send job: %s %s", e.Field, e.Why) }

// Pair makes the connected sockets for one sandbox. Guest is for the runtime and
// has to be closed here once the runtime holds it; otherwise neither side notices
// when the other is gone. Both are close-on-exec.
func Pair() (monitor *net.UnixConn, guest *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot create socket pair: %w", err)
	}
	guest = os.NewFile(uintptr(fds[1]), "engine-init")
	f := os.NewFile(uintptr(fds[0]), "monitor")
	defer f.Close() // FileConn has a duplicate
	conn, err := net.FileConn(f)
	if err != nil {
		guest.Close()
		return nil, nil, fmt.Errorf("cannot use socket pair: %w", err)
	}
	return conn.(*net.UnixConn), guest, nil
}

// Send hands job and its three descriptors, all required, to engine-init. It may be
// called before engine-init runs, but a job larger than the socket's buffer (some
// 200 KiB) then blocks until engine-init reads: call Send in a goroutine of its own
// unless engine-init has been READY. Closing conn, or setting its write deadline,
// ends a blocked Send; so does the end of engine-init if Pair's guest was closed.
// Send may be called once per connection. It wipes its own copy of the job; the
// descriptors stay open and belong to the caller. A job that cannot be sent is a
// *JobError.
func Send(conn *net.UnixConn, job Job, stdin, stdout, stderr *os.File) error {
	message, err := job.encode(kindJob, 0)
	if err != nil {
		return err
	}
	defer clear(message)
	if err := sendMessage(conn, message, stdin, stdout, stderr); err != nil {
		return fmt.Errorf("cannot send job: %w", err)
	}
	return nil
}

// sendMessage writes a message, with descriptors on its first byte if there are any.
func sendMessage(conn *net.UnixConn, message []byte, files ...*os.File) error {
	n := 0
	if len(files) > 0 {
		var err error
		if n, err = sendRights(conn, message[:headerSize], files...); err != nil {
			return err
		}
	}
	_, err := conn.Write(message[n:])
	return err
}

// Signal asks engine-init to send sig to the job's process group. It may be called
// once Send has returned, by one goroutine at a time. It is not an error if the job
// has ended.
func Signal(conn *net.UnixConn, sig syscall.Signal) error {
	const signalMessage = 1
	if sig < 1 || sig > 64 {
		return fmt.Errorf("cannot send signal %d: not between 1 and 64", int(sig))
	}
	b := binary.LittleEndian.AppendUint32(nil, signalMessage)
	b = binary.LittleEndian.AppendUint32(b, uint32(sig))
	if _, err := conn.Write(b); err != nil {
		return fmt.Errorf("cannot send signal %d: %w", int(sig), err)
	}
	return nil
}

// sendRights writes b with the files' descriptors attached to its first byte. The
// descriptors are used in place: os.File.Fd would make the files blocking.
func sendRights(conn *net.UnixConn, b []byte, files ...*os.File) (n int, err error) {
	fds := make([]int, 0, len(files))
	var send func(rest []*os.File) error
	send = func(rest []*os.File) error {
		if len(rest) == 0 {
			n, _, err = conn.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
			return err
		}
		raw, err := rest[0].SyscallConn()
		if err != nil {
			return err
		}
		var inner error
		err = raw.Control(func(fd uintptr) {
			fds = append(fds, int(fd))
			inner = send(rest[1:])
		})
		if err != nil {
			return err
		}
		return inner
	}
	err = send(files)
	return n, err
}

// kind tells what a message is.
type kind uint32

const (
	kindJob      kind = 0
	kindSession  kind = 1
	kindExec     kind = 2
	kindSignal   kind = 3
	kindDeadline kind = 4
)

// header is the head of a message of the job's parts.
func (job Job) header(k kind, id, arg uint32, size int) []byte {
	le := binary.LittleEndian
	b := make([]byte, headerSize, headerSize+size)
	for i, v := range []uint32{
		jobMagic, version, uint32(size), uint32(len(job.Args)), uint32(len(job.Env)),
		uint32(len(job.Filter) / instruction), uint32(k), uint32(len(job.Files)),
	} {
		le.PutUint32(b[4*i:], v)
	}
	le.PutUint64(b[32:], uint64((job.Deadline+time.Millisecond-1)/time.Millisecond))
	for i, v := range []uint32{uint32(len(job.CPUMask)), id, arg} {
		le.PutUint32(b[40+4*i:], v)
	}
	return b
}

// encode returns the whole message: header and payload.
func (job Job) encode(k kind, id uint32) ([]byte, error) {
	size, err := job.check(k)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	b := append(append(job.header(k, id, 0, size), job.Cwd...), 0)
	for _, s := range job.Args {
		b = append(append(b, s...), 0)
	}
	for _, s := range job.Env {
		b = append(append(b, s...), 0)
	}
	b = append(b, job.Filter...)
	b = append(b, job.CPUMask...)
	for _, f := range job.Files {
		b = append(append(b, f.Path...), 0)
		mode := f.Mode
		if f.Parents {
			mode |= modeParents
		}
		b = le.AppendUint32(b, mode)
		b = le.AppendUint32(b, uint32(len(f.Data)))
		b = append(b, f.Data...)
	}
	return b, nil
}

// check returns the size of the payload, or why there can be none.
func (job Job) check(k kind) (int, error) {
	counts := []struct {
		field    string
		n, limit int
	}{
		{"Args", len(job.Args), MaxStrings},
		{"Env", len(job.Env), MaxStrings},
		{"Filter", len(job.Filter), MaxFilter * instruction},
		{"CPUMask", len(job.CPUMask), MaxCPUMask},
		{"Files", len(job.Files), MaxFiles},
	}
	for _, c := range counts {
		if c.n > c.limit {
			return 0, &JobError{c.field, fmt.Sprintf("has length %d, more than %d", c.n, c.limit)}
		}
	}
	switch {
	case len(job.Args) == 0 && k != kindSession:
		return 0, &JobError{"Args", "is empty"}
	case !strings.HasPrefix(job.Cwd, "/"):
		return 0, &JobError{"Cwd", fmt.Sprintf("%q is not absolute", job.Cwd)}
	case len(job.Filter)%instruction != 0:
		return 0, &JobError{"Filter", "ends within an instruction"}
	case job.Deadline < 0 || job.Deadline > MaxDeadline:
		return 0, &JobError{"Deadline", fmt.Sprintf("%v is not between 0 and %v", job.Deadline, MaxDeadline)}
	case k == kindExec && len(job.Env) > MaxExecEnv:
		return 0, &JobError{"Env", fmt.Sprintf("has length %d, more than %d", len(job.Env), MaxExecEnv)}
	}
	return job.size()
}

// size adds up the payload, refusing strings that would end early. Values are not
// quoted in errors, since they may be secrets.
func (job Job) size() (int, error) {
	paths := make([]string, len(job.Files))
	size := len(job.Filter) + len(job.CPUMask)
	for i, f := range job.Files {
		if !path.IsAbs(f.Path) || strings.LastIndexByte(f.Path, '/') < 1 || path.Clean(f.Path) != f.Path {
			return 0, &JobError{"Files", fmt.Sprintf("path %q is not absolute, clean and below a directory", f.Path)}
		}
		if f.Mode&^0o777 != 0 {
			return 0, &JobError{"Files", fmt.Sprintf("mode %#o has more than permissions", f.Mode)}
		}
		paths[i] = f.Path
		size += 8 + len(f.Data)
	}
	for _, list := range []struct {
		field  string
		values []string
	}{{"Cwd", []string{job.Cwd}}, {"Args", job.Args}, {"Env", job.Env}, {"Files", paths}} {
		for i, s := range list.values {
			if strings.IndexByte(s, 0) >= 0 {
				return 0, &JobError{list.field, fmt.Sprintf("value %d has a NUL byte", i)}
			}
			size += len(s) + 1
		}
	}
	if size > MaxPayload {
		return 0, &JobError{"payload", fmt.Sprintf("has %d bytes, more than %d", size, MaxPayload)}
	}
	return size, nil
}
