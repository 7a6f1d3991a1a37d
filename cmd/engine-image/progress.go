package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image/intake"
)

// progress shows one line per layer on a terminal, and nothing elsewhere.
type progress struct {
	out io.Writer // nil: nowhere
	max int       // lines that the terminal has room for

	mu     sync.Mutex
	layers []intake.Event
	drawn  int // lines on the terminal
	last   time.Time
}

// frame is how often the lines are drawn again at most.
const frame = 80 * time.Millisecond

func newProgress(out *os.File, quiet bool) *progress {
	p := &progress{}
	size, err := unix.IoctlGetWinsize(int(out.Fd()), unix.TIOCGWINSZ)
	if err == nil && !quiet {
		p.out, p.max = out, max(int(size.Row)-2, 1)
	}
	return p
}

func (p *progress) event(e intake.Event) {
	if p.out == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.layers) != e.Layers {
		p.layers = make([]intake.Event, e.Layers)
	}
	moved := p.layers[e.Layer-1].State != e.State
	p.layers[e.Layer-1] = e
	if moved || time.Since(p.last) >= frame {
		p.draw()
	}
}

func (p *progress) end() {
	if p.out == nil || len(p.layers) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draw()
}

// draw writes the lines over those of the last time. Where there are too many, the
// first ones that are done make room.
func (p *progress) draw() {
	var lines []string
	for _, e := range p.layers {
		if e.State != "" {
			lines = append(lines, line(e))
		}
	}
	if len(lines) > p.max {
		lines = lines[len(lines)-p.max:]
	}
	var b strings.Builder
	if p.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", p.drawn)
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "\r\x1b[K%s\n", l)
	}
	p.drawn, p.last = len(lines), time.Now()
	_, _ = io.WriteString(p.out, b.String()) // a terminal that is gone is no reason to stop
}

func line(e intake.Event) string {
	digest := strings.TrimPrefix(e.Digest, "sha256:")
	text := fmt.Sprintf("layer %2d/%d  %s  %-9s", e.Layer, e.Layers, digest[:min(len(digest), 12)], e.State)
	if e.State == intake.Fetching && e.Total > 0 {
		const width = 24
		filled := int(min(e.Done, e.Total) * width / e.Total)
		text += fmt.Sprintf(" %s%s %5.1f of %.1f MB", strings.Repeat("=", filled), strings.Repeat(" ", width-filled), float64(e.Done)/1e6, float64(e.Total)/1e6)
	}
	return text
}
