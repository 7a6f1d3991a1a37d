package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

func newOutput(t testing.TB, keep int64) (*OutputWriter, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), outputName)
	w, err := CreateOutput(path, keep)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close(false) })
	return w, path
}

func appendAll(t testing.TB, w *OutputWriter, s Stream, chunks ...string) {
	t.Helper()
	for _, c := range chunks {
		if err := w.Append(s, []byte(c)); err != nil {
			t.Fatal(err)
		}
	}
}

func readOutput(t testing.TB, path string) Output {
	t.Helper()
	out, err := ReadOutput(path, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// records reads all of r as text, one record a line.
func records(r *OutputReader) ([]string, error) {
	var list []string
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		switch rec.Kind {
		case KindData:
			list = append(list, fmt.Sprintf("%d: %d %q", rec.Sequence, rec.Stream, rec.Data))
		case KindDropped:
			list = append(list, fmt.Sprintf("dropped %d of %d", rec.Dropped, rec.Stream))
		case KindTail:
			list = append(list, fmt.Sprintf("%d: tail of %d %q", rec.Sequence, rec.Stream, rec.Data))
		case KindEnd:
			list = append(list, fmt.Sprintf("end %v", rec.Totals))
		}
	}
}

func TestOutputKeepsOrderAndCounts(t *testing.T) {
	w, path := newOutput(t, 6)
	appendAll(t, w, Stdout, "one", "", "two")
	appendAll(t, w, Stderr, "err")
	appendAll(t, w, Stdout, "3", "4")
	appendAll(t, w, Stderr, "longer")
	appendAll(t, w, Stdout, "5")
	if err := w.Close(true); err != nil {
		t.Fatal(err)
	}
	r, err := OpenOutput(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := records(r)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`1: 1 "one"`, `2: 1 "two"`, `3: 2 "err"`, "dropped 1 of 1", `4: 2 "lon"`, "dropped 3 of 2",
		"dropped 2 of 1", `5: tail of 1 "345"`, `6: tail of 2 "ger"`, "end [{9 6} {9 6}]",
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("records:\n%s\nwant:\n%s", g, w)
	}
	out := readOutput(t, path)
	if out.Stdout != "onetwo" || out.Stderr != "errlon" || !out.Complete || !out.Totals[0].Truncated() {
		t.Errorf("ReadOutput = %+v", out)
	}
}

func TestOutputOfNothing(t *testing.T) {
	w, path := newOutput(t, 0)
	if err := w.Close(false); err != nil {
		t.Fatal(err)
	}
	out := readOutput(t, path)
	if out != (Output{Complete: true}) {
		t.Errorf("ReadOutput = %+v, want nothing, complete", out)
	}
}

func TestOutputKeepNothing(t *testing.T) {
	w, path := newOutput(t, 0)
	appendAll(t, w, Stderr, "x")
	if err := w.Close(false); err != nil {
		t.Fatal(err)
	}
	out := readOutput(t, path)
	want := Output{Totals: [2]Totals{{}, {Written: 1}}, Complete: true}
	if out != want {
		t.Errorf("ReadOutput = %+v, want %+v", out, want)
	}
}

func TestOutputSplitsWhatIsTooLargeForARecord(t *testing.T) {
	w, path := newOutput(t, 10*maxData)
	big := bytes.Repeat([]byte("0123456789abcdef"), 3*maxData/16)
	if err := w.Append(Stdout, append(big, 'x')); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(false); err != nil {
		t.Fatal(err)
	}
	if got := readOutput(t, path).Stdout; got != string(big)+"x" {
		t.Errorf("read %d bytes back that differ from the %d written", len(got), len(big)+1)
	}
}

// TestTailIsTheEnd writes streams of many lengths in chunks of many lengths, and wants
// the beginning and the end of each back, and every byte in between counted.
func TestTailIsTheEnd(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		keep, size := rnd.Int64N(2*tailSize), rnd.IntN(5*tailSize)
		all := make([]byte, size)
		for i := range all {
			all[i] = byte(rnd.Uint32())
		}
		w, path := newOutput(t, keep)
		for rest := all; len(rest) > 0; {
			n := min(len(rest), 1+rnd.IntN(1+rnd.IntN(2*tailSize)))
			if err := w.Append(Stderr, rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := w.Close(false); err != nil {
			t.Fatal(err)
		}
		r, err := OpenOutput(path)
		if err != nil {
			t.Fatal(err)
		}
		var head, tail []byte
		var dropped int64
		for {
			rec, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			dropped += rec.Dropped
			switch rec.Kind {
			case KindData:
				head = append(head, rec.Data...)
			case KindTail:
				tail = append(tail, rec.Data...)
			}
		}
		r.Close()
		wantTail := min(keep, tailSize, max(int64(size)-keep, 0))
		if !bytes.Equal(head, all[:min(int64(size), keep)]) || !bytes.Equal(tail, all[int64(size)-wantTail:]) ||
			int64(len(head))+dropped != int64(size) || !r.Done() {
			t.Fatalf("of %d bytes with a limit of %d: %d at the beginning, %d dropped, a tail of %d, want one of %d",
				size, keep, len(head), dropped, len(tail), wantTail)
		}
	}
}

// TestOutputTornAtEveryByte reads every prefix that a crash could leave, then
// gives the reader the rest.
func TestOutputTornAtEveryByte(t *testing.T) {
	w, path := newOutput(t, 8)
	appendAll(t, w, Stdout, "hello", "\u20ac\u20ac")
	appendAll(t, w, Stderr, "warning!!")
	if err := w.Close(false); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all, err := records(NewOutputReader(bytes.NewReader(whole), 0))
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) {
		r := NewOutputReader(bytes.NewReader(whole[:n]), 0)
		head, err := records(r)
		if err != nil || r.Done() {
			t.Fatalf("%d bytes: error %v, done %v, want neither", n, err, r.Done())
		}
		tail, err := records(NewOutputReader(bytes.NewReader(whole), r.Offset()))
		if err != nil {
			t.Fatalf("taking up at %d: %v", r.Offset(), err)
		}
		if got := append(head, tail...); strings.Join(got, "\n") != strings.Join(all, "\n") {
			t.Fatalf("%d bytes, then the rest: %q, want %q", n, got, all)
		}
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		out := readOutput(t, path)
		if out.Complete || !utf8.ValidString(out.Stdout) || strings.Contains(out.Stdout, "\ufffd") || !strings.HasPrefix("hello\u20ac", out.Stdout) {
			t.Fatalf("%d bytes: ReadOutput = %+v", n, out)
		}
	}
}

func TestOutputReaderRefuses(t *testing.T) {
	w, path := newOutput(t, 100)
	appendAll(t, w, Stdout, "hello")
	if err := w.Close(false); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		at   int
		byte byte
	}{
		{"another magic", 0, 'X'},
		{"another version", 8, 9},
		{"kind zero, as a power failure leaves it", fileHeader, 0},
		{"unknown kind", fileHeader, 77},
		{"unknown stream", fileHeader + 1, 3},
		{"absurd length", fileHeader + 7, 0xff},
		{"end of wrong size", fileHeader + headerBytes + 5 + 4, 31},
		{"more kept than written", fileHeader + 2*headerBytes + 5 + 8, 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bad := bytes.Clone(whole)
			bad[tt.at] = tt.byte
			_, err := records(NewOutputReader(bytes.NewReader(bad), 0))
			var corrupt *CorruptError
			if !errors.As(err, &corrupt) {
				t.Errorf("reading = %v, want *CorruptError", err)
			}
		})
	}
}

