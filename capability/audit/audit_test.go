package audit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func fill(t *testing.T, n int) (Log, []Head) {
	t.Helper()
	l := Log{filepath.Join(t.TempDir(), "a", "audit.jsonl")}
	var heads []Head
	for i := range n {
		h, err := l.Append(Entry{Event: "dispatch", Call: fmt.Sprint(i), Presented: map[string]any{"text": "\n<é\u2028"}})
		if err != nil {
			t.Fatal(err)
		}
		heads = append(heads, h)
	}
	return l, heads
}

func verify(t *testing.T, l Log) (Summary, error) {
	t.Helper()
	data, err := os.ReadFile(l.Path)
	if err != nil {
		t.Fatal(err)
	}
	return Verify(bytes.NewReader(data))
}

func TestLogHolds(t *testing.T) {
	l, heads := fill(t, 20)
	s, err := verify(t, l)
	if err != nil || s.Lines != 20 || s.Head != heads[19] || s.Torn != 0 || s.Open {
		t.Errorf("Verify = %+v, %v, want 20 lines up to %+v", s, err, heads[19])
	}
	if !s.Has(heads[3]) || s.Has(Head{4, heads[4].Hash}) || s.Has(Head{21, ""}) || s.Has(Head{}) {
		t.Error("Has is wrong about single lines")
	}
	if s, err := Verify(strings.NewReader("")); err != nil || s.Lines != 0 {
		t.Errorf("of an empty log: %+v, %v", s, err)
	}
}

// TestChangesShow changes every byte of a log, and its order of lines.
func TestChangesShow(t *testing.T) {
	l, _ := fill(t, 4)
	whole, err := os.ReadFile(l.Path)
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	for i := range whole {
		for bit := range 8 {
			b := bytes.Clone(whole)
			b[i] ^= 1 << bit
			s, err := Verify(bytes.NewReader(b))
			// A change in the last line, or of the end before it, makes of it what a crash could have left.
			if err == nil && !(i >= last-1 && s.Lines < 4) {
				t.Fatalf("byte %d, bit %d: the log still holds: %+v\n%s", i, bit, s, b)
			}
		}
	}
	lines := strings.SplitAfter(string(whole), "\n")
	for name, text := range map[string]string{
		"a line is missing":    lines[0] + lines[2] + lines[3],
		"the first is missing": lines[1] + lines[2] + lines[3],
		"two are swapped":      lines[0] + lines[2] + lines[1] + lines[3],
		"one comes twice":      lines[0] + lines[1] + lines[1] + lines[2],
		"junk in between":      lines[0] + "junk\n" + lines[1] + lines[2],
	} {
		var broken *BrokenError
		if _, err := Verify(strings.NewReader(text)); !errors.As(err, &broken) {
			t.Errorf("%s: error = %v, want a BrokenError", name, err)
		}
	}
}

// TestCrashesLeaveHalfLines cuts a log off at every byte of its last line, twice.
func TestCrashesLeaveHalfLines(t *testing.T) {
	l, heads := fill(t, 3)
	whole, err := os.ReadFile(l.Path)
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	cuts := []int{len(whole) - 1}
	for cut := last; cut < len(whole); cut += 7 {
		cuts = append(cuts, cut)
	}
	for _, cut := range cuts {
		if err := os.WriteFile(l.Path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		lines := 2
		if cut == len(whole)-1 {
			lines = 3 // all of it but its end
		}
		if s, err := verify(t, l); err != nil || s.Lines != lines || s.Open != (cut > last && lines == 2) {
			t.Fatalf("cut at %d: %+v, %v", cut, s, err)
		}
		for _, more := range []string{"", "\n", `{"hash":"abc`, "\n\nx"} {
			f, err := os.OpenFile(l.Path, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			f.WriteString(more)
			f.Close()
			if _, err := l.Append(Entry{Event: "end"}); err != nil {
				t.Fatal(err)
			}
		}
		if s, err := verify(t, l); err != nil || s.Lines != lines+4 || s.Open || !s.Has(heads[1]) {
			data, _ := os.ReadFile(l.Path)
			t.Fatalf("cut at %d: after more lines %+v, %v\n%s", cut, s, err, data)
		}
	}
}

func TestManyAppend(t *testing.T) {
	l, _ := fill(t, 0)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if _, err := l.Append(Entry{Event: "start"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if s, err := verify(t, l); err != nil || s.Lines != 160 {
		t.Errorf("Verify = %+v, %v, want 160 lines", s, err)
	}
}

func FuzzVerify(f *testing.F) {
	f.Add([]byte(`{"hash":"","entry":{}}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) { _, _ = Verify(bytes.NewReader(data)) })
}

// TestAppendFindsALongLine appends behind a line that is nearly as long as one may be.
func TestAppendFindsALongLine(t *testing.T) {
	l, _ := fill(t, 3)
	for range 3 {
		if _, err := l.Append(Entry{Event: "end", Observed: strings.Repeat("x", maxLine-1000)}); err != nil {
			t.Fatal(err)
		}
	}
	head, err := l.Append(Entry{Event: "end"})
	if s, bad := verify(t, l); err != nil || bad != nil || s.Head != head || head.Seq != 7 {
		t.Errorf("Append = %+v, %v; Verify = %+v, %v", head, err, s, bad)
	}
}
