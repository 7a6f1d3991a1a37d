package engine

import (
	"os"

	"github.com/direct-oci/engine/engine/journal"
)

// What the execs of one session may take of the disk, which it shares with all others.
const (
	// maxPromised bounds the output that may be kept of those that run, together: as
	// many as can run, with the default of each.
	maxPromised = 4 << 30
	// maxHistory bounds the output of those that have ended. The oldest go first.
	maxHistory = 1 << 30
	// maxAsked bounds commands and environments: of those that run, and of those that have
	// ended. Whoever lists the execs of a session has all of them in memory.
	maxAsked = 32 << 20
)

// asked is about how much of the record the exec's caller wrote.
func (e Exec) asked() int64 {
	size := len(e.Workdir) + 1<<10
	for _, texts := range [][]string{e.Command, e.Env} {
		for _, text := range texts {
			size += len(text) + 3
		}
	}
	return int64(size)
}

// mayKeep is how much output may be on record of the exec.
func (e Exec) mayKeep() int64 {
	if e.Raw {
		return 0
	}
	return 2 * e.OutputKept
}

// release gives back what the exec may keep. Whoever learns of its end finds the room.
// Preconditions: called once.
func (x *execution) release() {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	x.s.promised -= x.exec.mayKeep()
	x.s.asked -= x.exec.asked()
}

// size is what is on record of the output. An exec without any has none.
func (x *execution) size() int64 {
	if x.output == nil {
		return 0
	}
	info, err := os.Stat(x.record.OutputPath())
	if err != nil {
		return x.exec.mayKeep() // no more than that
	}
	return info.Size()
}

// history is the records of execs that have ended, the oldest first.
type history struct {
	records []kept
	bytes   int64 // of output
	asked   int64 // of commands and environments
}

type kept struct {
	record *journal.ExecRecord
	size   int64
	asked  int64
}

// add appends a record, and returns those that have to go for it.
func (h *history) add(k kept) (old []*journal.ExecRecord) {
	h.records = append(h.records, k)
	h.bytes += k.size
	h.asked += k.asked
	for len(h.records) > execsKept || (h.bytes > maxHistory || h.asked > maxAsked) && len(h.records) > 1 {
		old = append(old, h.records[0].record)
		h.bytes -= h.records[0].size
		h.asked -= h.records[0].asked
		h.records = h.records[1:]
	}
	return old
}
