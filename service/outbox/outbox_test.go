package outbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func open(t testing.TB, path string) *Box {
	t.Helper()
	b, err := Open(path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func appendOne(t testing.TB, b *Box, body, key, mark string) uint64 {
	t.Helper()
	seq, err := b.Append([]byte(body), key, []byte(mark), false)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

// waiting are the bodies that wait, by taking them.
func drain(t *testing.T, b *Box) []string {
	t.Helper()
	var all []string
	for {
		m, ok := b.First()
		if !ok {
			return all
		}
		all = append(all, fmt.Sprintf("%d:%s", m.Sequence, m.Body))
		if err := b.Ack(m.Sequence); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMessagesOutliveTheirProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "box")
	b := open(t, path)
	for i := range 5 {
		appendOne(t, b, fmt.Sprint("m", i), "k", fmt.Sprint("mark", i))
	}
	if err := b.Ack(2); err != nil {
		t.Fatal(err)
	}
	if err := b.Mark("other", []byte("x")); err != nil {
		t.Fatal(err)
	}
	b.Close()
	b = open(t, path)
	if got := fmt.Sprintf("%s", b.Marks()); got != "map[k:mark4 other:x]" {
		t.Errorf("marks = %s", got)
	}
	if n, size := b.Waiting(); n != 3 || size != 6 {
		t.Errorf("waiting = %d messages of %d bytes", n, size)
	}
	if got := fmt.Sprint(drain(t, b)); got != "[3:m2 4:m3 5:m4]" {
		t.Errorf("after opening again there are %s", got)
	}
	if seq := appendOne(t, b, "next", "", ""); seq != 6 {
		t.Errorf("the next has sequence %d, want 6", seq)
	}
}

// TestEveryPrefixIsABox cuts the file at each byte: what was whole is there, and the
// box goes on from it.
func TestEveryPrefixIsABox(t *testing.T) {
	path := filepath.Join(t.TempDir(), "box")
	b := open(t, path)
	ends := map[int64]int{0: 0}
	for i := range 4 {
		appendOne(t, b, fmt.Sprint("message", i), "key", fmt.Sprint(i))
		ends[b.size] = i + 1
	}
	b.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for cut := range len(whole) + 1 {
		if n, ok := ends[int64(cut)]; ok {
			want = n
		}
		cutPath := filepath.Join(t.TempDir(), "cut")
		if err := os.WriteFile(cutPath, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := Open(cutPath, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := b.Waiting(); n != want {
			t.Fatalf("cut at byte %d there are %d messages, want %d", cut, n, want)
		}
		if seq := appendOne(t, b, "next", "", ""); seq != uint64(want+1) {
			t.Fatalf("cut at byte %d the next has sequence %d, want %d", cut, seq, want+1)
		}
		b.Close()
	}
}

// TestDamageEndsTheBoxThere flips each byte: nothing wrong is given out.
func TestDamageEndsTheBoxThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "box")
	b := open(t, path)
	for i := range 3 {
		appendOne(t, b, fmt.Sprint("message", i), "key", "mark")
	}
	b.Close()
	whole, _ := os.ReadFile(path)
	for i := range whole {
		damaged := bytes.Clone(whole)
		damaged[i] ^= 0x41
		p := filepath.Join(t.TempDir(), "damaged")
		os.WriteFile(p, damaged, 0o600)
		b, err := Open(p, 1<<20)
		if err != nil {
			continue
		}
		for j, got := range drain(t, b) {
			if want := fmt.Sprintf("%d:message%d", j+1, j); got != want {
				t.Fatalf("with byte %d damaged there is %q, want %q", i, got, want)
			}
		}
		b.Close()
	}
}

// TestNothingBehindDamageComesBack writes over a damaged record one of the same length:
// what stood behind it must not follow.
func TestNothingBehindDamageComesBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "box")
	b := open(t, path)
	for i := range 3 {
		appendOne(t, b, fmt.Sprint("message", i), "", "")
	}
	b.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[headBytes] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	b = open(t, path)
	appendOne(t, b, "message9", "", "")
	b.Close()
	if got := fmt.Sprint(drain(t, open(t, path))); got != "[1:message9]" {
		t.Errorf("there is %s, want the one that was written last", got)
	}
}

func TestFullBoxes(t *testing.T) {
	b, err := Open(filepath.Join(t.TempDir(), "box"), 10)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	appendOne(t, b, "12345678", "", "")
	if _, err := b.Append([]byte("123"), "", nil, false); !errors.Is(err, ErrFull) {
		t.Errorf("Append to a full box = %v", err)
	}
	if _, err := b.Append([]byte("123"), "", nil, true); err != nil {
		t.Errorf("Append of an urgent one = %v", err)
	}
	if _, err := b.Append([]byte("1234567890"), "", nil, true); !errors.Is(err, ErrFull) {
		t.Errorf("Append of too many urgent ones = %v", err)
	}
	if err := b.Ack(2); err != nil {
		t.Fatal(err)
	}
	appendOne(t, b, "1234567890", "", "")
	if _, err := b.Append(make([]byte, MaxMessage+1), "", nil, true); err == nil {
		t.Error("Append took a message above the limit")
	}
	if err := b.Ack(99); err == nil {
		t.Error("Ack took a sequence that there is not")
	}
}

func TestOneProcessAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "box")
	b := open(t, path)
	if _, err := Open(path, 1); !errors.Is(err, ErrBusy) {
		t.Errorf("Open of an open box = %v", err)
	}
	b.Close()
	open(t, path)
}

