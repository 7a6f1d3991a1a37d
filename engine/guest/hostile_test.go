package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// hello is what a good guest says first.
func hello() []byte {
	var b []byte
	for _, n := range []uint32{helloMagic, helloVersion, maxPayload, 0} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return b
}

// says is an answer as any process of the sandbox can write it.
func says(id uint32, kind byte, value uint32, payload ...byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, id)
	b = append(b, kind, 0, 0, 0)
	return append(binary.LittleEndian.AppendUint32(b, value), payload...)
}

// entry is a file of a page.
func entry(name string, mode uint32) []byte {
	b := make([]byte, statSize)
	binary.LittleEndian.PutUint32(b, mode)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(name)))
	return append(b, name...)
}

func page(entries ...[]byte) []byte { return append(make([]byte, 8), bytes.Join(entries, nil)...) }

func stat(mode uint32, size uint64) []byte {
	b := make([]byte, statSize)
	binary.LittleEndian.PutUint32(b, mode)
	binary.LittleEndian.PutUint64(b[16:], size)
	return b
}

// played is a guest that says what is given: first whatever is its hello, then one answer
// for each request, and news as they come.
func played(t *testing.T, words ...[]byte) *Files {
	t.Helper()
	ours, theirs := net.Pipe()
	f := NewFiles(ours)
	go func() {
		for i, w := range words {
			if i > 0 {
				play(theirs, w)
			} else if _, err := theirs.Write(w); err != nil {
				return
			}
		}
		io.Copy(io.Discard, theirs)
	}()
	t.Cleanup(func() { f.Close(); theirs.Close() })
	return f
}

// play says words, of which each answer waits for a request.
func play(conn net.Conn, words []byte) {
	for len(words) > 0 {
		size := len(words)
		if size >= headerSize {
			size = min(size, headerSize+int(binary.LittleEndian.Uint32(words)))
		}
		if size <= 8 || words[8] != kindEvent {
			header := make([]byte, headerSize)
			if _, err := io.ReadFull(conn, header); err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, conn, int64(binary.LittleEndian.Uint32(header))); err != nil {
				return
			}
		}
		if _, err := conn.Write(words[:size]); err != nil {
			return
		}
		words = words[size:]
	}
}

