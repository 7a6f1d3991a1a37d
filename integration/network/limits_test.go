package network

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestLimitsOfTheFlags sets the limits of a network on the command line and goes past
// each.
func TestLimitsOfTheFlags(t *testing.T) {
	const size = 150_000
	download := fmt.Sprintf("download 203.0.113.130:%d %d", sourcePort, size)
	upload := fmt.Sprintf("upload ok.test:%d %d", sinkPort, size)
	someRuntimes(t, func(t *testing.T, runtime string) {
		b := newBed(t)
		start := func(flags ...string) *session {
			t.Helper()
			grants := []string{
				"--allow", "ok.test:5432", "--allow", fmt.Sprintf("ok.test:%d", sinkPort),
				"--allow-cidr", fmt.Sprintf("203.0.113.130/32:%d", sourcePort),
			}
			return b.start(runtime, slices.Concat(grants, flags)...).ready()
		}
		cut := func(s *session, line string) {
			t.Helper()
			if f := s.ask(line); f.Got == "ok" || f.Got == "timeout" {
				t.Errorf("past the limit: %v", f)
			}
		}
		s := start("--egress-receive", "200kB")
		s.want(download, "ok")
		cut(s, download)
		s.end()

		s = start("--egress-send", "200kB")
		s.want(upload, "ok")
		cut(s, upload)
		s.end()

		s = start("--egress-connections", "2")
		s.tell("hold ok.test:5432", "hold ok.test:5432")
		for range 2 {
			if f, _ := s.next(); !strings.HasPrefix(f.Probe, "holding") {
				t.Fatalf("%v, want it to hold", f)
			}
		}
		cut(s, "tcp ok.test:5432")
		if out, err := s.engine("kill", s.id); err != nil { // it would hold on for ever
			t.Errorf("engine kill: %v\n%s", err, out)
		}
		s.over()
	})
}
