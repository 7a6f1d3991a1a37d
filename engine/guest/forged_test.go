package guest

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// forger is a guest of which a program of the sandbox has taken the place: it answers
// each request as reply says, until that says no.
func forger(t *testing.T, silence time.Duration, reply func(o op) (value uint32, payload []byte, ok bool)) *Files {
	t.Helper()
	ours, theirs := net.Pipe()
	f := converse(ours, silence)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := theirs.Write(hello()); err != nil {
			return
		}
		header := make([]byte, headerSize)
		for {
			if _, err := io.ReadFull(theirs, header); err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, theirs, int64(binary.LittleEndian.Uint32(header))); err != nil {
				return
			}
			value, payload, ok := reply(op(header[8]))
			if !ok {
				continue
			}
			if _, err := theirs.Write(says(binary.LittleEndian.Uint32(header[4:]), kindDone, value, payload...)); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { f.Close(); theirs.Close(); <-ended })
	return f
}

// endless is a tree in which each directory holds others, and more that are never told.
func endless(o op) (uint32, []byte, bool) {
	switch o {
	case opOpen:
		return 1, stat(syscall.S_IFDIR, 0), true
	case opList:
		var dirs [][]byte
		for i := range 50 {
			dirs = append(dirs, entry(fmt.Sprint(i), syscall.S_IFDIR))
		}
		return 1, page(dirs...), true
	case opWatch:
		return 1, nil, true // always the same
	}
	return 0, nil, true
}

// TestEndlessTrees watches and exports a tree without an end, by a guest that gives all of
// its directories one number, and a directory without an end.
func TestEndlessTrees(t *testing.T) {
	flat := func(o op) (uint32, []byte, bool) {
		if o == opList {
			return 1, page(entry("f", syscall.S_IFREG)), true
		}
		return endless(o)
	}
	for name, reply := range map[string]func(op) (uint32, []byte, bool){"deep": endless, "wide": flat} {
		f := forger(t, silence, reply)
		w, err := f.Watch(within(t), "/a", true)
		must(t, err)
		select {
		case e := <-w.Events():
			if e.Type != Overflow {
				t.Errorf("%s: the first event is %+v, want an overflow", name, e)
			}
		case <-time.After(bound):
			t.Fatalf("%s: the search for directories does not end", name)
		}
		f.Close()
	}
	f := forger(t, silence, endless)
	var large *ArchiveError
	if _, err := f.Export(within(t), "/a", io.Discard, ArchiveLimits{}); !errors.As(err, &large) {
		t.Errorf("Export = %v, want an *ArchiveError", err)
	}
}

// TestWideTrees exports directories that are each as wide as can be, one in the other.
func TestWideTrees(t *testing.T) {
	pages := 0
	f := forger(t, silence, func(o op) (uint32, []byte, bool) {
		if o != opList {
			return endless(o)
		}
		var wide [][]byte
		for i := range maxPage {
			wide = append(wide, entry(fmt.Sprintf("%05d-%d", i, pages), syscall.S_IFDIR))
		}
		pages++
		more := uint32(1)
		if pages%20 == 0 {
			more = 0
		}
		return more, page(wide...), true
	})
	var large *ArchiveError
	if _, err := f.Export(within(t), "/a", io.Discard, ArchiveLimits{Entries: 1 << 30}); !errors.As(err, &large) {
		t.Errorf("Export = %v, want an *ArchiveError", err)
	}
	if pages > maxHeld/maxPage+1+20 {
		t.Errorf("%d pages of %d names were in memory", pages, maxPage)
	}
}