// TestHostileGuest wants the end of the conversation after the first wrong word.
func TestHostileGuest(t *testing.T) {
	ctx := within(t)
	statCall := func(f *Files) error { _, err := f.Stat(ctx, "/a"); return err }
	list := func(f *Files) error { _, err := f.List(ctx, "/a", 0, 2); return err }
	open := func(f *Files) error { _, err := f.Open(ctx, "/a"); return err }
	read := func(f *Files) error { _, err := f.Read(ctx, "/a", 0, 10); return err }
	create := func(f *Files) error { _, err := f.Create(ctx, "/a", WriteOptions{}); return err }
	readlink := func(f *Files) error { _, err := f.Readlink(ctx, "/a"); return err }
	watch := func(f *Files) error {
		w, err := f.Watch(ctx, "/a", false)
		if err == nil {
			for range w.Events() {
			}
			err = w.Err()
		}
		return err
	}
	h := hello()
	good := stat(syscall.S_IFREG, 5)
	for _, tt := range []struct {
		name  string
		call  func(*Files) error
		words [][]byte
	}{
		{"another magic", statCall, [][]byte{make([]byte, helloSize)}},
		{"another version", statCall, [][]byte{bytes.Replace(h, []byte{1, 0, 0, 0}, []byte{2, 0, 0, 0}, 1)}},
		{"a payload without end", statCall, [][]byte{h, {0xff, 0xff, 0xff, 0x7f, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}},
		{"an answer to nobody", statCall, [][]byte{h, says(77, kindDone, 0, good...)}},
		{"an answer of no kind", statCall, [][]byte{h, says(1, 3, 0, good...)}},
		{"an error that is none", statCall, [][]byte{h, says(1, kindError, 0)}},
		{"an error with a text", statCall, [][]byte{h, says(1, kindError, 2, 'x')}},
		{"an error that Go would misread", statCall, [][]byte{h, says(1, kindError, 1<<31)}},
		{"half a stat", statCall, [][]byte{h, says(1, kindDone, 0, good[:31]...)}},
		{"more than a stat", statCall, [][]byte{h, says(1, kindDone, 0, append(good, 0)...)}},
		{"a file of no type", statCall, [][]byte{h, says(1, kindDone, 0, stat(0, 0)...)}},
		{"a negative size", statCall, [][]byte{h, says(1, kindDone, 0, stat(syscall.S_IFREG, 1<<63)...)}},
		{"a name that rises", list, [][]byte{h, says(1, kindDone, 0, page(entry("..", syscall.S_IFDIR))...)}},
		{"a name that is a path", list, [][]byte{h, says(1, kindDone, 0, page(entry("a/../../b", syscall.S_IFREG))...)}},
		{"an absolute name", list, [][]byte{h, says(1, kindDone, 0, page(entry("/etc/passwd", syscall.S_IFREG))...)}},
		{"a name with NUL", list, [][]byte{h, says(1, kindDone, 0, page(entry("a\x00b", syscall.S_IFREG))...)}},
		{"no name", list, [][]byte{h, says(1, kindDone, 0, page(entry("", syscall.S_IFREG))...)}},
		{"an endless name", list, [][]byte{h, says(1, kindDone, 0, page(entry(strings.Repeat("x", 256), syscall.S_IFREG))...)}},
		{"a page that is cut off", list, [][]byte{h, says(1, kindDone, 0, page(entry("abc", syscall.S_IFREG)[:36])...)}},
		{"a page without a cookie", list, [][]byte{h, says(1, kindDone, 0, 1, 2, 3)}},
		{"more files than asked for", list, [][]byte{h, says(1, kindDone, 0, page(entry("a", syscall.S_IFREG), entry("b", syscall.S_IFREG), entry("c", syscall.S_IFREG))...)}},
		{"a mark that is none", list, [][]byte{h, says(1, kindDone, 2, page()...)}},
		{"handle 0", open, [][]byte{h, says(1, kindDone, 0, good...)}},
		{"handle 65", open, [][]byte{h, says(1, kindDone, 65, good...)}},
		{"an open device", open, [][]byte{h, says(1, kindDone, 1, stat(syscall.S_IFCHR, 0)...)}},
		{"more bytes than asked for", read, [][]byte{h, says(1, kindDone, 1, good...), says(2, kindDone, 0, make([]byte, 1000)...)}},
		{"a handle with more", create, [][]byte{h, says(1, kindDone, 1, 'x')}},
		{"a link to nothing", readlink, [][]byte{h, says(1, kindDone, 0)}},
		{"a link with NUL", readlink, [][]byte{h, says(1, kindDone, 0, 'a', 0)}},
		{"an endless link", readlink, [][]byte{h, says(1, kindDone, 0, bytes.Repeat([]byte("a"), 5000)...)}},
		{"watch 0", watch, [][]byte{h, says(1, kindDone, 0)}},
		{"news of nothing", watch, [][]byte{h, says(0, kindEvent, 5, make([]byte, 8)...)}},
		{"lost news of nothing", statCall, [][]byte{h, says(0, kindEvent, lost, make([]byte, 8)...)}},
		{"news of a watch never given", watch, [][]byte{h, says(1, kindDone, 3), says(0, kindEvent, 4, make([]byte, 8)...)}},
		{"news of a path", watch, [][]byte{h, says(1, kindDone, 3), says(0, kindEvent, 3, append(make([]byte, 8), "../../etc"...)...)}},
		{"news that are cut off", watch, [][]byte{h, says(1, kindDone, 3), says(0, kindEvent, 3, make([]byte, 7)...)}},
		{"news of a request", watch, [][]byte{h, says(1, kindDone, 3), says(9, kindEvent, 3, make([]byte, 8)...)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := played(t, tt.words...)
			var broken *ProtocolError
			if err := tt.call(f); !errors.As(err, &broken) {
				t.Errorf("call = %v, want a *ProtocolError", err)
			}
			if _, err := f.Stat(ctx, "/b"); !errors.As(err, &broken) {
				t.Errorf("the next call = %v, want the same", err)
			}
		})
	}
}

// TestSilentGuest answers never: every wait ends with its context, and Close ends all.
func TestSilentGuest(t *testing.T) {
	for _, words := range [][][]byte{nil, {hello()}, {hello(), says(1, kindDone, 0)[:10]}} {
		f := played(t, words...)
		for range 2 * maxWaiting {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := f.Stat(ctx, "/a"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Stat = %v, want the end of its context", err)
			}
			cancel()
		}
		ended := make(chan error, 1)
		go func() { _, err := f.Stat(context.Background(), "/a"); ended <- err }()
		f.Close()
		select {
		case err := <-ended:
			if err == nil {
				t.Error("Stat succeeded without an answer")
			}
		case <-time.After(bound):
			t.Fatal("Close does not end a call")
		}
	}
}

// TestGuestIsKilled ends the guest in the middle.
func TestGuestIsKilled(t *testing.T) {
	ours, theirs := net.Pipe()
	f := NewFiles(ours)
	go func() { theirs.Write(hello()); theirs.Close() }()
	if _, err := f.Stat(within(t), "/a"); !errors.Is(err, ErrGone) {
		t.Errorf("Stat = %v, want ErrGone", err)
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add(byte(0), says(1, kindDone, 0, stat(syscall.S_IFREG, 5)...))
	f.Add(byte(1), says(1, kindDone, 1, page(entry("a", syscall.S_IFREG))...))
	f.Add(byte(2), append(says(1, kindDone, 1, stat(syscall.S_IFREG, 5)...), says(2, kindDone, 0, 'h', 'i')...))
	f.Add(byte(3), append(says(1, kindDone, 3), says(0, kindEvent, 3, append(make([]byte, 8), "name"...)...)...))
	f.Add(byte(3), append(says(1, kindDone, 3), says(0, kindEvent, 3, 0, 0x80, 0, 0, 0, 0, 0, 0)...)) // the watch is gone
	f.Add(byte(4), append(says(1, kindDone, 1, stat(syscall.S_IFDIR, 5)...), says(2, kindDone, 0, page(entry("d", syscall.S_IFDIR))...)...))
	f.Add(byte(5), says(1, kindError, 2))
	f.Fuzz(func(t *testing.T, which byte, words []byte) {
		ours, theirs := net.Pipe()
		files := NewFiles(ours)
		defer files.Close()
		go func() {
			theirs.Write(hello())
			play(theirs, words)
			theirs.Close()
		}()
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		switch which % 6 {
		case 0:
			files.Stat(ctx, "/a")
		case 1:
			if p, err := files.List(ctx, "/a", 0, 3); err == nil && len(p.Entries) > 3 {
				t.Errorf("List = %d entries", len(p.Entries))
			}
		case 2:
			if b, err := files.Read(ctx, "/a", 0, 5); err == nil && len(b) > 5 {
				t.Errorf("Read = %q", b)
			}
		case 3:
			if w, err := files.Watch(ctx, "/a", true); err == nil {
				for e := range w.Events() {
					if e.Path != "/a" && !isBelow(e.Path, "/a") {
						t.Errorf("event of %q", e.Path)
					}
				}
			}
		case 4:
			var out bytes.Buffer
			files.Export(ctx, "/a", &out, ArchiveLimits{Entries: 100, Bytes: 1 << 20})
			checkArchive(t, out.Bytes())
		case 5:
			files.Readlink(ctx, "/a")
		}
		if ctx.Err() != nil {
			t.Error("a call does not end with the guest")
		}
	})
}

// TestMalformedRequests sends the guest what Files does not: it ends, with 125.
func TestMalformedRequests(t *testing.T) {
	for name, r := range map[string]request{
		"no such request":          {op: 0},
		"no such request either":   {op: opUnwatch + 1},
		"unknown flags":            {op: opStat, flags: 32, payload: []byte("/")},
		"no path":                  {op: opStat},
		"a relative path":          {op: opStat, payload: []byte("etc")},
		"an absolute path, a base": {op: opStat, base: 1, payload: []byte("/etc")},
		"NUL in a path":            {op: opStat, payload: []byte("/a\x00b")},
		"an endless path":          {op: opStat, payload: []byte("/" + strings.Repeat("a", 4096))},
		"more than a number":       {op: opUnwatch, payload: make([]byte, 5)},
		"less than a number":       {op: opMkdir, payload: make([]byte, 3)},
		"a text past the end":      {op: opSymlink, payload: []byte{200, 0, 'a'}},
		"two bases":                {op: opRename, payload: append(text16("rel"), "/abs"...)},
		"a write of nothing":       {op: opCommit, base: 1},
	} {
		t.Run(name, func(t *testing.T) {
			status := endOf(t, r.encode(1))
			if status != 125 {
				t.Errorf("status = %d, want 125", status)
			}
		})
	}
	if status := endOf(t, []byte{0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}); status != 125 {
		t.Errorf("a request without end: status = %d, want 125", status)
	}
	if status := endOf(t, []byte("half")); status != 0 {
		t.Errorf("half a request: status = %d, want 0", status)
	}
}

// endOf is how a guest ends that was told words.
func endOf(t *testing.T, words []byte) int {
	t.Helper()
	cmd := guestCommand(t, "files")
	cmd.Stdin = bytes.NewReader(words)
	cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal("the guest was not started")
	}
	return cmd.ProcessState.ExitCode()
}

// TestDotsAreNoNames asks for names that only another program than Files would send.
func TestDotsAreNoNames(t *testing.T) {
	f, dir, ctx := newFiles(t), t.TempDir(), within(t)
	must(t, os.Mkdir(dir+"/a", 0o755))
	base, err := f.openAt(ctx, place{path: dir, about: dir}, directory)
	must(t, err)
	for _, path := range []string{"..", "a/..", "../etc", "./a", "a/./b", "a/../a"} {
		_, err := f.statAt(ctx, place{base.handle, path, path}, 0)
		wantErrno(t, "stat of "+path, err, syscall.EINVAL)
		_, err = f.statAt(ctx, place{0, dir + "/" + path, path}, 0)
		wantErrno(t, "stat of an absolute "+path, err, syscall.EINVAL)
	}
	_, err = f.statAt(ctx, place{99, "a", "a"}, 0)
	wantErrno(t, "a handle that is none", err, syscall.EBADF)
}
