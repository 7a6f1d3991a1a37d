package initwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"syscall"
	"time"
)

// FrameType tells what a Frame reports.
type FrameType uint32

// The frames.
const (
	Ready    FrameType = 1 // engine-init runs and waits for the job or the session
	Started  FrameType = 2 // the job runs, and its secrets are wiped from engine-init; or an exec runs
	Exited   FrameType = 3 // the job or the exec ended
	Failed   FrameType = 4 // the job or the exec could not be started
	Deadline FrameType = 5 // engine-init's own deadline passed
	Serving  FrameType = 6 // the session takes execs
)

func (t FrameType) String() string {
	return name(int64(t), "frame", "READY", "STARTED", "EXIT", "ERR", "DEADLINE", "SERVING")
}

// Stage is the step at which a job could not be started.
type Stage int32

// The stages.
const (
	StageProtocol Stage = 1 // the message was malformed, or there was no memory for it
	StageFiles    Stage = 2 // a file could not be written
	StageCwd      Stage = 3 // the working directory cannot be entered
	StageFilter   Stage = 4 // the filter could not be attached
	StageExec     Stage = 5 // ENOENT and ENOTDIR: not found; any other errno: not executable
	StageFork     Stage = 6 // no process could be made for the job
	StageAffinity Stage = 7 // the CPU mask was refused
)

func (s Stage) String() string {
	return name(int64(s), "stage", "protocol", "files", "cwd", "filter", "exec", "fork", "affinity")
}

// name returns the n'th of names, counted from 1.
func name(n int64, kind string, names ...string) string {
	if n < 1 || n > int64(len(names)) {
		return fmt.Sprintf("%s %d", kind, n)
	}
	return names[n-1]
}

// Frame is one report of engine-init. Fields that its Type does not name are zero.
type Frame struct {
	Type FrameType
	Exec uint32        // Started, Exited, Failed: of a session's exec; 0: of the job, or of the whole sandbox
	Time time.Duration // all: CLOCK_MONOTONIC of what it reports; only differences mean anything outside

	Pid    int            // Started: of the job, inside
	Code   int            // Exited: 0 to 255, or -1 if a signal ended the job
	Signal syscall.Signal // Exited: 0 unless Code is -1
	CPU    time.Duration  // Exited: user and system, of the job and all it left behind that has ended
	Errno  syscall.Errno  // Failed: never 0
	Stage  Stage          // Failed
}

const (
	frameMagic = 0x454e4733
	frameSize  = 40
	maxErrno   = 4095
	maxSignal  = 64
)

// ReadFrame reads one frame. It reads no byte more, and returns io.EOF if r ends
// before the first byte: the sandbox is gone. Whatever is not a frame engine-init
// can have sent is an error, after which r is of no more use.
func ReadFrame(r io.Reader) (Frame, error) {
	var b [frameSize]byte
	if n, err := io.ReadFull(r, b[:]); err != nil {
		// The kernel says ECONNRESET when engine-init ended with a part of the job unread.
		if n == 0 && (err == io.EOF || errors.Is(err, syscall.ECONNRESET)) {
			return Frame{}, io.EOF
		}
		return Frame{}, fmt.Errorf("cannot read frame of engine-init: %w", err)
	}
	le := binary.LittleEndian
	if magic := le.Uint32(b[0:]); magic != frameMagic {
		return Frame{}, fmt.Errorf("cannot read frame of engine-init: magic=%#x, want %#x", magic, frameMagic)
	}
	var (
		kind = FrameType(le.Uint32(b[4:]))
		x, y = int32(le.Uint32(b[8:])), int32(le.Uint32(b[12:]))
		c, d = le.Uint64(b[16:]), le.Uint64(b[24:])
		exec = le.Uint32(b[32:])
	)
	f, ok := parseFrame(kind, x, y, c)
	about := kind == Started || kind == Exited || kind == Failed
	if !ok || d > math.MaxInt64 || exec != 0 && !about || le.Uint32(b[36:]) != 0 {
		return Frame{}, fmt.Errorf("cannot read frame of engine-init: type=%v a=%d b=%d c=%d d=%d exec=%d is out of range", kind, x, y, c, d, exec)
	}
	f.Exec = exec
	f.Time = time.Duration(d)
	return f, nil
}

// parseFrame gives a, b and c the meaning they have in a frame of this type.
func parseFrame(kind FrameType, a, b int32, c uint64) (Frame, bool) {
	f := Frame{Type: kind}
	switch kind {
	case Ready, Deadline, Serving:
		return f, a == 0 && b == 0 && c == 0
	case Started:
		f.Pid = int(a)
		return f, a > 0 && b == 0 && c == 0
	case Exited:
		f.Code, f.Signal, f.CPU = int(a), syscall.Signal(b), time.Duration(c)*time.Microsecond
		code := a >= 0 && a <= 255 && b == 0
		signal := a == -1 && b >= 1 && b <= maxSignal
		return f, (code || signal) && c <= math.MaxInt64/1000
	case Failed:
		f.Errno, f.Stage = syscall.Errno(a), Stage(b)
		return f, a >= 1 && a <= maxErrno && b >= int32(StageProtocol) && b <= int32(StageAffinity) && c == 0
	default:
		return Frame{}, false
	}
}
