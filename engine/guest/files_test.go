package guest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestFilesReadAndWrite(t *testing.T) {
	f, dir, ctx := newFiles(t), t.TempDir(), within(t)
	big := make([]byte, 3*maxPayload+17)
	rand.Read(big)
	for name, data := range map[string][]byte{"empty": nil, "small": []byte("hello"), "big": big, "a b\nc\xff": []byte("odd name")} {
		path := filepath.Join(dir, "new/dirs", name)
		n, err := f.Write(ctx, path, bytes.NewReader(data), WriteOptions{Parents: true})
		if err != nil || n != int64(len(data)) {
			t.Fatalf("Write(%q) = %d, %v", path, n, err)
		}
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%q holds %d bytes, %v, want the %d written", path, len(got), err, len(data))
		}
		back, err := f.Read(ctx, path, 0, 1<<30)
		if err != nil || !bytes.Equal(back, data) {
			t.Errorf("Read(%q) = %d bytes, %v", path, len(back), err)
		}
	}
	if part, err := f.Read(ctx, dir+"/new/dirs/big", maxPayload-3, maxPayload+9); err != nil || !bytes.Equal(part, big[maxPayload-3:2*maxPayload+6]) {
		t.Errorf("part of a file = %d bytes, %v", len(part), err)
	}
	if past, err := f.Read(ctx, dir+"/new/dirs/small", 100, 5); err != nil || len(past) != 0 {
		t.Errorf("past the end = %q, %v, want nothing", past, err)
	}
	if left, err := filepath.Glob(dir + "/new/dirs/.engine*"); err != nil || len(left) > 0 {
		t.Errorf("files under other names are left: %q", left)
	}
	st, err := os.Stat(dir + "/new/dirs")
	if err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("a directory on the way has mode %v, %v, want 0755", st.Mode(), err)
	}
}

func TestWriteReplacesAtOnce(t *testing.T) {
	f, dir, ctx := newFiles(t), t.TempDir(), within(t)
	path, victim := dir+"/script", dir+"/victim"
	must(t, os.WriteFile(path, []byte("old"), 0o750))
	must(t, os.WriteFile(victim, []byte("untouched"), 0o600))
	w, err := f.Create(ctx, path, WriteOptions{})
	must(t, err)
	if _, err := io.WriteString(w, "new"); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("before Commit the file holds %q", got)
	}
	must(t, w.Commit())
	st, err := os.Stat(path)
	if got, _ := os.ReadFile(path); err != nil || string(got) != "new" || st.Mode().Perm() != 0o750 {
		t.Errorf("after Commit the file holds %q with mode %v, want the old mode", got, st.Mode())
	}

	// What is not committed leaves nothing.
	w, err = f.Create(ctx, dir+"/never", WriteOptions{})
	must(t, err)
	must(t, w.Close())
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("the directory holds %v, want two files", left)
	}

	// A link is replaced, not followed.
	must(t, os.Symlink(victim, dir+"/link"))
	mode, when := fs.FileMode(0o640), time.Unix(1234567890, 5000)
	if _, err := f.Write(ctx, dir+"/link", strings.NewReader("mine"), WriteOptions{Mode: &mode, ModTime: when}); err != nil {
		t.Fatal(err)
	}
	st, err = os.Lstat(dir + "/link")
	if got, _ := os.ReadFile(victim); err != nil || string(got) != "untouched" || st.Mode() != mode || !st.ModTime().Equal(when) {
		t.Errorf("in place of a link: %v %v, its target holds %q", st.Mode(), st.ModTime(), got)
	}

	_, err = f.Write(ctx, victim, strings.NewReader("x"), WriteOptions{Exclusive: true})
	wantErrno(t, "Write over a file, exclusive", err, syscall.EEXIST)
	_, err = f.Write(ctx, dir, strings.NewReader("x"), WriteOptions{})
	wantErrno(t, "Write over a directory", err, syscall.EISDIR)
	_, err = f.Write(ctx, dir+"/no/such", strings.NewReader("x"), WriteOptions{})
	wantErrno(t, "Write below nothing", err, syscall.ENOENT)
	if _, err := f.Write(ctx, dir+"/exclusive", strings.NewReader("x"), WriteOptions{Exclusive: true}); err != nil {
		t.Errorf("Write of a new file, exclusive: %v", err)
	}
}

