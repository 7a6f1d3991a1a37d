package network

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/integration/testenv"
)

// TestNeighbours has two runs with everything that can be granted: neither finds the
// other, nor what belongs to the host, but for the one service that is granted.
func TestNeighbours(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		b := newBed(t)
		flags := []string{"--network", "internet", "--allow-cidr", "10.0.0.0/8:*", "--allow-cidr", "100.64.0.0/10:*", "--allow-cidr", "192.168.0.0/16:*"}
		first := b.start(runtime, flags...)
		first.want("listen 7777", "ok")
		first.want("tcp 127.0.0.1:7777", "ok")
		first.want("tcp 100.64.0.2:7777", "ok") // itself, by the address that every sandbox has
		second := b.start(runtime, append(flags, "--allow-cidr", fmt.Sprintf("%s/32:%d", hostInside, servicePort), "--allow", fmt.Sprintf("inside.test:%d", servicePort))...)
		for _, addr := range []string{"100.64.0.1", "100.64.0.2", "203.0.113.1", "10.9.9.9", "127.0.0.1"} {
			for _, port := range []int{7777, 22, 80, 443, 5432} {
				line := fmt.Sprintf("tcp %s:%d", addr, port)
				if f := second.ask(line); f.Got == "ok" || f.Got == "timeout" {
					t.Errorf("%v, want a refusal", f)
				}
				if f := second.ask(fmt.Sprintf("connect %s:%d", addr, port)); f.Got == "ok" || f.Got == "timeout" {
					t.Errorf("%v, want a refusal", f)
				}
			}
		}
		if f := second.want(fmt.Sprintf("tcp inside.test:%d", servicePort), "ok"); f.Text != "a service of the host" {
			t.Errorf("%v, want the host's service", f)
		}
		second.end()
		first.want("tcp 127.0.0.1:7777", "ok")
		first.end()
		if came := b.world.visits.list(); len(came) > 0 {
			t.Errorf("services of the host that were not granted were reached: %q", came)
		}
	})
}

// netNamespaces are all network namespaces that a process is in or holds.
func netNamespaces(t *testing.T) []string {
	t.Helper()
	var own unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &own); err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{}
	for _, pattern := range []string{"/proc/[0-9]*/task/[0-9]*/ns/net", "/proc/[0-9]*/fd/*"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			link, err := os.Readlink(name)
			if err != nil || !strings.HasPrefix(link, "net:[") && !strings.Contains(link, "ns/net") {
				continue
			}
			var st unix.Stat_t
			if unix.Stat(name, &st) == nil && st.Dev == own.Dev {
				seen[st.Ino] = true
			}
		}
	}
	var list []string
	for inode := range seen {
		list = append(list, fmt.Sprint(inode))
	}
	slices.Sort(list)
	return list
}

// runsAtOnce is how many runs have a network at the same time.
func runsAtOnce() int {
	switch {
	case everything():
		return 120
	case testenv.InVM():
		return 4
	}
	return 20
}

// TestManyAtOnce has many runs with networks of their own at the same time. Nothing of
// them is left afterwards.
func TestManyAtOnce(t *testing.T) {
	b := newBed(t)
	before := netNamespaces(t)
	var runs []*session
	for i := range runsAtOnce() {
		s := b.startProgram("embedded", []string{"--memory", "64MiB", "--allow", "ok.test:5432", "--allow-cidr", fmt.Sprintf("203.0.113.%d/32:5432", i+100)}, "/bin/netprobe")
		runs = append(runs, s)
		if i%8 == 7 {
			s.ready()
		}
	}
	for _, s := range runs {
		s.ready()
	}
	if n := len(netNamespaces(t)) - len(before); n < 2*len(runs) {
		t.Errorf("%d namespaces for %d runs, want two each", n, len(runs))
	}
	var wg sync.WaitGroup
	for i, s := range runs {
		wg.Go(func() {
			s.tell("tcp ok.test:5432", fmt.Sprintf("tcp 203.0.113.%d:5432", i+100), fmt.Sprintf("tcp 203.0.113.%d:5432", i+99), "udp 8.8.8.8:53")
		})
	}
	wg.Wait()
	for _, s := range runs {
		for _, want := range []string{"ok", "ok", "refused", "refused"} {
			if f, _ := s.next(); f.Got != want {
				t.Errorf("%v, want %s", f, want)
			}
		}
	}
	for _, s := range runs {
		s.stdin.Close()
	}
	for _, s := range runs {
		if r := s.over(); r.Reason == nil || *r.Reason != engine.ReasonExited || len(r.Network.Allowed) != 2 || len(r.Network.Denied) != 2 {
			t.Errorf("a run of many: %s", why(r))
		}
	}
	testenv.WaitFor(t, testenv.Patience, "the namespaces to be gone", func() bool { return len(netNamespaces(t)) <= len(before) })
	if out, err := b.engine("gc", "--json"); err != nil || strings.TrimSpace(out) != "[]" {
		t.Errorf("engine gc had something left to do (%v):\n%s", err, out)
	}
}
