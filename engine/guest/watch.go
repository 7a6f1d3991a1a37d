package guest

import (
	"context"
	"encoding/binary"
	"fmt"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	maxWatchers = 32        // at once
	maxEvents   = 256       // kept of one watcher; more are lost, and that is said
	maxWatched  = 1024      // directories of one watcher
	maxPaths    = 256 << 10 // bytes of their paths, which the guest makes up as it likes
	maxWalk     = 1000      // pages that are read in search of directories
)

// What can have happened to a file.
const (
	Created   = "created"
	Modified  = "modified" // its content, perhaps not for the last time
	Written   = "written"  // closed by one that could write
	Changed   = "changed"  // mode, owner or times
	Removed   = "removed"
	MovedFrom = "moved_from"
	MovedTo   = "moved_to"
	Overflow  = "overflow" // events were lost: look for yourself
)

var eventNames = []struct {
	mask uint32
	name string
}{
	{unix.IN_CREATE, Created},
	{unix.IN_MODIFY, Modified},
	{unix.IN_CLOSE_WRITE, Written},
	{unix.IN_ATTRIB, Changed},
	{unix.IN_DELETE, Removed},
	{unix.IN_DELETE_SELF, Removed},
	{unix.IN_MOVED_FROM, MovedFrom},
	{unix.IN_MOVED_TO, MovedTo},
	{unix.IN_MOVE_SELF, MovedFrom},
}

// Event is one thing that happened.
type Event struct {
	Type   string
	Path   string // absolute, below what is watched, or that itself; of an overflow what is watched
	Dir    bool   // it is about a directory
	Cookie uint32 // the same for the two halves of one move
}

// Watcher tells what happens in a directory, or to a file.
type Watcher struct {
	files   *Files
	root    string
	all     bool
	events  chan Event
	grow    chan change // for recursive ones: directories that appear and move away
	stopped chan struct{}

	// Guarded by files.mu.
	err    error
	lost   bool
	closed bool
	paths  map[uint32]string // of each watch
	bytes  int               // of all paths
}

// change is a directory that appeared, or left with all that is below.
type change struct {
	path string
	left bool
}

// watches are those of all watchers. Everything is guarded by Files.mu but busy, which
// keeps two from adding and removing the same directory at the same time.
type watches struct {
	busy    sync.Mutex
	live    map[*Watcher]bool // that have begun, and not ended
	of      map[uint32]map[*Watcher]string
	highest uint32 // ever given
	count   int    // watchers that have not ended
}

// Watch begins to tell what happens in a directory, with all in every directory below
// as well, at most 1024 of them. It ends with ctx, or when the guest does.
func (f *Files) Watch(ctx context.Context, dir string, all bool) (*Watcher, error) {
	at, err := absolute(opWatch, dir)
	if err != nil {
		return nil, err
	}
	w := &Watcher{
		files: f, root: at.path, all: all, paths: map[uint32]string{},
		events: make(chan Event, maxEvents+1), grow: make(chan change, maxEvents), stopped: make(chan struct{}),
	}
	if !f.watches.take(f) {
		return nil, &RequestError{opWatch.String(), dir, fmt.Sprintf("%d watchers of this sandbox's files are there already", maxWatchers)}
	}
	if err := w.add(ctx, at.path, 0); err != nil {
		f.watches.give(f)
		return nil, err
	}
	go func() {
		defer f.watches.give(f)
		w.run(ctx)
	}()
	return w, nil
}

// take reserves a place for one more watcher.
func (s *watches) take(f *Files) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.count >= maxWatchers {
		return false
	}
	s.count++
	return true
}

func (s *watches) give(f *Files) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.count--
}

// Events is closed when the watcher ends.
func (w *Watcher) Events() <-chan Event { return w.events }

// Err says why Events was closed: nil when ctx ended.
func (w *Watcher) Err() error {
	w.files.mu.Lock()
	defer w.files.mu.Unlock()
	return w.err
}

// run follows the directories that come and go, and cleans up.
func (w *Watcher) run(ctx context.Context) {
	if w.all {
		w.enter(ctx, w.root, false, new(int))
	}
	for {
		select {
		case c := <-w.grow:
			if c.left {
				w.leave(c.path)
			} else if err := w.add(ctx, c.path, noFollow); err == nil {
				w.enter(ctx, c.path, true, new(int))
			}
		case <-ctx.Done():
			w.leave(w.root)
			w.close(nil)
			return
		case <-w.stopped:
			return
		}
	}
}

// add watches one directory.
func (w *Watcher) add(ctx context.Context, dir string, fl flags) error {
	f := w.files
	f.watches.busy.Lock()
	defer f.watches.busy.Unlock()
	_, err := f.ask(ctx, dir, request{opWatch, fl, 0, []byte(dir)}, func(a answer) error {
		if a.kind != kindDone {
			return nil
		}
		return f.watches.register(a.value, w, dir)
	})
	return err
}

// register is called by the reader, who may next meet news of this watch.
func (s *watches) register(watch uint32, w *Watcher, dir string) error {
	if watch == 0 || watch > 1<<31-1 {
		return fmt.Errorf("the watch %d", watch)
	}
	s.highest = max(s.highest, watch)
	if w.closed {
		return nil
	}
	s.live[w] = true
	if w.full(dir) {
		w.lose()
		return nil
	}
	if s.of[watch] == nil {
		s.of[watch] = map[*Watcher]string{}
	}
	w.forget(watch) // two directories of one number: the later counts
	s.of[watch][w], w.paths[watch] = dir, dir
	w.bytes += len(dir)
	return nil
}