// TestStoppedGuest answers nothing any more: whoever waits is told so in bounded time, also
// if all before gave up earlier, and nobody is while nobody waits.
func TestStoppedGuest(t *testing.T) {
	stopped := func(op) (uint32, []byte, bool) { return 0, nil, false }
	for name, wait := range map[string]func(f *Files) error{
		"one waits": func(f *Files) error { _, err := f.Stat(context.Background(), "/a"); return err },
		"all give up early": func(f *Files) error {
			for range 40 {
				ctx, cancel := context.WithTimeout(context.Background(), silence/20)
				_, err := f.Stat(ctx, "/a")
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := forger(t, silence, stopped)
				time.Sleep(time.Hour)
				began := time.Now()
				if err := wait(f); !errors.Is(err, ErrSilent) {
					t.Errorf("after %v: %v, want ErrSilent", time.Since(began), err)
				}
				if took := time.Since(began); took > 2*silence {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		slow := func(op) (uint32, []byte, bool) {
			time.Sleep(silence * 3 / 4)
			return 0, stat(syscall.S_IFREG, 5), true
		}
		f := forger(t, silence, slow)
		for range 5 {
			if _, err := f.Stat(context.Background(), "/a"); err != nil {
				t.Fatalf("a slow guest: %v", err)
			}
		}
	})
}

// TestWatchersAreFew has more watchers than there may be, and then again as many.
func TestWatchersAreFew(t *testing.T) {
	f := forger(t, silence, endless)
	for range 2 {
		ctx, cancel := context.WithCancel(within(t))
		var all []*Watcher
		for range maxWatchers {
			w, err := f.Watch(ctx, "/a", false)
			must(t, err)
			all = append(all, w)
		}
		var refused *RequestError
		if _, err := f.Watch(ctx, "/a", false); !errors.As(err, &refused) || !bytes.Contains([]byte(err.Error()), []byte("watchers")) {
			t.Errorf("one more: %v, want a *RequestError", err)
		}
		cancel()
		for _, w := range all {
			for range w.Events() {
			}
		}
		f.waitForPlace(t)
	}
}

// waitForPlace returns when no watcher holds a place.
func (f *Files) waitForPlace(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(bound); ; {
		f.mu.Lock()
		n := f.watches.count
		f.mu.Unlock()
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d places are not given back", n)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestAnswersInAdvance answers a request that is not sent yet, whose caller then gives up:
// its place is given back once, and who has to do with this guest is not held up.
func TestAnswersInAdvance(t *testing.T) {
	ours, theirs := net.Pipe()
	f := NewFiles(ours)
	defer theirs.Close()
	say := func(words []byte) {
		t.Helper()
		_, err := theirs.Write(words)
		must(t, err)
	}
	waiting := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
			f.mu.Lock()
			n := len(f.waiting)
			f.mu.Unlock()
			if n == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d requests wait, want %d", n, want)
			}
		}
	}
	ended := make(chan error, 1)
	ask := func(ctx context.Context) { _, err := f.Stat(ctx, "/a"); ended <- err }
	file := stat(syscall.S_IFREG, 5)
	say(hello())
	go ask(within(t)) // request 1, which the guest does not read
	waiting(1)
	ctx, cancel := context.WithCancel(t.Context())
	go ask(ctx) // request 2, behind it
	waiting(2)
	say(says(2, kindDone, 0, file...))
	waiting(1)
	cancel()
	<-ended
	_, err := io.CopyN(io.Discard, theirs, int64(headerSize+len("/a")))
	must(t, err)
	say(says(1, kindDone, 0, file...))
	go func() { ended <- f.Close() }()
	for range 2 {
		select {
		case <-ended:
		case <-time.After(bound):
			t.Fatal("the conversation neither goes on nor ends")
		}
	}
}

// TestNewsComeAtAPace has a guest that says as many news as it can: reading them must not
// keep a processor of the host busy.
func TestNewsComeAtAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		f := NewFiles(ours)
		defer theirs.Close()
		said := make(chan error, 1)
		go func() {
			theirs.Write(hello())
			play(theirs, says(1, kindDone, 1))
			_, err := theirs.Write(bytes.Repeat(says(0, kindEvent, lost, make([]byte, 8)...), 10*maxNews))
			said <- err
		}()
		w, err := f.Watch(t.Context(), "/a", false)
		must(t, err)
		began := time.Now()
		must(t, <-said)
		if took := time.Since(began); took < 9*newsEvery {
			t.Errorf("%d news took %v, want %v", 10*maxNews, took, 9*newsEvery)
		}
		if e := <-w.Events(); e.Type != Overflow {
			t.Errorf("the first event is %+v, want an overflow", e)
		}
		f.Close()
	})
}

// TestLongPathsAreFew watches a tree whose paths are as long as can be.
func TestLongPathsAreFew(t *testing.T) {
	given := uint32(0)
	f := forger(t, silence, func(o op) (uint32, []byte, bool) {
		switch o {
		case opWatch:
			given++
			return given, nil, true
		case opList:
			var long [][]byte
			for i := range 20 {
				long = append(long, entry(fmt.Sprintf("%0255d", i), syscall.S_IFDIR))
			}
			return 0, page(long...), true
		}
		return 0, nil, true
	})
	w, err := f.Watch(within(t), "/a", true)
	must(t, err)
	if e := <-w.Events(); e.Type != Overflow {
		t.Errorf("the first event is %+v, want an overflow", e)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	size := 0
	for _, p := range w.paths {
		size += len(p)
	}
	if size > maxPaths || size != w.bytes {
		t.Errorf("%d bytes of paths are kept, and %d counted; want at most %d", size, w.bytes, maxPaths)
	}
}

// TestLateModesAreFew unpacks an archive of read-only directories with names as long as can
// be into a sandbox that says yes to all.
func TestLateModesAreFew(t *testing.T) {
	f := forger(t, silence, func(o op) (uint32, []byte, bool) {
		if o == opOpen {
			return 1, stat(syscall.S_IFDIR, 0), true
		}
		return 0, nil, true
	})
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	long := strings.Repeat(strings.Repeat("d", 250)+"/", 16)
	for i := range 2 * maxLate / len(long) {
		must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprint(long, i, "/"), Mode: 0o555}))
	}
	must(t, w.Close())
	var large *ArchiveError
	if _, err := f.Import(within(t), "/a", &archive, ArchiveLimits{}); !errors.As(err, &large) {
		t.Errorf("Import = %v, want an *ArchiveError", err)
	}
}
