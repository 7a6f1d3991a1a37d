package network

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/integration/testenv"
)

// TestNeighbours has two runs with everything that can be granted: neither finds the
// other, nor what belongs to the host, but for the one service that is granted.
func TestNeighbours(t *testing.T) {
	someRuntimes(t, func(t *testing.T, runtime string) {
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

// namespacesOf are the network namespaces that processes hold by a descriptor, by
// inode, with one of those processes; only those whose cgroup has that name, unless it
// is empty.
func namespacesOf(t *testing.T, group string) map[uint64]string {
	t.Helper()
	var own unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &own); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	held := map[uint64]string{}
	for _, name := range names {
		link, err := os.Readlink(name)
		if err != nil || !strings.HasPrefix(link, "net:[") && !strings.Contains(link, "ns/net") {
			continue
		}
		dir := filepath.Dir(filepath.Dir(name))
		cgroup, err := os.ReadFile(dir + "/cgroup")
		var st unix.Stat_t
		if err == nil && strings.Contains(string(cgroup), group) && unix.Stat(name, &st) == nil && st.Dev == own.Dev && st.Ino != own.Ino {
			held[st.Ino] = dir
		}
	}
	return held
}

// runsAtOnce is how many runs have a network at the same time.
func runsAtOnce() int {
	switch {
	case everything():
		return 500
	case testenv.InVM():
		return 4
	}
	return 20
}

// ownAddress is what the i'th of many runs may reach, and its neighbours may not.
func ownAddress(i int) string { return fmt.Sprintf("203.0.%d.%d", 113+(i+1)/200, 1+(i+1)%200) }

// TestManyAtOnce has many runs with networks of their own at the same time. Nothing of
// them is left afterwards.
func TestManyAtOnce(t *testing.T) {
	b := newBed(t)
	var runs []*session
	for i := range runsAtOnce() {
		s := b.startProgram("embedded", []string{"--memory", "64MiB", "--allow", "ok.test:5432", "--allow-cidr", ownAddress(i) + "/32:5432"}, "/bin/netprobe")
		runs = append(runs, s)
		if i%8 == 7 {
			s.ready()
		}
	}
	for _, s := range runs {
		s.ready()
	}
	held := namespacesOf(t, "/"+filepath.Base(b.dir)+"/")
	if len(held) < 2*len(runs) {
		t.Errorf("%d namespaces for %d runs, want two each", len(held), len(runs))
	}
	// Not all in one moment: the far side has one resolver for everybody.
	const side = 50
	for begin := 0; begin < len(runs); begin += side {
		some := runs[begin:min(begin+side, len(runs))]
		for i, s := range some {
			i += begin
			s.tell("tcp ok.test:5432", "tcp "+ownAddress(i)+":5432", "tcp "+ownAddress(i-1)+":5432", "udp 8.8.8.8:53")
		}
		for _, s := range some {
			for _, want := range []string{"ok", "ok", "refused", "refused"} {
				if f, _ := s.next(); f.Got != want {
					t.Errorf("%v, want %s", f, want)
				}
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
	testenv.WaitFor(t, testenv.Patience, "the namespaces to be gone", func() bool {
		for inode, by := range namespacesOf(t, "") {
			if held[inode] == by {
				return false
			}
		}
		return len(namespacesOf(t, "/"+filepath.Base(b.dir)+"/")) == 0
	})
	if out, err := b.engine("gc", "--json"); err != nil || strings.TrimSpace(out) != "[]" {
		t.Errorf("engine gc had something left to do (%v):\n%s", err, out)
	}
}