// forget lets go of one path. Preconditions: files.mu is held.
func (w *Watcher) forget(watch uint32) {
	w.bytes -= len(w.paths[watch])
	delete(w.paths, watch)
}

// enter watches what is below a directory. With tell, what is there already is told as
// created: it may have come before the watch. What the guest says decides where it goes,
// and directories without end must not keep it up: pages counts them all.
func (w *Watcher) enter(ctx context.Context, dir string, tell bool, pages *int) {
	at := place{path: dir, about: dir}
	for page := (Page{More: true}); page.More; {
		if *pages++; *pages > maxWalk {
			w.overflow()
			return
		}
		var err error
		if page, err = w.files.listAt(ctx, at, page.Next, 0); err != nil {
			return // it is gone, or the conversation is
		}
		for _, e := range page.Entries {
			below := path.Join(dir, e.Name)
			if tell {
				w.tell(Event{Type: Created, Path: below, Dir: e.Mode.IsDir()})
			}
			if !e.Mode.IsDir() {
				continue
			}
			if len(below) > maxPath || w.isFull(below) {
				w.overflow()
				return
			}
			if err := w.add(ctx, below, noFollow); err == nil {
				w.enter(ctx, below, tell, pages)
			}
		}
	}
}

// full reports whether this directory cannot be watched beside the others. Preconditions:
// files.mu is held.
func (w *Watcher) full(dir string) bool {
	return len(w.paths) >= maxWatched || w.bytes+len(dir) > maxPaths
}

func (w *Watcher) isFull(dir string) bool {
	w.files.mu.Lock()
	defer w.files.mu.Unlock()
	return w.full(dir)
}

// overflow says that something is not told.
func (w *Watcher) overflow() {
	w.files.mu.Lock()
	defer w.files.mu.Unlock()
	w.lose()
}

// leave gives up the watches of a directory and of all below.
func (w *Watcher) leave(dir string) {
	f := w.files
	f.watches.busy.Lock()
	defer f.watches.busy.Unlock()
	var unused []uint32
	f.mu.Lock()
	for watch, at := range w.paths {
		if at != dir && !isBelow(at, dir) {
			continue
		}
		w.forget(watch)
		delete(f.watches.of[watch], w)
		if len(f.watches.of[watch]) == 0 {
			delete(f.watches.of, watch)
			unused = append(unused, watch)
		}
	}
	f.mu.Unlock()
	for _, watch := range unused {
		ctx, cancel := context.WithTimeout(context.Background(), closeBound)
		f.always(ctx, dir, request{op: opUnwatch, payload: u32(watch)}) // EINVAL: it went with its directory
		cancel()
	}
}

func isBelow(p, dir string) bool {
	return strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

func (w *Watcher) close(reason error) {
	w.files.mu.Lock()
	defer w.files.mu.Unlock()
	w.shut(reason)
}

// shut ends the events. Preconditions: files.mu is held.
func (w *Watcher) shut(reason error) {
	if w.closed {
		return
	}
	w.closed, w.err = true, reason
	delete(w.files.watches.live, w)
	close(w.events)
	close(w.stopped)
}

// end ends all watchers, with the conversation. Preconditions: files.mu is held.
func (s *watches) end(reason error) {
	for w := range s.live {
		w.shut(reason)
	}
}

// deliver hands out one piece of news. It never waits.
func (s *watches) deliver(a answer) error {
	if a.value == lost && s.highest > 0 { // something was watched, now or before
		for w := range s.live {
			w.lose()
		}
		return nil
	}
	mask, cookie := binary.LittleEndian.Uint32(a.payload), binary.LittleEndian.Uint32(a.payload[4:])
	name := string(a.payload[8:])
	if a.value == 0 || a.value > s.highest || name != "" && !isName(name) {
		return fmt.Errorf("news of the watch %d and a file called %q", a.value, name)
	}
	for w, dir := range s.of[a.value] {
		if mask&unix.IN_IGNORED != 0 {
			w.forget(a.value)
			continue
		}
		w.happened(dir, name, mask, cookie)
	}
	if mask&unix.IN_IGNORED != 0 {
		delete(s.of, a.value)
	}
	return nil
}

// happened tells one event. Preconditions: files.mu is held.
func (w *Watcher) happened(dir, name string, mask, cookie uint32) {
	at := dir
	if name != "" {
		at = path.Join(dir, name)
	} else if dir != w.root {
		return // its own directory has told it
	}
	isDir := mask&unix.IN_ISDIR != 0
	if w.all && isDir && mask&(unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_MOVED_FROM) != 0 {
		select {
		case w.grow <- change{at, mask&unix.IN_MOVED_FROM != 0}:
		default:
			w.lose()
		}
	}
	for _, e := range eventNames {
		if mask&e.mask != 0 {
			w.put(Event{Type: e.name, Path: at, Dir: isDir, Cookie: cookie})
			return
		}
	}
}

func (w *Watcher) tell(e Event) {
	w.files.mu.Lock()
	defer w.files.mu.Unlock()
	w.put(e)
}

// lose says that events were lost, once until there is room again: who comes to read that
// has all that was kept before it. Preconditions: files.mu is held.
func (w *Watcher) lose() {
	if w.closed || w.lost && len(w.events) > 0 {
		return // the last of the queue says so
	}
	w.lost = true
	w.events <- Event{Type: Overflow, Path: w.root} // its place is kept free
}

// put keeps an event for the caller, or loses it. Preconditions: files.mu is held, so that
// the queue gets no longer meanwhile.
func (w *Watcher) put(e Event) {
	switch {
	case w.closed:
	case len(w.events) >= maxEvents:
		w.lose()
	default:
		w.lost = false
		w.events <- e
	}
}
