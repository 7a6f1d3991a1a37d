package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/integration/testenv"
)

// pattern is what the probe emits.
func pattern(n int) []byte {
	block := make([]byte, 251*256)
	for i := range block {
		block[i] = byte(i%251 + i/251)
	}
	return bytes.Repeat(block, n/len(block)+1)[:n]
}

// TestOutputIsStreamed proves that stdout is passed on bit for bit, of which the record
// keeps the beginning and the end.
func TestOutputIsStreamed(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		const size = 3_000_001
		call := testenv.Exec(t, runArgs(runtime, []string{"--label", "who=" + t.Name()}, "/probe", "emit", fmt.Sprint(size))...)
		if call.Status != 0 || !bytes.Equal([]byte(call.Stdout), pattern(size)) {
			t.Errorf("status %d, %d bytes, as written: %v; want 0 and all %d bytes\n%s",
				call.Status, len(call.Stdout), bytes.Equal([]byte(call.Stdout), pattern(len(call.Stdout))), size, call.Stderr)
		}
		for _, r := range records(t) {
			if r.Request.Labels["who"] != t.Name() {
				continue
			}
			logs := testenv.Exec(t, "logs", r.ID)
			all := pattern(size)
			if want := string(all[:1_000_000]) + string(all[size-64<<10:]); logs.Status != 0 || logs.Stdout != want {
				t.Errorf("engine logs: status %d and %d bytes, want 0, the first 1000000 and the last 65536", logs.Status, len(logs.Stdout))
			}
			if want := "1934465 bytes of stdout were not kept"; !strings.Contains(logs.Stderr, want) {
				t.Errorf("engine logs says %q, want %q", logs.Stderr, want)
			}
			return
		}
		t.Error("the run is not on record")
	})
}

// TestOutputInJSON proves that a result's text is valid UTF-8 whatever a program
// writes, is cut at a character, and says how much there was.
func TestOutputInJSON(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		r := run(t, runtime, nil, "/probe", "emit", "1500000", "€")
		r.want(t, "exited", 0)
		if r.StdoutBytes != 1_500_000 || !r.StdoutTruncated || r.StderrTruncated {
			t.Errorf("stdoutBytes = %d, truncated %v and %v, want 1500000, true and false", r.StdoutBytes, r.StdoutTruncated, r.StderrTruncated)
		}
		if got := r.Stdout; len(got) > 1_000_000 || len(got) < 999_997 || !utf8.ValidString(got) || strings.Trim(got, "€") != "" {
			t.Errorf("stdout has %d bytes and ends in %q, want at most 1000000 and whole characters", len(got), got[max(len(got)-8, 0):])
		}

		r = run(t, runtime, nil, "/probe", "emit", "1500")
		r.want(t, "exited", 0)
		if want := strings.ToValidUTF8(string(pattern(1500)), "\xff"); r.StdoutBytes != 1500 || r.StdoutTruncated ||
			!strings.Contains(r.Stdout, "\ufffd") || !strings.HasPrefix(r.Stdout, want[:128]) || strings.ContainsRune(r.Stdout, 0) != strings.ContainsRune(want, 0) {
			t.Errorf("%d bytes of every value became %q", r.StdoutBytes, r.Stdout)
		}
	})
}

// TestStdinIsPassedOn proves that a program can read all of its caller's input, to its
// end.
func TestStdinIsPassedOn(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		data := make([]byte, 4_000_003)
		random := rand.New(rand.NewPCG(1, 2))
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		sum := fnv.New64a()
		sum.Write(data)
		r := runInput(t, bytes.NewReader(data), runtime, nil, "/probe", "slurp")
		r.want(t, "exited", 0)
		if want := fmt.Sprintf("read %d fnv %016x end 0\n", len(data), sum.Sum64()); r.Stdout != want {
			t.Errorf("the program says %q, want %q", r.Stdout, want)
		}
		r = run(t, runtime, nil, "/probe", "slurp")
		r.want(t, "exited", 0)
		if want := "read 0 "; !strings.HasPrefix(r.Stdout, want) {
			t.Errorf("without input the program says %q, want %q", r.Stdout, want)
		}
	})
}

