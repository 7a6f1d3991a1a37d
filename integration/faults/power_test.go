package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/integration/testenv"
	"github.com/direct-oci/engine/integration/vm"
)

// prepare makes a root for the sandboxes of the test machine.
const prepare = `mkdir -p /srv/root/bin && cp /usr/bin/busybox /srv/root/bin/ && ln -sf busybox /srv/root/bin/sh
`

// examine is what is done after a power cut: what is on record is printed as it was
// found, and again after gc, which has a bound.
const examine = `set -e
engine ps --json
for i in 1 2 3 4 5; do timeout 60 engine gc --json >/tmp/gc && break; done # on a slow machine it runs out of time
cat /tmp/gc
engine gc --json
engine ps --json
`

// load starts runs, several at a time, and tells of each one that ended, with the status
// that its caller saw.
const load = prepare + `
loop() {
	while :; do
		id=$(tr -dc a-z0-9 </dev/urandom | head -c 16)
		engine run --quiet --id $id --runtime embedded --memory 32MiB --rootfs /srv/root -- sh -c 'echo out; exit 7' >/dev/null
		echo "$id $?"
	done
}
loop & loop & loop & echo loaded; wait
`

var reported = regexp.MustCompile(`(?m)^([a-z0-9]{16}) ([0-9]+)\n`)

// TestPowerCut cuts the power of the test machine at random moments while it is under
// load, boots it again from the same disk, and examines what is on record.
func TestPowerCut(t *testing.T) {
	cuts := 2
	if scope(t) == "all" {
		cuts = 200
	}
	if n, err := strconv.Atoi(os.Getenv("ENGINE_POWER_CUTS")); err == nil {
		cuts = n
	}
	if testenv.InVM() {
		t.Skip("starts test machines itself: run it with make test-faults")
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	p := &power{t: t, rnd: rand.New(rand.NewPCG(seed, 0)), top: moduleRoot(t), image: filepath.Join(t.TempDir(), "state.ext4")}
	mkfs := exec.Command("mkfs.ext4", "-q", p.image, "256M")
	mkfs.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if out, err := mkfs.CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	for n := range cuts {
		p.cut()
		if t.Failed() {
			t.Fatalf("that was cut %d", n+1)
		}
		if (n+1)%20 == 0 {
			t.Logf("%d cuts, %d runs on record", n+1, p.total)
		}
	}
	p.check(p.boot())
	t.Logf("%d cuts, %d runs on record, %d of them reported before a cut, %d interrupted, %d records torn and told",
		cuts, p.total, p.told, p.interrupted, p.torn)
}

// power is a series of cuts with one disk.
type power struct {
	t     *testing.T
	rnd   *rand.Rand
	top   string // of the module
	image string
	seen  map[string]bool // runs whose callers reported their end before the last cut

	total, told, interrupted, torn int
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == "/" {
			break
		}
		dir = filepath.Dir(dir)
	}
	t.Fatalf("cannot find the module: %v", err)
	return ""
}

func (p *power) boot() *vm.Machine {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	p.t.Cleanup(cancel)
	m, err := vm.Boot(ctx, vm.Config{
		Cache: filepath.Join(p.top, "build/vm"), Guest: filepath.Join(p.top, "build/vm/guest"), Bin: filepath.Join(p.top, "bin"),
		Disks: []vm.Disk{{Image: p.image, Mount: testenv.StateDir, Keep: true}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

// cut boots, examines what the last cut has left, puts the machine under load, and
// cuts its power.
func (p *power) cut() {
	p.t.Helper()
	m := p.boot()
	defer m.Close()
	p.check(m)
	out := &watched{loaded: make(chan struct{})}
	var errs bytes.Buffer
	over := make(chan struct{})
	go func() {
		defer close(over)
		m.Run(vm.Job{Argv: vm.Shell(load), Stdout: out, Stderr: &errs}) // the cut ends it
	}()
	select {
	case <-out.loaded:
	case <-over:
		p.t.Fatalf("the load ended:\n%s", out)
	case <-time.After(testenv.Patience):
		p.t.Fatalf("the load does not begin:\n%s", out)
	}
	time.Sleep(time.Second + time.Duration(p.rnd.Int64N(int64(12*time.Second))))
	if err := m.Close(); err != nil {
		p.t.Fatal(err)
	}
	<-over
	p.seen = map[string]bool{}
	for _, match := range reported.FindAllStringSubmatch(out.String(), -1) {
		if match[2] != "7" {
			p.t.Errorf("run %s ended with status %s before the cut, want 7\n%s", match[1], match[2], errs.String())
		}
		p.seen[match[1]] = true
	}
	p.told += len(p.seen)
}

// check examines the records after a boot, and removes them.
func (p *power) check(m *vm.Machine) {
	p.t.Helper()
	defer func() {
		if p.t.Failed() {
			m.Close()
		}
	}()
	var out, errs bytes.Buffer
	status, err := m.Run(vm.Job{Argv: vm.Shell(examine), Stdout: &out, Stderr: &errs})
	if err != nil || status != 0 {
		p.t.Fatalf("after a cut: status %d, %v\n%s%s", status, err, out.String(), errs.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 {
		p.t.Fatalf("after a cut: %s", out.String())
	}
	if lines[2] != "[]" {
		p.t.Errorf("a second gc had something left to do: %s", lines[2])
	}
	var found, after []engine.Record
	for line, records := range map[string]*[]engine.Record{lines[0]: &found, lines[3]: &after} {
		if err := json.Unmarshal([]byte(line), records); err != nil {
			p.t.Fatal(err)
		}
	}
	if lines[0] == lines[3] {
		found = after
	}
	p.total += len(after)
	ids := []string{}
	success := map[string]bool{}
	for _, r := range found {
		p.torn += len(r.Problems)
		success[r.ID] = r.Result != nil
	}
	for _, r := range after {
		ids = append(ids, r.ID)
		if r.State != engine.Removed || r.Result == nil || r.Result.Reason == nil {
			p.t.Errorf("after gc run %s is %s with result %+v", r.ID, r.State, r.Result)
			continue
		}
		switch exited := *r.Result.Reason == engine.ReasonExited; {
		case exited && (!success[r.ID] || r.Result.ExitCode == nil || *r.Result.ExitCode != 7):
			p.t.Errorf("run %s is a success without an exit record: %+v", r.ID, r.Result)
		case !exited && *r.Result.Reason != engine.ReasonInterrupted:
			p.t.Errorf("run %s was cut off, and is %s", r.ID, *r.Result.Reason)
		case !exited && p.seen[r.ID]:
			p.t.Errorf("run %s had been reported as a success, and is %s", r.ID, *r.Result.Reason)
		case !exited:
			p.interrupted++
		}
		delete(p.seen, r.ID)
	}
	for id := range p.seen {
		p.t.Errorf("run %s had been reported as a success, and is not on record", id)
	}
	if len(ids) > 0 {
		command := "engine rm " + strings.Join(ids, " ") + " && sync"
		if status, err := m.Run(vm.Job{Argv: vm.Shell(command), Stderr: &errs}); err != nil || status != 0 {
			p.t.Fatalf("engine rm: status %d, %v\n%s", status, err, errs.String())
		}
	}
}

// watched is the output of the load.
type watched struct {
	mu     sync.Mutex
	buf    bytes.Buffer
	once   sync.Once
	loaded chan struct{} // closed when the load has begun
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.buf.Write(p)
	if bytes.Contains(w.buf.Bytes(), []byte("loaded\n")) {
		w.once.Do(func() { close(w.loaded) })
	}
	return n, err
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
