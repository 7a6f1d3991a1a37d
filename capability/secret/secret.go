// Package secret says where the values of secrets come from, reads them at the moment
// they are needed, and takes them out of text that is shown.
//
// A Source never shows its value, however it is printed. Values are read anew for
// each use, so that a rotated key needs no restart.
package secret

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Source is where one value comes from. Exactly one field is set.
type Source struct {
	Value      string   `json:"value,omitempty"`      // the value itself
	File       string   `json:"file,omitempty"`       // absolute path
	Credential string   `json:"credential,omitempty"` // name in $CREDENTIALS_DIRECTORY, where systemd puts them
	Command    []string `json:"command,omitempty"`    // argv, the program by its absolute path; its stdout is the value
}

const (
	maxValue     = 1 << 20
	commandBound = 30 * time.Second
	redacted     = "[redacted]"
)

// plain is a Source without methods that would print it.
type plain Source

// Format prints where the value comes from, and never the value.
func (s Source) Format(f fmt.State, _ rune) { io.WriteString(f, s.String()) }

// String says where the value comes from.
func (s Source) String() string {
	switch {
	case s.Value != "":
		return redacted
	case s.File != "":
		return "file " + s.File
	case s.Credential != "":
		return "credential " + s.Credential
	case len(s.Command) > 0:
		return "command " + s.Command[0]
	default:
		return "nowhere"
	}
}

// MarshalJSON writes the source for a dump: an inline value is redacted, and so are
// the arguments of a command.
func (s Source) MarshalJSON() ([]byte, error) {
	p := plain(s)
	if p.Value != "" {
		p.Value = redacted
	}
	if len(p.Command) > 1 {
		p.Command = []string{p.Command[0], redacted}
	}
	return marshal(p)
}

// Check says what is wrong with a source, without reading the value.
func (s Source) Check() error {
	n := 0
	for _, set := range []bool{s.Value != "", s.File != "", s.Credential != "", len(s.Command) > 0} {
		if set {
			n++
		}
	}
	switch {
	case n != 1:
		return errors.New("want exactly one of value (not empty), file, credential and command")
	case s.File != "" && !filepath.IsAbs(s.File):
		return errors.New("file must be an absolute path")
	case s.Credential != "" && filepath.Base(s.Credential) != s.Credential, s.Credential == "..", s.Credential == ".":
		return errors.New("credential must be a name, not a path")
	case n == 1 && len(s.Command) > 0 && !filepath.IsAbs(s.Command[0]):
		return errors.New("command must begin with an absolute path")
	}
	return nil
}

// Read returns the value. One newline at the end of what a file or a command holds is
// not part of it. No error quotes it. credentials is systemd's directory, "" if
// there is none. An empty value is an error.
func (s Source) Read(ctx context.Context, credentials string) ([]byte, error) {
	var value []byte
	var err error
	switch {
	case s.Value != "":
		return []byte(s.Value), nil
	case s.File != "":
		value, err = readFile(s.File)
	case s.Credential != "" && credentials == "":
		err = errors.New("there is no directory of credentials: the service was not given any")
	case s.Credential != "":
		value, err = readFile(filepath.Join(credentials, s.Credential))
	default:
		value, err = s.run(ctx)
	}
	if err != nil {
		return nil, err
	}
	if len(value) > maxValue {
		return nil, fmt.Errorf("it is larger than %d bytes", maxValue)
	}
	// Several lines are kept whole: keys and certificates end in a newline.
	if n := bytes.IndexByte(value, '\n'); n == len(value)-1 && n >= 0 {
		value = value[:n]
	}
	if len(value) == 0 {
		return nil, errors.New("it is empty")
	}
	return value, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	return io.ReadAll(io.LimitReader(f, maxValue+1))
}

// run gets the value from a command, which sees nothing of this process's environment.
func (s Source) run(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Command[0], s.Command[1:]...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot run its command: %w", err)
	}
	value, err := io.ReadAll(io.LimitReader(out, maxValue+1))
	out.Close() // one that would print on is told so
	if waitErr := cmd.Wait(); err == nil && len(value) <= maxValue && waitErr != nil {
		err = fmt.Errorf("its command failed: %w", waitErr)
	}
	return value, err
}
