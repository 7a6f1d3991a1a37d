// Command guest is the first process of the test machine. It loads the disk
// driver from the initramfs, moves into the root file system, mounts what a
// Linux user expects, and then runs one job after another for the harness.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/direct-oci/engine/integration/vm/wire"
	"golang.org/x/sys/unix"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err) // the console: the harness shows its tail
	}
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(os.Stderr, "guest: cannot power off:", err)
	}
}

func run() error {
	if err := mountKernel(); err != nil {
		return err
	}
	port, err := openPort()
	if err != nil {
		return err
	}
	if err := wire.Write(port, wire.Hello, nil); err != nil {
		return fmt.Errorf("cannot greet the harness: %w", err)
	}
	var m wire.Machine
	if err := wire.ReadJSON(port, wire.Setup, &m); err != nil {
		return fmt.Errorf("cannot read the machine's description: %w", err)
	}
	if err := setup(m); err != nil {
		return errors.Join(err, wire.WriteJSON(port, wire.Exit, wire.Outcome{Error: err.Error()}))
	}
	if err := wire.Write(port, wire.Ready, nil); err != nil {
		return err
	}
	return serve(port)
}

// serve runs jobs until the harness says Off.
func serve(port *os.File) error {
	out := &sender{port: port}
	var stdin io.WriteCloser
	for {
		kind, payload, err := wire.Read(port)
		if err != nil {
			return fmt.Errorf("cannot read from the harness: %w", err)
		}
		switch kind {
		case wire.Off:
			return nil
		case wire.Start:
			var job wire.Job
			if err := json.Unmarshal(payload, &job); err != nil {
				return fmt.Errorf("cannot read job: %w", err)
			}
			if stdin, err = start(job, out); err != nil {
				if err := out.exit(wire.Outcome{Status: 127, Error: err.Error()}); err != nil {
					return err
				}
			}
		case wire.Stdin:
			feed(stdin, payload)
		default:
			return fmt.Errorf("unexpected frame of kind %d from the harness", kind)
		}
	}
}

// feed gives a piece of stdin to the job. A job that has stopped reading, or has
// ended, is no error: what is left is thrown away, as in a pipe.
func feed(stdin io.WriteCloser, piece []byte) {
	if stdin == nil {
		return
	}
	if len(piece) == 0 {
		stdin.Close()
		return
	}
	if _, err := stdin.Write(piece); err != nil {
		stdin.Close()
	}
}

// openPort finds the harness's port by name: without udev there are no links.
func openPort() (*os.File, error) {
	var names []string
	for range 200 {
		names, _ = filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			name, err := os.ReadFile(n)
			if err != nil || string(bytes.TrimSpace(name)) != wire.Port {
				continue
			}
			dev := "/dev/" + filepath.Base(filepath.Dir(n))
			// Blocking on purpose: a port is no ordinary file to poll.
			fd, err := unix.Open(dev, unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, fmt.Errorf("cannot open %s: %w", dev, err)
			}
			return os.NewFile(uintptr(fd), dev), nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("no virtio-serial port is called %s; found: %s", wire.Port, strings.Join(names, " "))
}
