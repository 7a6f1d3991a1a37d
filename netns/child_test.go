package netns

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// childEnv makes the test binary a child of a test: its value is one of children.
const childEnv = "NETNS_TEST_CHILD"

var children = map[string]func() error{
	"holder": holdGateways,
	"host":   playHost,
	"probe":  probe,
}

func TestMain(m *testing.M) {
	child, ok := children[os.Getenv(childEnv)]
	if !ok {
		os.Exit(m.Run())
	}
	if err := child(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func childCommand(name string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	return cmd
}

// holdGateways makes gateways with listeners, says by which descriptors it holds them,
// and waits.
func holdGateways() error {
	for range 3 {
		g, err := NewGateway(GatewayConfig{Policy: mixed})
		if err != nil {
			return err
		}
		if _, err := g.Listen("tcp", "0.0.0.0:1"); err != nil {
			return err
		}
		fmt.Println(g.sandbox.Fd())
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// TestKillLeavesNothing kills the process of three gateways. This one holds a
// sandbox's namespace, as a sandbox that lives on would: its link must go.
func TestKillLeavesNothing(t *testing.T) {
	requireRoot(t)
	cmd := childCommand("holder")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var sandboxes []*os.File
	for lines := bufio.NewScanner(stdout); lines.Scan() && lines.Text() != "ready"; {
		f, err := os.Open(fmt.Sprintf("/proc/%d/fd/%s", cmd.Process.Pid, lines.Text()))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		sandboxes = append(sandboxes, f)
	}
	if len(sandboxes) != 3 {
		t.Errorf("the child made %d gateways, want 3", len(sandboxes))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	for _, f := range sandboxes {
		waitNoLink(t, f)
		inside(t, f, func() error {
			_, err := talkHere("tcp", "198.18.0.7:443")
			if !errors.Is(err, unix.ENETUNREACH) {
				return fmt.Errorf("dialled with no gateway: %v, want unreachable", err)
			}
			return nil
		})
	}
}

// TestRulesOfTheHostDoNotMatter has a child in a namespace that plays the host.
func TestRulesOfTheHostDoNotMatter(t *testing.T) {
	requireRoot(t)
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	cmd := childCommand("host")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// playHost flushes, and then closes, all of its namespace's rules while a connection
// of a sandbox goes on and others are refused.
func playHost() error {
	g, err := NewGateway(GatewayConfig{Policy: mixed})
	if err != nil {
		return err
	}
	defer g.Close()
	l, err := g.Listen("tcp", "0.0.0.0:1")
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go io.Copy(c, c)
		}
	}()
	var stop atomic.Bool
	done := make(chan error)
	go func() {
		done <- within(int(g.sandbox.Fd()), func() error {
			c, err := net.DialTimeout("tcp", "198.18.0.7:443", patience)
			if err != nil {
				return err
			}
			defer c.Close()
			for n := 0; !stop.Load() || n < 100; n++ {
				if _, err := fmt.Fprint(c, "x"); err != nil {
					return err
				}
				if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
					return err
				}
				if _, err := talkHere("tcp", "9.9.9.9:80"); !errors.Is(err, unix.ECONNREFUSED) {
					return fmt.Errorf("what is not allowed: %v, want refused", err)
				}
			}
			return nil
		})
	}()
	const closed = `table inet theirs {
		chain a { type filter hook input priority -400; policy drop; }
		chain b { type filter hook forward priority -400; policy drop; }
		chain c { type filter hook output priority -400; policy drop; }
		chain d { type filter hook prerouting priority -400; policy drop; }
	}`
	for _, rules := range []string{"flush ruleset", closed, "flush ruleset"} {
		nft := exec.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader(rules)
		if out, err := nft.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
	}
	stop.Store(true)
	return <-done
}
