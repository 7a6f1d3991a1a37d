// Package wire is what the harness and the first process of its virtual machine
// say to each other over one virtio-serial port.
//
// One stream carries everything, so order is kept: all output of a job is before
// its Exit, and nothing is lost when the machine is switched off after it.
//
//	guest: Hello            host: Setup
//	guest: Ready            host: Start, then Stdin...
//	guest: Stdout, Stderr... Exit
//	(Start to Exit again, as often as wanted)
//	                        host: Off
package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Port is the name of the virtio-serial port.
const Port = "engine.vm"

// Kind says what a frame holds.
type Kind byte

// The kinds of frame. Those with a Go type hold it as JSON, the others bytes.
const (
	Hello  Kind = iota + 1 // guest: the first process runs
	Setup                  // host: Machine
	Ready                  // guest: disks are mounted, jobs may come
	Start                  // host: Job
	Stdin                  // host: bytes of the job's stdin; empty is its end
	Stdout                 // guest
	Stderr                 // guest
	Exit                   // guest: Outcome
	Off                    // host: switch the machine off
)

// Machine is what the guest has to know before the first job.
type Machine struct {
	Now   time.Time // the host's clock
	Disks []Disk
}

// Disk is a file system of the guest. The one mounted at / comes first.
type Disk struct {
	Serial string // as the block device reports it
	Mount  string
}

// Job is one command, run as root.
type Job struct {
	Argv  []string
	Env   []string
	Dir   string // empty means /
	Stdin bool   // Stdin frames follow; otherwise the job reads /dev/null
}

// Outcome is how a job ended.
type Outcome struct {
	Status int    // as a shell would report it
	Error  string // the job could not be started, or the machine not be set up
}

// maxPayload bounds what one frame may make the reader allocate.
const maxPayload = 1 << 20

// Write sends one frame. It must not be called from two goroutines at once.
func Write(w io.Writer, kind Kind, payload []byte) error {
	frame := make([]byte, 5, 5+len(payload))
	frame[0] = byte(kind)
	binary.LittleEndian.PutUint32(frame[1:], uint32(len(payload)))
	_, err := w.Write(append(frame, payload...))
	return err
}

// WriteJSON sends one frame that holds v as JSON.
func WriteJSON(w io.Writer, kind Kind, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Write(w, kind, payload)
}

// Read receives one frame. It returns io.EOF only between two frames.
func Read(r io.Reader) (Kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.LittleEndian.Uint32(head[1:])
	if size > maxPayload {
		return 0, nil, fmt.Errorf("cannot read frame of kind %d: %d bytes announced, at most %d are allowed", head[0], size, maxPayload)
	}
	payload := make([]byte, size)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, fmt.Errorf("cannot read frame of kind %d: %w", head[0], err)
	}
	return Kind(head[0]), payload, nil
}

// ReadJSON receives one frame of the given kind into v.
func ReadJSON(r io.Reader, kind Kind, v any) error {
	got, payload, err := Read(r)
	if err != nil {
		return err
	}
	if got != kind {
		return fmt.Errorf("got a frame of kind %d, want %d", got, kind)
	}
	return json.Unmarshal(payload, v)
}