func TestStatListAndLinks(t *testing.T) {
	f, dir, ctx := newFiles(t), t.TempDir(), within(t)
	must(t, os.WriteFile(dir+"/file", []byte("12345"), 0o604))
	must(t, os.Mkdir(dir+"/dir", 0o711))
	must(t, f.Symlink(ctx, "file", dir+"/link"))
	must(t, syscall.Mkfifo(dir+"/pipe", 0o600))
	for path, want := range map[string]fs.FileMode{"file": 0o604, "dir": 0o711 | fs.ModeDir, "link": 0o604, "pipe": 0o600 | fs.ModeNamedPipe} {
		info, err := f.Stat(ctx, filepath.Join(dir, path))
		if err != nil || info.Mode != want || info.Name != path || time.Since(info.ModTime) > time.Minute {
			t.Errorf("Stat(%s) = %+v, %v, want mode %v", path, info, err, want)
		}
	}
	if info, err := f.Lstat(ctx, dir+"/link"); err != nil || info.Mode&fs.ModeSymlink == 0 {
		t.Errorf("Lstat(link) = %+v, %v", info, err)
	}
	if target, err := f.Readlink(ctx, dir+"/link"); err != nil || target != "file" {
		t.Errorf("Readlink = %q, %v", target, err)
	}
	_, err := f.Open(ctx, dir+"/pipe")
	wantErrno(t, "Open of a pipe", err, syscall.EINVAL)
	if _, err := f.Open(ctx, dir+"/dir"); err == nil {
		t.Error("a directory was opened as a file")
	}
	_, err = f.Stat(ctx, dir+"/nothing")
	if wantErrno(t, "Stat of nothing", err, syscall.ENOENT); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not the standard library's ErrNotExist", err)
	}

	// Pages, of few and of many files.
	many := dir + "/many"
	must(t, os.Mkdir(many, 0o755))
	want := map[string]bool{}
	for i := range 3000 {
		name := fmt.Sprintf("%0200d", i)
		want[name] = true
		must(t, os.WriteFile(filepath.Join(many, name), nil, 0o600))
	}
	for _, limit := range []int{7, 0} {
		seen := map[string]bool{}
		for page := (Page{More: true}); page.More; {
			if page, err = f.List(ctx, many, page.Next, limit); err != nil {
				t.Fatal(err)
			}
			if limit > 0 && len(page.Entries) > limit {
				t.Fatalf("a page of %d files, want at most %d", len(page.Entries), limit)
			}
			for _, e := range page.Entries {
				if seen[e.Name] || !want[e.Name] {
					t.Errorf("%s is listed twice, or not there", e.Name)
				}
				seen[e.Name] = true
			}
		}
		if len(seen) != len(want) {
			t.Errorf("pages of %d show %d files, want %d", limit, len(seen), len(want))
		}
	}
	_, err = f.List(ctx, dir+"/file", 0, 0)
	wantErrno(t, "List of a file", err, syscall.ENOTDIR)
}

func TestChangeTheTree(t *testing.T) {
	f, dir, ctx := newFiles(t), t.TempDir(), within(t)
	wantErrno(t, "Mkdir below nothing", f.Mkdir(ctx, dir+"/a/b", 0o755, false), syscall.ENOENT)
	must(t, f.Mkdir(ctx, dir+"/a/b", 0o777|fs.ModeSticky, true))
	must(t, f.Mkdir(ctx, dir+"/a/b", 0o700, true))
	wantErrno(t, "Mkdir again", f.Mkdir(ctx, dir+"/a/b", 0o755, false), syscall.EEXIST)
	if st, err := os.Stat(dir + "/a/b"); err != nil || st.Mode() != 0o777|fs.ModeDir|fs.ModeSticky {
		t.Errorf("mode = %v, %v, want that of the first", st.Mode(), err)
	}
	must(t, os.WriteFile(dir+"/one", []byte("1"), 0o600))
	must(t, os.WriteFile(dir+"/two", []byte("2"), 0o600))
	wantErrno(t, "Rename over a file", f.Rename(ctx, dir+"/one", dir+"/two", false), syscall.EEXIST)
	must(t, f.Rename(ctx, dir+"/one", dir+"/two", true))
	must(t, f.Rename(ctx, dir+"/two", dir+"/a/b/three", false))
	if got, err := os.ReadFile(dir + "/a/b/three"); err != nil || string(got) != "1" {
		t.Errorf("renamed file = %q, %v", got, err)
	}
	must(t, f.Chmod(ctx, dir+"/a/b/three", 0o421))
	if st, _ := os.Stat(dir + "/a/b/three"); st.Mode() != 0o421 {
		t.Errorf("mode = %v, want 0421", st.Mode())
	}
	wantErrno(t, "Remove of a full directory", f.Remove(ctx, dir+"/a", false), syscall.ENOTEMPTY)
	must(t, f.Remove(ctx, dir+"/a/b/three", false))
	must(t, f.Remove(ctx, dir+"/a/b", false))
	wantErrno(t, "Remove of nothing", f.Remove(ctx, dir+"/nothing", true), syscall.ENOENT)
}

