package link

import (
	"strings"
	"sync"

	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
)

const (
	maxLine      = 16 << 10  // bytes of one line of progress
	maxLines     = 256 << 10 // bytes kept for one invocation
	maxAllLines  = 16 << 20  // and for all
	batchOfLines = 64 << 10  // bytes sent at once
)

// budget is what all lines together may take.
type budget struct {
	mu   sync.Mutex
	left int
}

// take takes n bytes if there are so many, and gives back where n is negative.
func (b *budget) take(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.left {
		return false
	}
	b.left -= n
	return true
}

// lines is the progress of one invocation on its way to the plane. A run never waits
// for it: lines for which there is no room are given up, the oldest first, and counted.
type lines struct {
	budget *budget

	mu      sync.Mutex
	kept    []string
	bytes   int
	written int64 // lines so far
	dropped int64
	closed  bool
}

func (l *lines) add(line string) {
	if len(line) > maxLine {
		line = strings.ToValidUTF8(line[:maxLine], "") + "…"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.written++
	for len(l.kept) > 0 && (l.bytes+len(line) > maxLines || len(l.kept) >= maxLines/64) {
		l.drop(1)
		l.dropped++
	}
	if !l.budget.take(len(line)) {
		l.dropped += int64(len(l.kept)) + 1 // what is kept has to be without a gap
		l.drop(len(l.kept))
		return
	}
	l.kept, l.bytes = append(l.kept, line), l.bytes+len(line)
}

// drop takes n lines off the beginning.
func (l *lines) drop(n int) {
	size := 0
	for _, line := range l.kept[:n] {
		size += len(line)
	}
	l.kept, l.bytes = l.kept[n:], l.bytes-size
	l.budget.take(-size)
}

// next takes out some lines for a message, and false if there are none.
func (l *lines) next(id string) (wire.Log, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size := 0, 0
	for n < len(l.kept) && n < 1000 && (n == 0 || size+len(l.kept[n]) <= batchOfLines) {
		size += len(l.kept[n])
		n++
	}
	if n == 0 {
		return wire.Log{}, false
	}
	m := wire.Log{
		Type: wire.TypeLog, ID: id, First: l.written - int64(len(l.kept)) + 1, Lines: append([]string{}, l.kept[:n]...), Dropped: l.dropped,
	}
	l.drop(n)
	return m, true
}

func (l *lines) count() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written
}

// close gives back what the lines take.
func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(len(l.kept))
	l.closed = true
}
