package engine

import "github.com/direct-oci/engine/engine/journal"

// notes are the records between intent and exit. They are written in order, each on
// disk before the next, beside the run and not in its way: nothing is decided by
// them, they tell an operator, and whoever cleans up after a crash, how far a run was.
type notes struct {
	queue chan note
	err   chan error
}

type note struct {
	name  string
	value any
}

func newNotes(record *journal.Run) notes {
	n := notes{queue: make(chan note, 2), err: make(chan error, 1)} // created and started
	go func() {
		var first error
		for e := range n.queue {
			failpoint("before-note-" + e.name)
			if err := record.Write(e.name, e.value, true); err != nil && first == nil {
				first = err
			}
			failpoint("after-note-" + e.name)
		}
		n.err <- first
	}()
	return n
}

func (n notes) write(name string, value any) { n.queue <- note{name, value} }

// wait returns once everything is on disk. Nothing may be written after.
func (n notes) wait() error {
	close(n.queue)
	return <-n.err
}
