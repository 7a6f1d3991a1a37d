package engine

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// The protocol between a session's monitor and whoever uses the session.
//
// The monitor listens on RUN/<id>/session.sock, for processes of uid 0 alone. Both
// sides send lines of JSON. A connection begins with one request:
//
//	exec         start exec.exec, or join it. Answered by started, or error
//	attach       follow the exec id. Answered by started, or error
//	signal       send a signal to the process group of the exec id. Answered by done, or error
//	resize       give the terminal of the exec id a new size. Answered likewise
//	pause        freeze every process of the sandbox. Idempotent. Answered likewise
//	resume       let them go on. Idempotent. Answered likewise
//	renew        let the session live for ttlMs from now. Answered by done with its deadline, or error
//
// After started the monitor sends
//
//	changed      there may be more output on record. Sent at once after a pause, seldom more
//	             often than its reader reads
//	exit         with the result, which is on disk. It is the last
//
// and takes, until the connection ends,
//
//	stdin        data, for an exec that has stdin; the monitor reads no further while the
//	             program does not
//	closeStdin   nothing follows that
//
// The started of a raw exec comes with two descriptors on its first byte, the far ends
// of the program's stdin and stdout, for the connection that started it alone. The end
// of a connection ends nothing else.
//
// Every message has the version of the protocol. Fields and kinds that a side does not
// know are passed over, so that monitors and services of different age get along; only
// what cannot be passed over raises the version, and a request of a higher version is
// refused with version_mismatch.
const sessionVersion = 1

// The longest line: an exec of largest size, its strings escaped in JSON.
const maxSessionLine = 16 << 20

// sessionRequest is what a client sends.
type sessionRequest struct {
	Version int         `json:"version"`
	Op      string      `json:"op"`
	Exec    *Exec       `json:"exec,omitempty"`
	ID      string      `json:"id,omitempty"`
	Signal  int         `json:"signal,omitempty"`
	Size    *WindowSize `json:"size,omitempty"`
	TTLMs   int64       `json:"ttlMs,omitempty"`
	Data    []byte      `json:"data,omitempty"`
}

// What a client asks for.
const (
	opExec       = "exec"
	opAttach     = "attach"
	opSignal     = "signal"
	opResize     = "resize"
	opPause      = "pause"
	opResume     = "resume"
	opRenew      = "renew"
	opStdin      = "stdin"
	opCloseStdin = "closeStdin"
)

// sessionEvent is what a monitor sends.
type sessionEvent struct {
	Version  int         `json:"version"`
	Event    string      `json:"event"`
	ID       string      `json:"id,omitempty"`     // started: of the exec
	Joined   bool        `json:"joined,omitempty"` // started: it was already
	Deadline *time.Time  `json:"deadline,omitempty"`
	Result   *ExecResult `json:"result,omitempty"`
	Error    *Error      `json:"error,omitempty"`
}

// What a monitor tells.
const (
	eventStarted = "started"
	eventChanged = "changed"
	eventExit    = "exit"
	eventDone    = "done"
	eventError   = "error"
)

// lineReader reads messages, each on a line of bounded length.
type lineReader struct{ scan *bufio.Scanner }

func newLineReader(scan *bufio.Scanner) lineReader {
	scan.Buffer(make([]byte, 0, 4<<10), maxSessionLine)
	return lineReader{scan}
}

var errLineEnd = errors.New("the connection has ended")

// next decodes the next line into v.
func (r lineReader) next(v any) error {
	if !r.scan.Scan() {
		if err := r.scan.Err(); err != nil {
			return err
		}
		return errLineEnd
	}
	if err := json.Unmarshal(r.scan.Bytes(), v); err != nil {
		return fmt.Errorf("not a message: %w", err)
	}
	return nil
}

// encodeLine is a message as it is sent.
func encodeLine(v any) ([]byte, error) {
	line, err := json.Marshal(v)
	return append(line, '\n'), err
}
