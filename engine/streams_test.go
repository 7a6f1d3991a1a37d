package engine

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine/journal"
)

func testOutputs(t *testing.T, max int64, stdout, stderr *os.File) (*outputs, string) {
	t.Helper()
	gone := make(chan struct{})
	close(gone)
	return testOutputsOf(t, max, stdout, stderr, gone)
}

func testOutputsOf(t *testing.T, max int64, stdout, stderr *os.File, caller <-chan struct{}) (*outputs, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "output.log")
	w, err := journal.CreateOutput(path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	o, err := newOutputs(w, max, int(stdout.Fd()), int(stderr.Fd()), caller)
	if err != nil {
		t.Fatal(err)
	}
	return o, path
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func devNull(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// A caller that never reads must not keep the record from being complete once the
// sandbox is dead, and must get all of it when it reads at last.
func TestDrainDoesNotWaitForTheCaller(t *testing.T) {
	r, w := pipe(t)
	o, path := testOutputs(t, 0, w, devNull(t))
	want := bytes.Repeat([]byte("0123456789abcdef"), 50<<10) // 800 KiB: more than the caller's pipe holds, less than ours
	o.start()
	if _, err := o.pumps[0].write.Write(want); err != nil {
		t.Fatal(err)
	}
	o.closeWriters()
	if !o.drain(5 * time.Second) {
		t.Fatal("drain did not come to an end while the caller was not reading")
	}
	if err := o.record.Close(false); err != nil {
		t.Fatal(err)
	}
	if got, err := journal.ReadOutput(path, math.MaxInt64); err != nil || got.Totals[0].Written != int64(len(want)) {
		t.Errorf("recorded %d bytes (%v), want %d", got.Totals[0].Written, err, len(want))
	}
	read := make(chan []byte)
	go func() {
		data, err := io.ReadAll(io.LimitReader(r, int64(len(want))))
		if err != nil {
			t.Error(err)
		}
		read <- data
	}()
	o.flush(nil, time.After(10*time.Second))
	if got := <-read; !bytes.Equal(got, want) {
		t.Errorf("the caller read %d bytes that differ from the %d written", len(got), len(want))
	}
}

// The end of a sandbox whose output is still on its way, at every moment.
func TestEndMeetsOutputInFlight(t *testing.T) {
	null := devNull(t)
	for range 300 {
		o, _ := testOutputs(t, 0, null, null)
		o.start()
		for range 8 {
			if _, err := o.pumps[0].write.Write(make([]byte, 100<<10)); err != nil {
				t.Fatal(err)
			}
		}
		o.closeWriters()
		if !o.drain(10 * time.Second) {
			t.Fatal("the output was not read to its end")
		}
		flushed := make(chan struct{})
		go func() { o.flush(nil, nil); close(flushed) }()
		select {
		case <-flushed:
		case <-time.After(10 * time.Second):
			t.Fatal("the output was not passed on to its end")
		}
		if err := o.record.Close(false); err != nil {
			t.Fatal(err)
		}
	}
}

// A caller that is gone must not stop the program or the record.
func TestOutputSurvivesACallerThatIsGone(t *testing.T) {
	r, w := pipe(t)
	r.Close()
	o, path := testOutputs(t, 0, w, devNull(t))
	o.start()
	want := bytes.Repeat([]byte("x"), 3<<20)
	if _, err := o.pumps[0].write.Write(want); err != nil {
		t.Fatal(err)
	}
	o.closeWriters()
	if !o.drain(5 * time.Second) {
		t.Fatal("the output did not come to an end")
	}
	if err := o.record.Close(false); err != nil {
		t.Fatal(err)
	}
	got, err := journal.ReadOutput(path, math.MaxInt64)
	if err != nil || got.Totals[0].Written != int64(len(want)) || !got.Totals[0].Truncated() {
		t.Errorf("recorded %+v (%v), want %d written and truncated", got.Totals[0], err, len(want))
	}
}

// A caller that is there but whose reader has left, as in "engine run yes | head",
// makes the program's next write fail.
func TestProgramLearnsThatItsReaderLeft(t *testing.T) {
	r, w := pipe(t)
	r.Close()
	o, _ := testOutputsOf(t, 0, w, devNull(t), make(chan struct{}))
	o.start()
	deadline := time.After(5 * time.Second)
	for {
		if _, err := o.pumps[0].write.Write([]byte("y\n")); err != nil {
			break
		}
		select {
		case <-deadline:
			t.Fatal("the program could still write after 5 s")
		default:
		}
	}
	o.closeWriters()
	o.drain(time.Second)
}

// A caller whose disk is full lacks what the program wrote, and is told so. One that
// stopped reading is not: that is how "engine run yes | head" ends.
func TestUnsentOutputIsToldWithItsCause(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	r, left := pipe(t)
	r.Close()
	for name, tt := range map[string]struct {
		sink *os.File
		want error
	}{"a full disk": {full, unix.ENOSPC}, "a reader that left": {left, nil}} {
		t.Run(name, func(t *testing.T) {
			o, _ := testOutputs(t, 0, tt.sink, devNull(t))
			o.start()
			if _, err := o.pumps[0].write.Write([]byte("lost")); err != nil {
				t.Fatal(err)
			}
			o.closeWriters()
			o.drain(5 * time.Second)
			o.flush(nil, time.After(5*time.Second))
			if got := o.unsent(); !errors.Is(got, tt.want) || (got == nil) != (tt.want == nil) {
				t.Errorf("unsent() = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestOutputOverTheLimitIsNoticedOnce(t *testing.T) {
	null := devNull(t)
	o, _ := testOutputs(t, 10, null, null)
	o.start()
	for _, p := range o.pumps {
		if _, err := p.write.Write([]byte("123456")); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-o.over:
	case <-time.After(5 * time.Second):
		t.Error("12 bytes over both streams did not pass a limit of 10")
	}
	o.closeWriters()
	o.drain(time.Second)
}

// Input goes at the program's pace: what it does not read is not taken from the
// caller beyond the pipe and one buffer.
func TestFeedHasBackPressure(t *testing.T) {
	r, w := pipe(t)
	in, err := feed(int(r.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	wrote := make(chan int64)
	go func() {
		n, _ := io.Copy(w, io.LimitReader(zero{}, 4<<20)) // ends when the pipe's reader goes
		wrote <- n
	}()
	select {
	case n := <-wrote:
		t.Fatalf("%d bytes were taken although nobody read", n)
	case <-time.After(200 * time.Millisecond):
	}
	go io.Copy(io.Discard, in)
	if n := <-wrote; n != 4<<20 {
		t.Errorf("took %d bytes, want all %d once they are read", n, 4<<20)
	}
}

type zero struct{}

func (zero) Read(p []byte) (int, error) { clear(p); return len(p), nil }