// TestStdinHasBackPressure proves that a program that does not read its input stops its
// caller from writing, and that neither stops the run from ending.
func TestStdinHasBackPressure(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		var written atomic.Int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			for block := make([]byte, 4096); ; {
				n, err := w.Write(block)
				written.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
		res := runInput(t, r, runtime, []string{"--timeout", "2s"}, "/probe", "hold")
		res.want(t, "timeout", 124)
		if got := written.Load(); got > 2<<20 {
			t.Errorf("a program that reads nothing was sent %d bytes, want no more than pipes hold", got)
		}
		r.Close()
		<-done
		w.Close()
	})
}

// TestSlowReaders proves that neither a caller that does not read, nor one that is gone,
// keeps a run from ending.
func TestSlowReaders(t *testing.T) {
	begin(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		status, took := runUnread(t, runtime, false, []string{"--timeout", "1.5s"}, "/probe", "emit", "1000000000000")
		if limit := 1500*time.Millisecond + startOf(t, runtime) + slack(); status != 124 || took > limit {
			t.Errorf("with output that nobody reads: status %d after %v, want 124 after %v at most", status, took, limit)
		}
		if status, _ := runUnread(t, runtime, true, nil, "/probe", "emit", "300000"); status != 0 {
			t.Errorf("with a reader that is gone: status %d, want the program's own 0", status)
		}
	})
}

// startOf is an idle run's time, by which deadlines of the whole call are judged.
func startOf(t *testing.T, runtime string) time.Duration {
	t.Helper()
	return 2 * run(t, runtime, nil, "/probe", "leave", "0").call.Duration
}

// runUnread runs engine with a stdout that nobody reads, or that nobody can.
func runUnread(t *testing.T, runtime string, gone bool, flags []string, command ...string) (status int, took time.Duration) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if gone {
		r.Close()
	}
	cmd := exec.Command(testenv.Binary(t, "engine"), runArgs(runtime, flags, command...)...)
	cmd.Stdout = w
	begin := time.Now()
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	over := time.AfterFunc(testenv.Patience, func() { cmd.Process.Kill() })
	defer over.Stop()
	cmd.Wait() // its status is looked at below
	return cmd.ProcessState.ExitCode(), time.Since(begin)
}

// TestOrderOfStreams proves that the record has stdout and stderr in the order in which
// they were written, where the writes are far enough apart for two readers to keep up.
func TestOrderOfStreams(t *testing.T) {
	begin(t)
	const lines, gap = 6, "400"
	eachRuntime(t, func(t *testing.T, runtime string) {
		r := run(t, runtime, nil, "/probe", "order", fmt.Sprint(lines), gap)
		r.want(t, "exited", 0)
		if r.Stderr == "" || strings.Count(r.Stdout, "\n") != lines/2 {
			t.Fatalf("%s\nwant half of %d lines on each stream", r, lines)
		}
		logs := exec.Command(testenv.Binary(t, "engine"), "logs", r.ID)
		out, err := logs.CombinedOutput() // one pipe for both
		var want strings.Builder
		for i := range lines {
			fmt.Fprintf(&want, "line %d\n", i)
		}
		if err != nil || string(out) != want.String() {
			t.Errorf("engine logs prints %q (%v), want the lines in order", out, err)
		}
		only := testenv.Exec(t, "logs", "--stream", "stderr", r.ID)
		if only.Stdout != "" || only.Stderr != r.Stderr {
			t.Errorf("%s\nwant stderr alone, %q", only, r.Stderr)
		}
	})
}

