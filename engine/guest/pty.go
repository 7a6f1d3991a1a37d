package guest

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// Path is where the program is, inside every sandbox.
const Path = "/.engine/guest"

// FilesCommand is the program that NewFiles speaks to.
func FilesCommand() []string { return []string{Path, "files"} }

// PTYCommand is what to start in place of command, so that it has a terminal of this
// size; both 0 mean that it is not known. Its stdin is then written by a PTYWriter, and
// its stdout is what the terminal shows.
func PTYCommand(rows, columns uint16, command []string) []string {
	return append([]string{Path, "pty", fmt.Sprintf("%dx%d", rows, columns), "--"}, command...)
}

// maxKeys is what one frame of keys holds.
const maxKeys = 64 << 10

// PTYWriter frames what a terminal is told. It is safe for several callers, whose keys
// and sizes then come one after the other.
type PTYWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// NewPTYWriter writes to the stdin of a PTYCommand.
func NewPTYWriter(w io.Writer) *PTYWriter { return &PTYWriter{w: w} }

// Write types p. It waits while the program does not read.
func (t *PTYWriter) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for written := 0; ; {
		n := min(len(p)-written, maxKeys)
		if n == 0 {
			return written, nil
		}
		if err := t.frame('D', p[written:written+n]); err != nil {
			return written, err
		}
		written += n
	}
}

// Resize gives the window another size.
func (t *PTYWriter) Resize(rows, columns uint16) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.frame('R', binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, rows), columns))
}

// End says that no more is typed: the program sees the end of the file, as after ^D.
// Nothing may be written after it.
func (t *PTYWriter) End() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.frame('E', nil)
}

// frame writes one frame in one piece.
func (t *PTYWriter) frame(kind byte, data []byte) error {
	b := binary.LittleEndian.AppendUint32([]byte{kind}, uint32(len(data)))
	_, err := t.w.Write(append(b, data...))
	return err
}
