package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxFile bounds what is read of one file. The longest, io.stat, has a line of
// some 100 bytes per block device.
const maxFile = 1 << 20

// readFile returns the content of a cgroup file. Errors name the path.
func readFile(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return readAll(fd, path)
}

// readAll reads fd from its start, so a file held open can be read again.
func readAll(fd int, path string) ([]byte, error) {
	buf := make([]byte, 4096)
	n := 0
	for {
		got, err := unix.Pread(fd, buf[n:], int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		n += got
		if got == 0 {
			return buf[:n], nil
		}
		if n == len(buf) {
			if n >= maxFile {
				return nil, fmt.Errorf("cannot read %s: longer than %d bytes", path, maxFile)
			}
			buf = append(buf, make([]byte, 3*len(buf))...)
		}
	}
}

func readFields(path string) ([]string, error) {
	data, err := readFile(path)
	return strings.Fields(string(data)), err
}

// write writes value in one call, as cgroup files want it.
func write(path, value string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return cannotSet(path, value, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return cannotSet(path, value, err)
	}
	return nil
}

// set makes the file hold value and proves it by reading back. same compares what
// was read with value. A file that does not exist gives fs.ErrNotExist.
func set(path, value string, same func(got, want string) bool) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return cannotSet(path, value, err)
	}
	defer unix.Close(fd)
	got, err := readAll(fd, path)
	if err != nil {
		return err
	}
	if same(strings.TrimSpace(string(got)), value) {
		return nil
	}
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return cannotSet(path, value, err)
	}
	got, err = readAll(fd, path)
	if err != nil {
		return err
	}
	if kept := strings.TrimSpace(string(got)); !same(kept, value) {
		return cannotSet(path, value, fmt.Errorf("the kernel kept %q", kept))
	}
	return nil
}

func cannotSet(path, value string, cause error) error {
	return fmt.Errorf("cannot set %s=%s: %w", path, value, cause)
}

func cannotRead(path string, cause error) error {
	return fmt.Errorf("cannot read %s: %w", path, cause)
}

func exists(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil
}

// gone tells whether err means that the group has been removed: no such path, or
// a file of it opened before.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// children returns the names of the groups in dir, sorted.
func children(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
