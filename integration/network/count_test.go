package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/integration/testenv"
)

// placeWith is the namespace of a run that has a certain link, found as whoever looks at
// the monitor would find it: by its descriptors.
func (s *session) placeWith(t *testing.T, link string) *place {
	t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.monitor()))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range fds {
		if to, err := os.Readlink(path); err != nil || !strings.Contains(to, "ns/net") && !strings.HasPrefix(to, "net:[") {
			continue
		}
		ns, err := os.Open(path)
		if err != nil {
			continue
		}
		p := &place{ns, make(chan func())}
		ready := make(chan error)
		go p.serve(ready, func() error { return hasLink(link) })
		if <-ready == nil {
			return p
		}
		p.leave()
	}
	t.Fatalf("the monitor of run %s holds no namespace with %s: %q", s.id, link, fds)
	return nil
}

// leave ends a place's thread and gives its namespace back.
func (p *place) leave() {
	close(p.calls)
	p.ns.Close()
}

func hasLink(name string) error {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	req, err := unix.NewIfreq(name)
	return errors.Join(err, unix.IoctlIfreq(sock, unix.SIOCGIFFLAGS, req))
}

// near reports whether two counts differ by one in a hundred at most.
func near(got int64, want uint64) bool {
	return 100*max(got-int64(want), int64(want)-got) <= int64(want)
}

// TestBytesAreCounted compares the result's bytes with a capture at the gateway, for a
// run that ends, one that is killed, and one whose monitor is.
func TestBytesAreCounted(t *testing.T) {
	size := 32 << 20
	if testenv.InVM() {
		size = 4 << 20
	}
	ends := []struct {
		name string
		end  func(s *session) engine.Result
		want engine.Reason
	}{
		{"ends", (*session).end, engine.ReasonExited},
		{"is killed", func(s *session) engine.Result {
			if out, err := s.engine("kill", s.id); err != nil {
				s.t.Errorf("engine kill: %v\n%s", err, out)
			}
			return s.over()
		}, engine.ReasonCancelled},
		{"loses its monitor", func(s *session) engine.Result {
			noted := s.path("run", s.id, "traffic.json")
			changed := func() time.Time {
				info, err := os.Stat(noted)
				if err != nil {
					return time.Time{}
				}
				return info.ModTime()
			}
			before := changed()
			testenv.WaitFor(s.t, testenv.Patience, "the bytes to be noted twice", func() bool { return changed().After(before.Add(time.Second)) })
			if err := unix.Kill(s.monitor(), unix.SIGKILL); err != nil {
				s.t.Error(err)
			}
			return s.over()
		}, engine.ReasonLost},
	}
	someRuntimes(t, func(t *testing.T, runtime string) {
		for _, e := range ends {
			if testenv.InVM() && !everything() && e.want == engine.ReasonExited {
				continue // shown by the ones that are killed
			}
			t.Run("a run that "+e.name, func(t *testing.T) {
				b := newBed(t)
				s := b.start(runtime, "--allow", fmt.Sprintf("ok.test:%d", sinkPort), "--allow-cidr", fmt.Sprintf("203.0.113.130/32:%d", sourcePort))
				s.ready()
				gateway := s.placeWith(t, "gw0")
				capture := newSniffer(t, gateway, "gw0")
				gateway.leave()
				s.want(fmt.Sprintf("upload ok.test:%d %d", sinkPort, size), "ok")
				s.want(fmt.Sprintf("download 203.0.113.130:%d %d", sourcePort, size), "ok")
				tx, rx := capture.bytes()
				capture.close(t) // it would keep the namespace
				r := e.end(s)
				if r.Reason == nil || *r.Reason != e.want {
					t.Fatalf("want reason %s: %s", e.want, why(r))
				}
				if r.Actuals.RxBytes == nil || r.Actuals.TxBytes == nil {
					t.Fatalf("the bytes are unknown: %s", why(r))
				}
				t.Logf("received %d, captured %d; sent %d, captured %d", *r.Actuals.RxBytes, rx, *r.Actuals.TxBytes, tx)
				if !near(*r.Actuals.RxBytes, rx) || !near(*r.Actuals.TxBytes, tx) || rx < uint64(size) || tx < uint64(size) {
					t.Errorf("rxBytes = %d and %d were captured, txBytes = %d and %d", *r.Actuals.RxBytes, rx, *r.Actuals.TxBytes, tx)
				}
				if e.want == engine.ReasonLost {
					return // nobody is left who knows the destinations
				}
				up, _ := allowedOf(r, "ok.test", sinkPort)
				down, _ := allowedOf(r, "203.0.113.130", sourcePort)
				if asked := int64(len(fmt.Sprintf("%d\n", size))); up.TxBytes != int64(size)+asked || up.RxBytes != 1 || down.RxBytes != int64(size) || down.TxBytes != asked {
					t.Errorf("by destination: %+v and %+v, want %d bytes each", up, down, size)
				}
			})
		}
	})
}
