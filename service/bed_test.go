package service

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/integration/testenv"
	"github.com/direct-oci/engine/service/admission"
)

// scope names what is to be run outside of the test machine.
const scope = "ENGINE_SESSIONS"

// onRuntimes runs f on the real engine: elsewhere than in the test machine under all
// runtimes that run beside cgroup v1 too, and there under a sample, since integration/sessions
// takes all.
func onRuntimes(t *testing.T, f func(t *testing.T, b *bed)) {
	t.Helper()
	if !testenv.InVM() && os.Getenv(testenv.HostMarker) != "1" && os.Getenv(scope) == "" {
		t.Skip("starts sandboxes, as root: run it with make test-sessions, or make test-vm")
	}
	testenv.RequireRoot(t)
	runtimes := testenv.Runtimes()
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		runtimes = slices.DeleteFunc(runtimes, func(r string) bool { return r == "crun" })
	}
	if testenv.InVM() {
		runtimes = []string{"embedded", "crun", "runsc"}
	}
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) { f(t, newBed(t, runtime)) })
	}
}

// real is where an engine works, for this process and for those it starts.
type real struct {
	Host    engine.Host
	Version string
	Runtime string
	Rootfs  string
}

// bed is the real engine, in directories and a cgroup of its own.
type bed struct {
	t      *testing.T
	dir    string
	groups cgroups.Hierarchy
	real
	config Config
}

func newBed(t *testing.T, runtime string) *bed {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandboxes-")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, dir: dir}
	if b.groups, err = cgroups.Open(filepath.Base(dir)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.remove)
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	testenv.InstallBeside(t, runtime)
	b.real = real{
		Host: engine.Host{
			StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), CgroupRoot: b.groups.Root,
			Monitor: testenv.Binary(t, "engine-monitor"), Init: testenv.Binary(t, "engine-init"), Guest: testenv.Binary(t, "engine-guest"),
			MinFreeDisk: -1, MinFreeMemory: -1,
		},
		Version: testenv.Version(t), Runtime: runtime, Rootfs: testenv.BusyboxRoot(t),
	}
	b.config = b.real.config()
	engine.Version = b.Version
	return b
}

func (r real) config() Config {
	return Config{
		StateDir: r.Host.StateDir, Runtime: r.Runtime, BestEffortLimits: true,
		Admission: admission.Config{Total: admission.Limits{Sandboxes: 1000}},
	}
}

// remove ends whatever a test has left, which should be nothing but what it meant to.
func (b *bed) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*testenv.Patience)
	defer cancel()
	records, err := b.Host.List()
	if err != nil {
		b.t.Error(err)
	}
	for _, r := range records {
		if r.Alive {
			if err := b.Host.Kill(ctx, r.ID); err != nil && !isKind(err, "not_running") {
				b.t.Error(err)
			}
		}
	}
	testenv.WaitFor(b.t, testenv.Patience, "the runs to be cleaned up", func() bool {
		records, err := b.Host.List()
		return err == nil && !slices.ContainsFunc(records, func(r engine.Record) bool { return r.Alive })
	})
	if _, err := b.Host.GC(ctx, false); err != nil {
		b.t.Error(err)
	}
	for _, left := range []string{filepath.Join(b.groups.Root, "run", "*"), filepath.Join(b.Host.RunDir, "*")} {
		found, _ := filepath.Glob(left)
		for _, path := range found {
			if journal.ValidID(filepath.Base(path)) {
				b.t.Errorf("%s is left", path)
			}
		}
	}
	if err := errors.Join(b.groups.Group("").WaitEmpty(ctx), b.groups.Group("").Remove(), os.RemoveAll(b.dir)); err != nil {
		b.t.Errorf("cannot remove the bed: %v", err)
	}
}

func (b *bed) manager() *Manager {
	b.t.Helper()
	m, err := New(b.config, OnHost(b.Host))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(m.Close)
	return m
}

// spec is a small sandbox of the bed's root.
func (r real) spec(name, owner string) Spec {
	return Spec{Name: name, Owner: owner, Rootfs: r.Rootfs, CPUs: 1, MemoryMB: 128, TTL: 10 * time.Minute}
}

// living are the runs that are alive.
func (b *bed) living() []string {
	b.t.Helper()
	records, err := b.Host.List()
	if err != nil {
		b.t.Fatal(err)
	}
	var ids []string
	for _, r := range records {
		if r.Alive && r.Result == nil {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// wantNoRecords fails the test unless no run and no sandbox is on record.
func (b *bed) wantNoRecords(m *Manager) {
	b.t.Helper()
	records, err := b.Host.List()
	if err != nil || len(records) > 0 {
		b.t.Errorf("runs on record: %+v (%v)", records, err)
	}
	if list, err := m.List(b.t.Context(), Filter{}); err != nil || len(list) > 0 {
		b.t.Errorf("sandboxes on record: %+v (%v)", list, err)
	}
	if s := m.Gate().Snapshot(); s.Used != (admission.Limits{}) {
		b.t.Errorf("still held: %+v", s)
	}
}

// shell runs a script in a sandbox to its end, and returns its output in one order.
func shell(t *testing.T, m *Manager, name, script string) string {
	t.Helper()
	c, err := m.Exec(t.Context(), name, engine.Exec{Command: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	text, _ := readAll(t, m, name, c.ID(), "")
	return text
}
