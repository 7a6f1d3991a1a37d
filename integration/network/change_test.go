package network

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/integration/testenv"
)

// TestPolicyChanges narrows and widens the policy of a live run.
func TestPolicyChanges(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		b := newBed(t)
		set := func(s *session, flags ...string) {
			t.Helper()
			if out, err := b.engine(slices.Concat([]string{"net", "set"}, flags, []string{s.id})...); err != nil {
				t.Fatalf("engine net set: %v\n%s", err, out)
			}
		}
		s := b.start(runtime, "--allow", "ok.test:5432", "--allow-cidr", "203.0.113.128/25:5432")
		s.ready()
		s.tell("hold ok.test:5432", "hold 203.0.113.130:5432")
		for range 2 {
			if f, _ := s.next(); !strings.HasPrefix(f.Probe, "holding") {
				t.Fatalf("%v, want it to hold", f)
			}
		}
		s.want("tcp denied.test:80", "nxdomain")

		set(s, "--allow", "ok.test:5432") // the range is gone
		f, _ := s.next()
		if f.Probe != "hold 203.0.113.130:5432" || f.Got == "ok" || f.Got == "timeout" {
			t.Errorf("after its range was taken away: %v, want a reset", f)
		}
		s.want("tcp 203.0.113.130:5432", "refused")
		s.want("tcp ok.test:5432", "ok")

		set(s, "--allow", "denied.test:5432") // the kernel's rules stay the same
		f, _ = s.next()
		if f.Probe != "hold ok.test:5432" || f.Got == "ok" || f.Got == "timeout" {
			t.Errorf("after its name was taken away: %v, want a reset", f)
		}
		s.want("tcp ok.test:5432", "nxdomain")
		s.want("tcp denied.test:5432", "ok")

		set(s) // nothing at all
		s.want("tcp denied.test:5432", "nxdomain")
		set(s, "--network", "internet")
		s.want("tcp 8.8.8.8:443", "ok")
		s.want("tcp 10.1.2.3:443", "refused")
		r := s.end()
		if r.Reason == nil || *r.Reason != engine.ReasonExited {
			t.Errorf("the run ended by %s", why(r))
		}
		if out, err := b.engine("net", "set", "--allow", "ok.test", s.id); err == nil || !strings.Contains(out, "ended") {
			t.Errorf("the policy of a run that is over was changed: %v\n%s", err, out)
		}
	})
}

// sysctls are the settings of the network of the calling thread's namespace.
func sysctls(t *testing.T, p *place) map[string]string {
	t.Helper()
	found := map[string]string{}
	p.do(t, func() error {
		return filepath.WalkDir("/proc/sys/net", func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			if data, err := os.ReadFile(path); err == nil && !strings.Contains(path, "count") {
				found[path] = string(data)
			}
			return nil
		})
	})
	if len(found) < 100 {
		t.Fatalf("found only %d settings", len(found))
	}
	return found
}

// TestHostIsNotTouched compares the host's own network before, while and after a run
// has one: no link, rule, route or setting is another.
func TestHostIsNotTouched(t *testing.T) {
	someRuntimes(t, func(t *testing.T, runtime string) {
		b := newBed(t)
		state := func() string {
			var s strings.Builder
			for _, args := range [][]string{
				{"ip", "-o", "link"},
				{"ip", "-o", "addr"},
				{"ip", "route", "show", "table", "all"},
				{"ip", "-6", "route", "show", "table", "all"},
				{"ip", "rule"},
				{"nft", "list", "ruleset"},
			} {
				fmt.Fprintln(&s, b.hostRun(args...))
			}
			return s.String()
		}
		testenv.WaitFor(t, testenv.Patience, "the host's own address to be in use", func() bool {
			return strings.Contains(state(), "local "+hostAddr6.String()+" dev near")
		})
		before, settings := state(), sysctls(t, b.world.host)
		s := b.start(runtime, "--network", "internet", "--allow", "ok.test")
		s.want("tcp ok.test:443", "ok")
		during := state()
		s.want("tcp 8.8.8.8:443", "ok")
		s.end()
		if during != before {
			t.Errorf("while it runs the host has\n%s\nand had\n%s", during, before)
		}
		if after := state(); after != before {
			t.Errorf("afterwards the host has\n%s\nand had\n%s", after, before)
		}
		for path, value := range sysctls(t, b.world.host) {
			if settings[path] != value {
				t.Errorf("%s was %q and is %q", path, settings[path], value)
			}
		}
	})
}

