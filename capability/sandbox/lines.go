package sandbox

import (
	"bufio"
	"bytes"
	"io"
	"strings"
)

const maxLine = 16 << 10

// ReadLines calls log for each line, as valid UTF-8 and without its end. A longer line
// than maxLine comes in pieces, so that a program cannot fill the memory with one.
func ReadLines(r io.Reader, log func(string)) {
	in := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 {
			line = bytes.TrimSuffix(line, []byte("\n"))
			log(strings.ToValidUTF8(string(bytes.TrimSuffix(line, []byte("\r"))), "\ufffd"))
		}
		if err != nil && err != bufio.ErrBufferFull {
			return
		}
	}
}
