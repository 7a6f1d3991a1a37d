package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	volume   = 1 << 30
	pipeSize = 1 << 20
	rounds   = 7
)

// stdout measures how fast a program's output arrives here: through a bare pipe, and
// out of a sandbox, with all of it on record and with the usual first megabyte.
func (b *bench) stdout() error {
	argv := []string{"/bin/dd", "if=/dev/zero", "bs=64k", "count=16384"}
	ways := []struct {
		name, title string
		cmd         func() *exec.Cmd
		took        []time.Duration
	}{
		{"Stdout/pipe", "bare pipe of 1 MiB", func() *exec.Cmd { return exec.Command(filepath.Join(b.root(), argv[0]), argv[1:]...) }, nil},
		{"Stdout/recorded", "engine, all on record", func() *exec.Cmd { return b.engine("embedded", argv, "--output-limit", "1GiB") }, nil},
		{"Stdout/capped", "engine, 1 MB on record", func() *exec.Cmd { return b.engine("embedded", argv) }, nil},
	}
	for range rounds {
		for i := range ways {
			took, err := stream(ways[i].cmd())
			if err != nil {
				return fmt.Errorf("%s: %w", ways[i].name, err)
			}
			ways[i].took = append(ways[i].took, took)
			b.sample(ways[i].name, took)
			time.Sleep(gap)
		}
		if err := b.forget(); err != nil {
			return err
		}
	}
	fmt.Println("\n1 GiB of stdout, first byte to last")
	for _, w := range ways {
		fmt.Printf("  %-26s %5.2f GB/s\n", w.title, volume/1e9/median(w.took).Seconds())
	}
	ratio := float64(median(ways[0].took)) / float64(median(ways[1].took))
	target(ratio >= 0.4, "recorded / bare %.2f, to be 0.4 or more", ratio)
	return nil
}

// forget removes the records of ended runs, which would fill the disk.
func (b *bench) forget() error {
	records, err := filepath.Glob(filepath.Join(b.work, "state/runs/*/cleaned.json"))
	for _, r := range records {
		err = errors.Join(err, os.RemoveAll(filepath.Dir(r)))
	}
	return err
}

// stream runs a command and takes the time from its first byte of output to the last.
func stream(cmd *exec.Cmd) (time.Duration, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, pipeSize); err != nil {
		return 0, err
	}
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	w.Close()
	buf := make([]byte, pipeSize)
	var first, last time.Time
	total := 0
	for {
		n, err := r.Read(buf)
		if n > 0 {
			last = time.Now()
			if total == 0 {
				first = last
			}
			total += n
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("%w\n%s", err, stderr.Bytes())
	}
	if total != volume {
		return 0, fmt.Errorf("%d bytes arrived, not %d", total, volume)
	}
	return last.Sub(first), nil
}
