package initwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"syscall"
	"testing"
	"time"
)

func frameBytes(magic, kind uint32, a, b int32, c, d uint64) []byte {
	le := binary.LittleEndian
	p := le.AppendUint32(nil, magic)
	p = le.AppendUint32(p, kind)
	p = le.AppendUint32(p, uint32(a))
	p = le.AppendUint32(p, uint32(b))
	p = le.AppendUint64(p, c)
	p = le.AppendUint64(p, d)
	return le.AppendUint64(p, 0)
}

// about makes a frame one of an exec.
func about(exec uint32, frame []byte) []byte {
	binary.LittleEndian.PutUint32(frame[32:], exec)
	return frame
}

func TestReadFrame(t *testing.T) {
	tests := []struct {
		name string
		in   []byte
		want Frame // zero: refused
	}{
		{"ready", frameBytes(frameMagic, 1, 0, 0, 0, 5), Frame{Type: Ready, Time: 5}},
		{"started", frameBytes(frameMagic, 2, 7, 0, 0, 0), Frame{Type: Started, Pid: 7}},
		{"exit code", frameBytes(frameMagic, 3, 255, 0, 3, 0), Frame{Type: Exited, Code: 255, CPU: 3 * time.Microsecond}},
		{"exit by signal", frameBytes(frameMagic, 3, -1, 9, 0, 0), Frame{Type: Exited, Code: -1, Signal: syscall.SIGKILL}},
		{"error", frameBytes(frameMagic, 4, 2, 5, 0, 0), Frame{Type: Failed, Errno: syscall.ENOENT, Stage: StageExec}},
		{"deadline", frameBytes(frameMagic, 5, 0, 0, 0, 0), Frame{Type: Deadline}},
		{"serving", frameBytes(frameMagic, 6, 0, 0, 0, 1), Frame{Type: Serving, Time: 1}},
		{"an exec's exit", about(7, frameBytes(frameMagic, 3, 1, 0, 3, 0)), Frame{Type: Exited, Exec: 7, Code: 1, CPU: 3 * time.Microsecond}},
		{"an exec's error", about(1<<32-1, frameBytes(frameMagic, 4, 2, 5, 0, 0)), Frame{Type: Failed, Exec: 1<<32 - 1, Errno: syscall.ENOENT, Stage: StageExec}},

		{"other magic", frameBytes(jobMagic, 1, 0, 0, 0, 0), Frame{}},
		{"type 0", frameBytes(frameMagic, 0, 0, 0, 0, 0), Frame{}},
		{"unknown type", frameBytes(frameMagic, 7, 0, 0, 0, 0), Frame{}},
		{"an exec's ready", about(1, frameBytes(frameMagic, 1, 0, 0, 0, 0)), Frame{}},
		{"an exec's deadline", about(1, frameBytes(frameMagic, 5, 0, 0, 0, 0)), Frame{}},
		{"serving with a value", frameBytes(frameMagic, 6, 0, 1, 0, 0), Frame{}},
		{"more behind the exec", append(frameBytes(frameMagic, 1, 0, 0, 0, 0)[:36], 1, 0, 0, 0), Frame{}},
		{"ready with a value", frameBytes(frameMagic, 1, 1, 0, 0, 0), Frame{}},
		{"pid 0", frameBytes(frameMagic, 2, 0, 0, 0, 0), Frame{}},
		{"negative pid", frameBytes(frameMagic, 2, -2, 0, 0, 0), Frame{}},
		{"exit code 256", frameBytes(frameMagic, 3, 256, 0, 0, 0), Frame{}},
		{"code and signal", frameBytes(frameMagic, 3, 1, 9, 0, 0), Frame{}},
		{"neither code nor signal", frameBytes(frameMagic, 3, -1, 0, 0, 0), Frame{}},
		{"signal 65", frameBytes(frameMagic, 3, -1, 65, 0, 0), Frame{}},
		{"CPU time overflows", frameBytes(frameMagic, 3, 0, 0, 1<<63, 0), Frame{}},
		{"clock overflows", frameBytes(frameMagic, 1, 0, 0, 0, 1<<63), Frame{}},
		{"errno 0", frameBytes(frameMagic, 4, 0, 5, 0, 0), Frame{}},
		{"unknown stage", frameBytes(frameMagic, 4, 2, 8, 0, 0), Frame{}},
		{"half a frame", frameBytes(frameMagic, 1, 0, 0, 0, 0)[:16], Frame{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ReadFrame(bytes.NewReader(tt.in))
			if refused := tt.want == (Frame{}); got != tt.want || (err != nil) != refused {
				t.Errorf("ReadFrame(%x) = %+v, %v, want %+v", tt.in, got, err, tt.want)
			}
			if errors.Is(err, io.EOF) {
				t.Errorf("ReadFrame(%x): error is io.EOF, which means a clean end", tt.in)
			}
		})
	}
	if _, err := ReadFrame(bytes.NewReader(nil)); err != io.EOF {
		t.Errorf("at the end: error = %v, want io.EOF", err)
	}
}

// FuzzReadFrame checks that whatever is accepted is in range and takes one frame.
func FuzzReadFrame(f *testing.F) {
	f.Add(frameBytes(frameMagic, 3, -1, 9, 1, 2))
	f.Add(frameBytes(frameMagic, 4, 2, 5, 0, 2))
	f.Add([]byte("ENG3"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		got, err := ReadFrame(r)
		if err != nil {
			if got != (Frame{}) {
				t.Errorf("frame %+v beside error %v", got, err)
			}
			return
		}
		if used := len(b) - r.Len(); used != frameSize {
			t.Errorf("used %d bytes, want %d", used, frameSize)
		}
		if got.Type < Ready || got.Type > Serving || got.Time < 0 || got.CPU < 0 || got.Pid < 0 ||
			got.Code < -1 || got.Code > 255 || got.Signal < 0 || got.Signal > maxSignal {
			t.Errorf("accepted %+v", got)
		}
	})
}