// TestRemoveStaysBelow removes a tree whose links lead out of it, deep, and full.
func TestRemoveStaysBelow(t *testing.T) {
	f, dir, ctx := newFiles(t), t.TempDir(), within(t)
	outside := t.TempDir()
	must(t, os.WriteFile(outside+"/canary", []byte("alive"), 0o600))
	deep := dir + "/tree"
	for range 200 {
		deep += "/d"
	}
	must(t, os.MkdirAll(deep, 0o755))
	for i := range 500 {
		must(t, os.WriteFile(fmt.Sprintf("%s/tree/%0100d", dir, i), nil, 0o600))
	}
	must(t, os.Symlink(outside, dir+"/tree/out"))
	must(t, os.Symlink(outside, deep+"/out"))
	must(t, os.Symlink("..", deep+"/up"))
	must(t, f.Remove(ctx, dir+"/tree", true))
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	// A link itself.
	must(t, os.Symlink(outside, dir+"/link"))
	must(t, f.Remove(ctx, dir+"/link", true))
	if got, err := os.ReadFile(outside + "/canary"); err != nil || string(got) != "alive" {
		t.Errorf("outside of the tree: %q, %v", got, err)
	}
	// Deeper than is gone down to: an error, and no crash.
	var chain []string
	for range 600 {
		chain = append(chain, "x")
	}
	must(t, os.MkdirAll(filepath.Join(dir, filepath.Join(chain...)), 0o755))
	wantErrno(t, "Remove of 600 levels", f.Remove(ctx, dir+"/x", true), syscall.ELOOP)
}

func TestPathsAreChecked(t *testing.T) {
	f, ctx := newFiles(t), within(t)
	for _, path := range []string{"", "relative", "nul\x00", "/nul\x00", "/" + strings.Repeat("x", 256), strings.Repeat("/x", 2100)} {
		var bad *RequestError
		if _, err := f.Stat(ctx, path); !errors.As(err, &bad) {
			t.Errorf("Stat(%.20q) = %v, want a *RequestError", path, err)
		}
	}
	for _, path := range []string{"/", "//", "/.", "/../..", "/tmp/../tmp/", "/proc/self/../../tmp"} {
		if info, err := f.Stat(ctx, path); err != nil || !info.Mode.IsDir() {
			t.Errorf("Stat(%q) = %+v, %v, want a directory", path, info, err)
		}
	}
}

// TestManyCallers has requests on their way from all sides, and gives up some.
func TestManyCallers(t *testing.T) {
	f, dir, ctx := newFiles(t), t.TempDir(), within(t)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			path := fmt.Sprintf("%s/%d", dir, i)
			data := bytes.Repeat([]byte{byte(i)}, 100_000)
			for range 5 {
				hurried, cancel := context.WithTimeout(ctx, time.Duration(i)*100*time.Microsecond)
				f.Write(hurried, path, bytes.NewReader([]byte("given up")), WriteOptions{})
				if r, err := f.Open(hurried, path); err == nil {
					r.Close()
				}
				cancel()
				if _, err := f.Write(ctx, path, bytes.NewReader(data), WriteOptions{}); err != nil {
					t.Errorf("Write(%d): %v", i, err)
				}
				if got, err := f.Read(ctx, path, 0, 1<<20); err != nil || !bytes.Equal(got, data) {
					t.Errorf("Read(%d) = %d bytes, %v", i, len(got), err)
				}
			}
		})
	}
	wg.Wait()
	// No handle was lost on the way: all 64 can be had.
	var open []*Reader
	for i := range 64 {
		r, err := f.Open(ctx, dir+"/0")
		if err != nil {
			t.Fatalf("handle %d: %v", i, err)
		}
		open = append(open, r)
	}
	_, err := f.Open(ctx, dir+"/0")
	wantErrno(t, "one handle too many", err, syscall.EMFILE)
	for _, r := range open {
		must(t, r.Close())
	}
}

// TestEndLeavesNothing ends the conversation in the middle of files.
func TestEndLeavesNothing(t *testing.T) {
	f, dir, ctx := newFiles(t), t.TempDir(), within(t)
	for i := range 10 {
		w, err := f.Create(ctx, fmt.Sprintf("%s/%d", dir, i), WriteOptions{})
		must(t, err)
		io.WriteString(w, "part")
	}
	f.Close()
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("after the end the directory holds %v", left)
	}
	if _, err := f.Stat(ctx, dir); err == nil {
		t.Error("Stat after Close succeeded")
	}
}

