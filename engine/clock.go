package engine

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// bootNow is CLOCK_BOOTTIME in nanoseconds: the same for every process of this boot,
// never set back, and running while the host sleeps, so that a deadline is one.
func bootNow() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("internal error: no CLOCK_BOOTTIME: " + err.Error())
	}
	return ts.Nano()
}

// clock measures the phases of a run from the caller's request on.
type clock struct {
	start int64 // bootNow of the request
	mu    sync.Mutex
	list  []Phase
}

// phase starts one step; the function it returns ends it.
func (c *clock) phase(name string) func() {
	failpoint("before-" + name)
	begin := bootNow()
	return func() {
		c.add(name, begin, bootNow())
		failpoint("after-" + name)
	}
}

func (c *clock) add(name string, begin, end int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, Phase{Name: name, StartMs: c.since(begin), Ms: millis(end - begin)})
}

// since is the time from the request to t in milliseconds.
func (c *clock) since(t int64) float64 { return millis(t - c.start) }

// phases returns what was measured so far, in order of the steps' ends.
func (c *clock) phases() []Phase {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Phase{}, c.list...)
}

// millis rounds nanoseconds to milliseconds with three digits.
func millis(ns int64) float64 {
	return float64(time.Duration(ns).Round(time.Microsecond).Microseconds()) / 1000
}