// TestLogsGoOn proves that output can be taken up behind any piece of it, and nowhere
// else.
func TestLogsGoOn(t *testing.T) {
	begin(t)
	r := run(t, "embedded", nil, "/bin/sh", "-c", "for i in 1 2 3 4 5; do echo out $i; /probe nap 30; echo err $i >&2; /probe nap 30; done")
	r.want(t, "exited", 0)
	type piece struct {
		Stream string
		Data   []byte
		Offset int64
	}
	pieces := func(args ...string) (list []piece) {
		t.Helper()
		got := testenv.Exec(t, append([]string{"logs", "--json"}, append(args, r.ID)...)...)
		if got.Status != 0 {
			t.Fatal(got)
		}
		for line := range strings.Lines(got.Stdout) {
			var p piece
			if err := json.Unmarshal([]byte(line), &p); err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			list = append(list, p)
		}
		return list
	}
	all := pieces()
	var text [2]string
	for i, p := range all {
		text[map[string]int{"stdout": 0, "stderr": 1}[p.Stream]] += string(p.Data)
		rest := pieces("--offset", strconv.FormatInt(p.Offset, 10))
		if len(rest) != len(all)-i-1 || (len(rest) > 0 && string(rest[0].Data) != string(all[i+1].Data)) {
			t.Errorf("behind piece %d of %d there are %d, starting with %+v", i+1, len(all), len(rest), rest)
		}
	}
	if text != [2]string{r.Stdout, r.Stderr} || len(all) < 5 {
		t.Errorf("%d pieces hold %q, want %q and %q", len(all), text, r.Stdout, r.Stderr)
	}
	for _, offset := range []string{"-1", "17", "x"} {
		if got := testenv.Exec(t, "logs", "--offset", offset, r.ID); got.Status != 125 || !strings.Contains(got.Stderr, "--offset") {
			t.Errorf("--offset %s: %s", offset, got)
		}
	}
}

// TestLogsFollow proves that logs -f shows what a run has written so far, and what it
// writes until it ends.
func TestLogsFollow(t *testing.T) {
	begin(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	l := start(t, "embedded", nil, "/bin/sh", "-c", "echo first; /probe nap 300; echo second; /probe hold third")
	follow := exec.Command(testenv.Binary(t, "engine"), "logs", "-f", l.id)
	follow.Stdout = w
	err = follow.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now().Add(testenv.Patience)); err != nil {
		t.Fatal(err)
	}
	want := "first\nsecond\nthird\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Errorf("while the run goes on, logs -f prints %q (%v), want %q", got, err, want)
	}
	if kill := testenv.Exec(t, "kill", l.id); kill.Status != 0 {
		t.Error(kill)
	}
	l.end(t).want(t, "cancelled", 130)
	if rest, err := io.ReadAll(r); err != nil || len(rest) != 0 {
		t.Errorf("after the run's end logs -f prints %q (%v), want nothing more", rest, err)
	}
	if err := follow.Wait(); err != nil {
		t.Errorf("logs -f: %v", err)
	}
}

// TestOutputIsEscapedOnATerminal proves that what a program wrote cannot steer the
// terminal of who reads it later.
func TestOutputIsEscapedOnATerminal(t *testing.T) {
	begin(t)
	r := run(t, "embedded", nil, "/bin/echo", "-n", "-e", `\033]0;title\007\033[31mred`)
	r.want(t, "exited", 0)
	if want := "\x1b]0;title\a\x1b[31mred"; r.Stdout != want {
		t.Fatalf("stdout = %q, want %q", r.Stdout, want)
	}
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer main.Close()
	n, err := unix.IoctlGetInt(int(main.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(main.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	logs := exec.Command(testenv.Binary(t, "engine"), "logs", r.ID)
	logs.Stdout = tty
	err = logs.Run()
	tty.Close()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	size, err := main.Read(buf)
	if got := string(buf[:size]); err != nil || strings.Contains(got, "\x1b") || !strings.Contains(got, "title") {
		t.Errorf("a terminal is sent %q (%v), want the text without control characters", got, err)
	}
}