func TestWatch(t *testing.T) {
	f, dir, ctx := newFiles(t), t.TempDir(), within(t)
	must(t, os.MkdirAll(dir+"/sub/deep", 0o755))
	flat, err := f.Watch(ctx, dir, false)
	must(t, err)
	all, err := f.Watch(ctx, dir, true)
	must(t, err)
	// The way down is not instant: wait until the deepest directory tells.
	eventually(t, all, Event{Type: Created, Path: dir + "/sub/deep/probe"}, func(i int) {
		os.WriteFile(fmt.Sprintf("%s/sub/deep/probe", dir), nil, 0o600)
		os.Remove(dir + "/sub/deep/probe")
	})
	must(t, os.WriteFile(dir+"/file", []byte("x"), 0o600))
	must(t, os.Rename(dir+"/file", dir+"/moved"))
	must(t, os.Remove(dir+"/moved"))
	want := []string{"created /file", "modified /file", "written /file", "moved_from /file", "moved_to /moved", "removed /moved"}
	for _, w := range []*Watcher{flat, all} {
		var got []string
		for len(got) < len(want) {
			e := next(t, w)
			if name := strings.TrimPrefix(e.Path, dir); name == "/file" || name == "/moved" {
				got = append(got, e.Type+" "+name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("events = %q, want %q", got, want)
		}
	}
	// A directory that appears with what is in it, and one that moves away.
	must(t, os.MkdirAll(dir+"/new/below", 0o755))
	eventually(t, all, Event{Type: Created, Path: dir + "/new/below/probe"}, func(int) {
		os.WriteFile(dir+"/new/below/probe", nil, 0o600)
		os.Remove(dir + "/new/below/probe")
	})
	must(t, os.Rename(dir+"/new", dir+"/other"))
	eventually(t, all, Event{Type: Created, Path: dir + "/other/below/probe"}, func(int) {
		os.WriteFile(dir+"/other/below/probe", nil, 0o600)
		os.Remove(dir + "/other/below/probe")
	})
}

// next is the next event.
func next(t *testing.T, w *Watcher) Event {
	t.Helper()
	select {
	case e, ok := <-w.Events():
		if !ok {
			t.Fatalf("the watcher ended: %v", w.Err())
		}
		return e
	case <-time.After(bound):
		t.Fatal("no event comes")
	}
	return Event{}
}

// eventually does something again and again until it is told.
func eventually(t *testing.T, w *Watcher, want Event, do func(int)) {
	t.Helper()
	deadline := time.After(bound)
	for i := 0; ; i++ {
		do(i)
		pause := time.After(50 * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case e, ok := <-w.Events():
				if !ok {
					t.Fatalf("the watcher ended: %v", w.Err())
				}
				if e.Type == want.Type && e.Path == want.Path {
					return
				}
			case <-pause:
				waiting = false
			case <-deadline:
				t.Fatalf("%+v is not told", want)
			}
		}
	}
}

// TestWatchOverflows has more happen than anybody keeps, and a reader that does not read.
func TestWatchOverflows(t *testing.T) {
	f, dir, ctx := newFiles(t), t.TempDir(), within(t)
	w, err := f.Watch(ctx, dir, false)
	must(t, err)
	for i := range 3 * maxEvents {
		must(t, os.WriteFile(fmt.Sprintf("%s/%d", dir, i%100), nil, 0o600))
	}
	// Requests are answered all the same.
	if _, err := f.Stat(ctx, dir); err != nil {
		t.Fatal(err)
	}
	for i := 0; next(t, w).Type != Overflow; i++ {
		if i > maxEvents {
			t.Fatal("more events are kept than there is room for")
		}
	}
	// And it goes on.
	eventually(t, w, Event{Type: Removed, Path: dir + "/1"}, func(int) {
		os.WriteFile(dir+"/1", nil, 0o600)
		os.Remove(dir + "/1")
	})
}

// TestWatchEnds ends watchers in each way, and begins others on the same directory.
func TestWatchEnds(t *testing.T) {
	f, dir := newFiles(t), t.TempDir()
	for range 20 {
		ctx, cancel := context.WithCancel(within(t))
		w, err := f.Watch(ctx, dir, true)
		must(t, err)
		cancel()
		for range w.Events() {
		}
		if err := w.Err(); err != nil {
			t.Errorf("after its context the watcher says %v", err)
		}
	}
	w, err := f.Watch(within(t), dir, false)
	must(t, err)
	must(t, os.WriteFile(dir+"/file", nil, 0o600))
	if e := next(t, w); e.Type != Created {
		t.Errorf("event = %+v, want the file", e)
	}
	f.Close()
	for range w.Events() {
	}
	if w.Err() == nil {
		t.Error("a watcher whose guest ended has no error")
	}
}