func TestTwoWritersInterleave(t *testing.T) {
	const lines = 2000
	w, path := newOutput(t, 1<<20)
	var wg sync.WaitGroup
	for _, s := range []Stream{Stdout, Stderr} {
		wg.Go(func() {
			for i := range lines {
				if err := w.Append(s, fmt.Appendf(nil, "%d-%d\n", s, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := w.Close(false); err != nil {
		t.Fatal(err)
	}
	r, err := OpenOutput(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var next uint64
	var count [3]int
	var last time.Time
	for {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if rec.Time.Before(last) {
			t.Fatalf("record at %s follows one at %s", rec.Time, last)
		}
		if rec.Kind != KindData {
			continue
		}
		if next++; rec.Sequence != next {
			t.Fatalf("sequence %d, want %d", rec.Sequence, next)
		}
		if got, want := string(rec.Data), fmt.Sprintf("%d-%d\n", rec.Stream, count[rec.Stream]); got != want {
			t.Fatalf("record %d = %q, want %q", next, got, want)
		}
		count[rec.Stream]++
	}
	if count[1] != lines || count[2] != lines || !r.Done() {
		t.Errorf("read %d and %d lines, done %v", count[1], count[2], r.Done())
	}
}

// TestOutputFailureIsReportedOnceAndCounted records through a descriptor that cannot be written.
func TestOutputFailureIsReportedOnceAndCounted(t *testing.T) {
	w, path := newOutput(t, 100)
	appendAll(t, w, Stdout, "kept")
	ro, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	good := w.file
	w.file = ro // writing to it fails
	if err := w.Append(Stdout, []byte("lost")); err == nil {
		t.Fatal("Append did not report that it could not write")
	}
	appendAll(t, w, Stdout, "lost")
	appendAll(t, w, Stderr, "lost")
	w.file = good
	ro.Close()
	if err := w.Close(false); err != nil {
		t.Fatal(err)
	}
	want := Output{Stdout: "kept", Totals: [2]Totals{{12, 4}, {4, 0}}, Complete: true}
	if out := readOutput(t, path); out != want {
		t.Errorf("ReadOutput = %+v, want %+v", out, want)
	}
}

func TestFollow(t *testing.T) {
	w, path := newOutput(t, 1<<20)
	r, err := OpenOutput(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	writerAlive := func() bool { return true }
	go func() {
		for i := range 50 {
			if err := w.Append(Stdout, fmt.Appendf(nil, "%d", i%10)); err != nil {
				t.Error(err)
			}
		}
		if err := w.Close(false); err != nil {
			t.Error(err)
		}
	}()
	var got strings.Builder
	for {
		rec, err := r.Follow(t.Context(), writerAlive)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got.Write(rec.Data)
	}
	if want := strings.Repeat("0123456789", 5); got.String() != want {
		t.Errorf("followed %q, want %q", got.String(), want)
	}
}

func TestFollowEndsWithItsWriterOrItsContext(t *testing.T) {
	w, path := newOutput(t, 100)
	appendAll(t, w, Stdout, "x")
	r, err := OpenOutput(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dead := func() bool { return false }
	if rec, err := r.Follow(t.Context(), dead); err != nil || string(rec.Data) != "x" {
		t.Fatalf("Follow = %+v, %v", rec, err)
	}
	// What was written just before the writer was found dead is not lost.
	dying := func() bool { appendAll(t, w, Stdout, "last words"); return false }
	if rec, err := r.Follow(t.Context(), dying); err != nil || string(rec.Data) != "last words" {
		t.Fatalf("Follow = %+v, %v", rec, err)
	}
	if _, err := r.Follow(t.Context(), dead); err != io.EOF {
		t.Errorf("Follow behind a dead writer = %v, want io.EOF", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := r.Follow(ctx, func() bool { return true }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Follow past its deadline = %v", err)
	}
}

func TestText(t *testing.T) {
	tests := []struct {
		name string
		kept string
		cut  bool
		want string
	}{
		{"empty", "", true, ""},
		{"whole characters", "a\u00e4\u20ac\U0001f600", true, "a\u00e4\u20ac\U0001f600"},
		{"one byte of two at the cut", "ab\xc3", true, "ab"},
		{"two bytes of three at the cut", "ab\xe2\x82", true, "ab"},
		{"three bytes of four at the cut", "ab\xf0\x9f\x98", true, "ab"},
		{"only part of a character", "\xf0\x9f", true, ""},
		{"the program's own broken end stays visible", "ab\xe2\x82", false, "ab\ufffd\ufffd"},
		{"broken inside", "a\xffb\x80\x80", false, "a\ufffdb\ufffd\ufffd"},
		{"stray continuations at the cut are the program's", "a\x80\x80\x80\x80", true, "a\ufffd\ufffd\ufffd\ufffd"},
		{"impossible lead at the cut is the program's", "a\xff", true, "a\ufffd"},
		{"surrogate", "\xed\xa0\x80", false, "\ufffd\ufffd\ufffd"},
		{"a replacement character of its own", "\ufffd", true, "\ufffd"},
		{"NUL", "a\x00b", false, "a\x00b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Text([]byte(tt.kept), tt.cut); got != tt.want {
				t.Errorf("Text(%q, %v) = %q, want %q", tt.kept, tt.cut, got, tt.want)
			}
		})
	}
}

// TestCapNeverCutsACharacter tries every cap over text of one to four bytes a
// character, written byte by byte.
func TestCapNeverCutsACharacter(t *testing.T) {
	const text = "a\u00e4\u20ac\U0001f600z"
	for keep := range int64(len(text) + 2) {
		w, path := newOutput(t, keep)
		for i := range len(text) {
			appendAll(t, w, Stdout, text[i:i+1])
		}
		if err := w.Close(false); err != nil {
			t.Fatal(err)
		}
		out := readOutput(t, path)
		if !strings.HasPrefix(text, out.Stdout) || !utf8.ValidString(out.Stdout) || int64(len(out.Stdout)) < min(keep, int64(len(text)))-3 {
			t.Errorf("cap %d: %q", keep, out.Stdout)
		}
		if got := (Totals{int64(len(text)), min(keep, int64(len(text)))}); out.Totals[0] != got {
			t.Errorf("cap %d: totals %+v, want %+v", keep, out.Totals[0], got)
		}
	}
}

func FuzzOutputReader(f *testing.F) {
	w, path := newOutput(f, 8)
	appendAll(f, w, Stdout, "hello", "world")
	appendAll(f, w, Stderr, "x")
	if err := w.Close(false); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(whole[:fileHeader])
	f.Add(bytes.Repeat([]byte{0}, 100))
	f.Add(append(bytes.Clone(whole[:fileHeader]), 1, 1, 0, 0, 0xff, 0xff, 0xff, 0xff))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewOutputReader(bytes.NewReader(data), 0)
		var last int64
		for {
			_, err := r.Next()
			if err != nil {
				var corrupt *CorruptError
				if err != io.EOF && !errors.As(err, &corrupt) {
					t.Errorf("Next = %v, want io.EOF or *CorruptError", err)
				}
				break
			}
			if r.Offset() <= last || r.Offset() > int64(len(data)) {
				t.Fatalf("offset went from %d to %d of %d", last, r.Offset(), len(data))
			}
			last = r.Offset()
		}
		if cap(r.data) > maxData {
			t.Errorf("reader holds %d bytes", cap(r.data))
		}
		out, err := NewOutputReader(bytes.NewReader(data), 0).readAll(math.MaxInt64)
		if !utf8.ValidString(out.Stdout) || !utf8.ValidString(out.Stderr) {
			t.Error("text is not valid UTF-8")
		}
		if err == nil && out.Complete != r.Done() {
			t.Errorf("complete = %v, done = %v", out.Complete, r.Done())
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20} {
		for name, keep := range map[string]int64{"below": 1 << 60, "above": 0} {
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				w, _ := newOutput(b, keep)
				data := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if err := w.Append(Stdout, data); err != nil {
						b.Fatal(err)
					}
					if w.off > 1<<30 { // do not fill the disk
						w.off = fileHeader
					}
				}
			})
		}
	}
}

// TestOutputReachesTheDisk checks that output is synced while a run goes on, that a
// program which writes all the time is not synced all the time, and that a sync which
// fails is told.
func TestOutputReachesTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := CreateOutput(filepath.Join(t.TempDir(), "output.log"), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			if err := w.Append(Stdout, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		if !w.due {
			t.Error("no sync is due after output")
		}
		time.Sleep(syncEvery + time.Millisecond)
		synctest.Wait()
		if w.due {
			t.Error("the sync that was due did not come")
		}
		if err := w.Append(Stderr, []byte("y")); err != nil || !w.due {
			t.Errorf("after a sync: %v, due %v, want another one to be due", err, w.due)
		}
		// A pipe cannot be synced, as a broken disk cannot.
		file := w.file
		_, pipe, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		w.file = pipe
		time.Sleep(syncEvery + time.Millisecond)
		synctest.Wait()
		w.file = file
		if err := w.Close(true); !errors.Is(err, unix.EINVAL) {
			t.Errorf("Close after a sync that failed: %v, want its error", err)
		}
	})
}