// TestFileStaysSmall appends and acknowledges far more than a box holds.
func TestFileStaysSmall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "box")
	b := open(t, path)
	body := string(make([]byte, 50_000))
	var largest int64
	for i := range 60 {
		appendOne(t, b, body, "key", fmt.Sprint(i))
		appendOne(t, b, body, "", fmt.Sprint(i))
		if err := b.Ack(uint64(2*i + 1)); err != nil {
			t.Fatal(err)
		}
		largest = max(largest, b.size)
		if i == 30 { // in the middle, another process goes on with it
			b.Close()
			b = open(t, path)
		}
		if err := b.Ack(uint64(2 * i)); err != nil {
			t.Fatal(err)
		}
	}
	if n, _ := b.Waiting(); n != 1 {
		t.Errorf("%d messages wait, want the last one", n)
	}
	if largest > 6_500_000 || largest < 300_000 {
		t.Errorf("the file grew to %d bytes", largest)
	}
	if b.size > 4_000_000 {
		t.Errorf("in the end it has %d bytes for one message of 50000", b.size)
	}
	b.Close()
	b = open(t, path)
	if got := fmt.Sprintf("%s", b.Marks()); got != "map[:59 key:59]" {
		t.Errorf("marks after compaction = %s", got)
	}
	m, ok := b.First()
	if !ok || m.Sequence != 120 || len(m.Body) != len(body) {
		t.Errorf("the last message is %d of %d bytes (%v)", m.Sequence, len(m.Body), ok)
	}
}

func TestChangedTellsOfAnAppend(t *testing.T) {
	b := open(t, filepath.Join(t.TempDir(), "box"))
	c := b.Changed()
	select {
	case <-c:
		t.Fatal("changed before anything was appended")
	default:
	}
	appendOne(t, b, "x", "", "")
	<-c
}

func FuzzOpen(f *testing.F) {
	path := filepath.Join(f.TempDir(), "box")
	b := open(f, path)
	appendOne(f, b, "hello", "key", "mark")
	appendOne(f, b, "world", "", "")
	b.Ack(1)
	b.Mark("k", nil)
	b.compact()
	appendOne(f, b, "more", "key", "mark")
	b.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add(record(kindBase, 1<<63, nil))
	f.Add(append(record(kindMessage, 1, join(time.Now(), "k", nil, []byte("x"))), record(kindAck, 1, nil)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := filepath.Join(t.TempDir(), "box")
		if err := os.WriteFile(p, data, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := Open(p, 1<<20)
		if err != nil {
			return
		}
		next := b.last + 1
		if seq, err := b.Append([]byte("x"), "", nil, true); err == nil && seq != next {
			t.Errorf("appended as %d, want %d", seq, next)
		}
		marks := fmt.Sprint(b.Marks())
		n, size := b.Waiting()
		b.Close()
		again, err := Open(p, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		if n2, size2 := again.Waiting(); n2 != n || size2 != size || fmt.Sprint(again.Marks()) != marks {
			t.Errorf("opened again it has %d messages of %d bytes, want %d of %d", n2, size2, n, size)
		}
	})
}
