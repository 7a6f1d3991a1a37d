package netns

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func requireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func newNS(t testing.TB) *os.File {
	t.Helper()
	requireRoot(t)
	ns, err := New()
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// inside runs f on a thread in ns that is never used again.
func inside(t *testing.T, ns *os.File, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread() // the first thread cannot end
			inside(t, ns, f)
			done <- nil
			return
		}
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func inode(t testing.TB, path string) string {
	t.Helper()
	link, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func TestNamespaceHoldsOnlyLoopback(t *testing.T) {
	inside(t, newNS(t), func() error {
		links, err := net.Interfaces()
		if err != nil {
			return err
		}
		if len(links) != 1 || links[0].Name != "lo" || links[0].Flags&net.FlagUp == 0 {
			return fmt.Errorf("links = %v, want lo alone, up", links)
		}
		routes, err := os.ReadFile("/proc/thread-self/net/route")
		if err != nil {
			return err
		}
		if n := strings.Count(string(routes), "\n"); n > 1 {
			return fmt.Errorf("the main routing table is not empty:\n%s", routes)
		}
		return nil
	})
}

func TestLoopbackConnects(t *testing.T) {
	ns := newNS(t)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil && address[0] == '[' {
			continue
		}
		inside(t, ns, func() error {
			l, err := net.Listen("tcp", address)
			if err != nil {
				return err
			}
			defer l.Close()
			go func() {
				if c, err := l.Accept(); err == nil {
					c.Write([]byte("hello"))
					c.Close()
				}
			}()
			c, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
			if err != nil {
				return err
			}
			defer c.Close()
			got, err := io.ReadAll(c)
			if string(got) != "hello" {
				return fmt.Errorf("read %q over %s, want hello: %v", got, address, err)
			}
			return nil
		})
	}
}

func TestIsolatedFromTheHost(t *testing.T) {
	ns := newNS(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	abstract, err := net.Listen("unix", "@engine-netns-test")
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	inside(t, ns, func() error {
		for _, a := range []net.Addr{l.Addr(), abstract.Addr()} {
			if c, err := net.DialTimeout(a.Network(), a.String(), time.Second); err == nil {
				c.Close()
				return fmt.Errorf("connected to the host's %s %s", a.Network(), a)
			}
		}
		if c, err := net.DialTimeout("tcp", "192.0.2.1:80", time.Second); err == nil {
			c.Close()
			return fmt.Errorf("connected to 192.0.2.1")
		}
		return nil
	})
}

// TestNoPingSockets proves the default that New relies on and does not set: no
// group may open ICMP sockets.
func TestNoPingSockets(t *testing.T) {
	inside(t, newNS(t), func() error {
		// sysctls of the namespace are those of the thread that opens the file
		data, err := os.ReadFile("/proc/sys/net/ipv4/ping_group_range")
		if err != nil {
			return err
		}
		if got := strings.Fields(string(data)); len(got) != 2 || got[0] != "1" || got[1] != "0" {
			return fmt.Errorf("ping_group_range = %v, want [1 0]", got)
		}
		return nil
	})
}

// TestCloseDestroys proves that the descriptor is all that holds the namespace. A
// namespace that lives has its inode; the kernel gives it anew only afterwards, and
// no process of the host may still be in it.
func TestCloseDestroys(t *testing.T) {
	ns := newNS(t)
	own := inode(t, fmt.Sprintf("/proc/self/fd/%d", ns.Fd()))
	if own == inode(t, "/proc/self/ns/net") {
		t.Fatal("the new namespace is the host's")
	}
	holders := func() (n int) {
		for _, pattern := range []string{"/proc/[0-9]*/task/*/ns/net", "/proc/[0-9]*/fd/*"} {
			paths, _ := filepath.Glob(pattern)
			for _, path := range paths {
				if link, err := os.Readlink(path); err == nil && link == own {
					n++
				}
			}
		}
		return n
	}
	if got := holders(); got != 1 {
		t.Errorf("the namespace has %d holders while open, want the descriptor alone", got)
	}
	ns.Close()
	if got := holders(); got != 0 {
		t.Errorf("the namespace has %d holders after Close, want 0", got)
	}
}

// TestThreadsComeBack makes many namespaces at once, then finds every thread of
// the process in the host's.
func TestThreadsComeBack(t *testing.T) {
	requireRoot(t)
	const n = 200
	host := inode(t, "/proc/self/ns/net")
	spaces := make([]*os.File, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ns, err := New()
			if err != nil {
				t.Errorf("New: %v", err)
				return
			}
			spaces[i] = ns
			if got, err := os.Readlink("/proc/thread-self/ns/net"); got != host {
				t.Errorf("the caller's thread is in %s after New, want %s: %v", got, host, err)
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{host: true}
	for _, ns := range spaces {
		if ns == nil {
			continue
		}
		own := inode(t, fmt.Sprintf("/proc/self/fd/%d", ns.Fd()))
		if seen[own] {
			t.Errorf("namespace %s was given twice or is the host's", own)
		}
		seen[own] = true
		defer ns.Close()
	}
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(threads) == 0 {
		t.Fatalf("no threads found: %v", err)
	}
	for _, path := range threads {
		if got, err := os.Readlink(path); err == nil && got != host {
			t.Errorf("%s is in %s, want %s", path, got, host)
		}
	}
}

func BenchmarkNew(b *testing.B) {
	requireRoot(b)
	for b.Loop() {
		ns, err := New()
		if err != nil {
			b.Fatal(err)
		}
		ns.Close()
	}
}
