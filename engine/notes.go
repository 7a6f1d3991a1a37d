package engine

import (
	"time"

	"github.com/direct-oci/engine/engine/journal"
)

// notes are the records between intent and exit. They are written in order, beside
// the run and not in its way: nothing is decided by them, they tell an operator, and
// whoever cleans up after a crash, how far a run was.
//
// A note is seen at once and on disk a moment later, unless the exit record, which
// says more than all of them, is written before: of a run of a few milliseconds only
// that one is waited for. How the program ended is noted for the moment until then, in
// which its monitor may die: it is not brought to the disk, and a full one does not matter.
type notes struct {
	queue chan note
	err   chan error
}

type note struct {
	name  string
	value any
}

// noteDelay is how long a note may be seen before it is on disk.
const noteDelay = 20 * time.Millisecond

func newNotes(record *journal.Run) notes {
	n := notes{queue: make(chan note, 3), err: make(chan error, 1)} // created, started and ended
	go func() { n.err <- n.take(record) }()
	return n
}

func (n notes) take(record *journal.Run) (first error) {
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	var loose []string // seen, not on disk
	var due <-chan time.Time
	for {
		select {
		case e, more := <-n.queue:
			if !more {
				return first
			}
			failpoint("before-note-" + e.name)
			err := record.Write(e.name, e.value, false)
			failpoint("after-note-" + e.name)
			if e.name == journal.Ended {
				continue
			}
			keep(err)
			loose, due = append(loose, e.name), time.After(noteDelay)
		case <-due:
			for _, name := range loose {
				keep(record.Sync(name))
			}
			loose, due = nil, nil
		}
	}
}

func (n notes) write(name string, value any) { n.queue <- note{name, value} }

// wait returns once everything was written. Nothing may be written after.
func (n notes) wait() error {
	close(n.queue)
	return <-n.err
}
