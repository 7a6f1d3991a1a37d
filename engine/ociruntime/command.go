package ociruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// command is a runtime that is a program.
type command struct {
	info  Info
	start func(c Container) []string // arguments of the program that start c
}

// New returns the runtime called name that is the program at path, of the given
// version. The names are runc, crun and runsc.
func New(name, path, version string) (Runtime, error) {
	r := command{info: Info{Name: name, Path: path, Version: version}}
	switch name {
	case "runc":
		r.start = func(c Container) []string {
			return []string{
				"--root", c.StateDir, "--log", logFile(c), "--log-format", "json",
				"run", "--detach", "--bundle", c.Bundle, "--preserve-fds", "1", c.ID,
			}
		}
	case "crun":
		r.start = func(c Container) []string {
			return []string{
				"--root", c.StateDir, "--cgroup-manager", "cgroupfs", "--log", "file:" + logFile(c), "--log-format", "json",
				"run", "--detach", "--bundle", c.Bundle, "--preserve-fds", "1", c.ID,
			}
		}
	case "runsc":
		r.start = func(c Container) []string {
			return append(runscFlags(c), "run", "--detach", "--bundle", c.Bundle, "--pass-fd", "3:3", c.ID)
		}
	default:
		return nil, fmt.Errorf("internal error: no runtime is called %q", name)
	}
	return r, nil
}

func logFile(c Container) string { return filepath.Join(c.StateDir, "log.json") }

// runscFlags are the global flags of every call.
//
// SECURITY: runsc is told everything; nothing is left to its defaults or to the bundle.
// A default that changes, or an annotation in a bundle, must not open host sockets, raw packets or debug logs.
// Holds because: the list names each switch, and --allow-flag-override is off.
// Not covered: --directfs stays on, because only with it does each Sentry have a host uid of its own.
// Checked by: TestRunscFlagsAreComplete.
func runscFlags(c Container) []string {
	network := "none"
	if c.Network {
		network = "sandbox"
	}
	return []string{
		"--root", c.StateDir, "--log", logFile(c), "--log-format", "json",
		"--platform=systrap", "--network=" + network, "--net-raw=false", "--allow-packet-socket-write=false",
		"--host-uds=none", "--host-fifo=none", "--overlay2=none", "--file-access=exclusive",
		"--oci-seccomp=false", "--allow-flag-override=false", "--allow-suid=false", "--gvisor-marker-file=false",
		"--watchdog-action=panic", "--debug=false", "--systemd-cgroup=false", "--ref-leak-mode=disabled",
		fmt.Sprintf("--ignore-cgroups=%t", c.Cgroup != nil),
	}
}

func (r command) Info() Info { return r.info }

func (r command) Start(ctx context.Context, c Container) error {
	out, err := r.run(ctx, c, r.start(c))
	if err != nil {
		return &StartError{Runtime: r.info.Name, Output: lastWords(logFile(c), out), Err: err}
	}
	return nil
}

// outputMax bounds what is kept of a runtime's messages.
const outputMax = 16 << 10

// run executes the runtime and returns what it wrote to stderr, bounded. PID 1
// inherits the other end of that pipe from a detaching runtime, so the end of the
// program, and not of the pipe, ends the reading.
func (r command) run(ctx context.Context, c Container, args []string) (string, error) {
	rd, wr, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("cannot make a pipe for %s: %w", r.info.Name, err)
	}
	defer rd.Close()
	cmd := exec.CommandContext(ctx, r.info.Path, args...)
	cmd.Dir = c.Bundle
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stderr = wr
	cmd.ExtraFiles = []*os.File{c.Guest}
	if c.Cgroup != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(c.Cgroup.Fd())}
	}
	err = cmd.Start()
	wr.Close()
	if err != nil {
		return "", err
	}
	collected := make(chan string, 1)
	go func() {
		head, _ := io.ReadAll(io.LimitReader(rd, outputMax)) // a read that fails ends the message
		collected <- string(head)
	}()
	if err = cmd.Wait(); err == nil {
		return "", nil
	}
	rd.SetReadDeadline(deadlineSoon())
	return <-collected, err
}

// lastWords finds the error in a runtime's JSON log, or else in its stderr.
func lastWords(log, stderr string) string {
	text := ""
	if f, err := os.Open(log); err == nil {
		defer f.Close()
		data, _ := io.ReadAll(io.LimitReader(f, 1<<20)) // half a log still helps
		for line := range bytes.Lines(data) {
			var entry struct{ Level, Msg string }
			if json.Unmarshal(line, &entry) == nil && (entry.Level == "error" || entry.Level == "fatal") && entry.Msg != "" {
				text = entry.Msg
			}
		}
	}
	if text == "" {
		text = strings.TrimSpace(stderr)
	}
	if len(text) > 2000 {
		text = text[:2000] + "…"
	}
	return strings.Join(strings.Fields(text), " ")
}

// deadlineSoon bounds the wait for the last words of a program that has ended.
func deadlineSoon() time.Time { return time.Now().Add(200 * time.Millisecond) }
