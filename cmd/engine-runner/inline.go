package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/cmd/engine-runner/config"
)

// handedOn is what the variable says once the config is in a descriptor.
const handedOn = "descriptor:"

// takeConfig returns the config if all of it is in the environment, nil otherwise.
//
// SECURITY: secrets that stand in a config in the environment are not in /proc while we run.
// /proc/PID/environ shows what a process was started with, whatever it forgets later.
// Holds because: this program starts itself again with the config in a memory file and
// without it in the environment, before anything else. Not covered: the environment of
// whoever started us. Checked by: TestConfigInTheEnvironment.
func takeConfig() ([]byte, error) {
	value := os.Getenv(config.Variable)
	if number, ok := strings.CutPrefix(value, handedOn); ok {
		fd, err := strconv.Atoi(number)
		if err != nil || fd < 3 {
			return nil, fmt.Errorf("cannot use $%s: no config begins like this", config.Variable)
		}
		f := os.NewFile(uintptr(fd), config.Variable)
		data, err := io.ReadAll(f)
		return data, errors.Join(err, f.Close())
	}
	if value == "" || strings.HasPrefix(value, "/") {
		return nil, nil
	}
	return nil, startAgain(value)
}

// startAgain returns only with an error.
func startAgain(text string) error {
	fd, err := unix.MemfdCreate("config", 0) // it has to survive the exec
	if err != nil {
		return fmt.Errorf("cannot make a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "config")
	if _, err := f.WriteString(text); err != nil {
		return fmt.Errorf("cannot write a file in memory: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := os.Setenv(config.Variable, handedOn+strconv.Itoa(fd)); err != nil {
		return err
	}
	return fmt.Errorf("cannot start again: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}