// hostRun runs a program in the place that plays the host.
func (b *bed) hostRun(args ...string) string {
	b.t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	var text strings.Builder
	cmd.Stdout, cmd.Stderr = &text, &text
	b.world.host.do(b.t, cmd.Start)
	if err := cmd.Wait(); err != nil {
		b.t.Fatalf("%q: %v\n%s", args, err, text.String())
	}
	return text.String()
}

// TestHostRulesAreFlushed takes away all rules of the host, again and again, while a run
// talks and tries: nothing more passes, and what stands does not stumble.
func TestHostRulesAreFlushed(t *testing.T) {
	someRuntimes(t, func(t *testing.T, runtime string) {
		b := newBed(t)
		s := b.start(runtime, "--allow", "ok.test:5432", "--allow-cidr", "203.0.113.130/32:5432")
		s.ready()
		s.tell("hold ok.test:5432")
		s.next()
		b.hostRun("nft", "add table inet somebody; add chain inet somebody forward { type filter hook forward priority 0; policy drop; }")
		rounds := 10
		if testenv.InVM() {
			rounds = 2
		}
		for range rounds {
			b.hostRun("nft", "flush ruleset")
			if _, err := exec.LookPath("iptables"); err == nil {
				for _, table := range []string{"filter", "nat", "mangle"} {
					b.hostRun("iptables", "-t", table, "-F")
				}
				b.hostRun("iptables", "-P", "FORWARD", "DROP")
			}
			s.want("tcp ok.test:5432", "ok")
			s.want("tcp 203.0.113.130:5432", "ok")
			s.want("tcp 203.0.113.131:5432", "refused")
			s.want("udp 8.8.8.8:53", "refused")
			s.want("tcp denied.test:80", "nxdomain")
		}
		set, err := b.engine("net", "set", s.id) // ends what is held, which was never broken before
		if err != nil {
			t.Fatal(set)
		}
		f, _ := s.next()
		if f.Probe != "hold ok.test:5432" {
			t.Errorf("%v, want the connection that was held", f)
		}
		s.end()
		b.world.noLeaks(func(p packet) bool {
			return p.proto == "tcp" && p.port == 5432 && slices.Contains([]string{"203.0.113.10", "203.0.113.130"}, p.dst.String())
		})
	})
}

// monitor is the process that watches over a run.
func (s *session) monitor() int {
	s.t.Helper()
	pid := testenv.MonitorOf(s.t, s.id)
	if pid == 0 {
		s.t.Fatalf("run %s has no monitor", s.id)
	}
	return pid
}

// TestMonitorIsKilled proves that less passes without a monitor, never more.
func TestMonitorIsKilled(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		b := newBed(t)
		s := b.start(runtime, "--network", "internet")
		s.ready()
		s.tell("hold 8.8.8.8:5432")
		s.next()
		monitor := s.monitor()
		b.world.settle()
		if err := unix.Kill(monitor, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testenv.WaitFor(t, 10*time.Second, "the monitor to be gone", func() bool { return !isAlive(monitor) })
		b.world.settle()
		before := len(b.world.sniffer.seen())
		fmt.Fprintln(s.stdin, "tcp 1.1.1.1:443\ntcp 223.255.255.1:80\nudp 1.1.1.1:53") // if anybody still listens
		r := s.end()
		if r.Reason == nil || *r.Reason != engine.ReasonLost {
			t.Errorf("the run ended by %s", why(r))
		}
		b.world.settle()
		if after := b.world.sniffer.seen(); len(after) != before {
			t.Errorf("after its monitor's end the run sent to new places: %v", after)
		}
	})
}

// isAlive reports whether a process runs; one that is dead and not collected does not.
func isAlive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}
