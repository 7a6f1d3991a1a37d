package engine

import (
	"context"
	"errors"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine/initwire"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/engine/ociruntime"
	"github.com/direct-oci/engine/oci"
	"github.com/direct-oci/engine/rootfs"
)

const (
	startBound = 90 * time.Second // from the request to a sandbox that is ready; gVisor on a slow host needs some
	initGrace  = 10 * time.Second // engine-init's own deadline comes this much after the monitor's
	emptyBound = 10 * time.Second // from the kill to the last process gone
	drainBound = 250 * time.Millisecond
	abortBound = time.Second // from the kill of a runtime's processes to its return
)

// sandbox is one run in the hands of its monitor. One goroutine owns it, the one
// that called run; others get what they need by value or channel.
type sandbox struct {
	hello
	record *journal.Run
	linked func(ociruntime.Info) ociruntime.Runtime
	clock  clock
	stdio  [3]int // the caller's streams
	// callerGone is closed when the caller is.
	callerGone <-chan struct{}

	runtime ociruntime.Runtime
	image   imageRoot
	ids     idBlock
	group   cgroups.Group
	network network
	binds   []rootfs.Bind // below /proc
	etc     []string      // files of the run's own in place of the layer's
	mounts  []oci.Mount   // of the host
	output  *journal.OutputWriter
	outputs *outputs
	guest   *initConn
	server  *server // of a session, once it is ready
	sending bool    // the streams are in the hands of send
	cutOff  bool    // output was not read to its end
	notes   notes

	end ending
}

// ending is how the program ended, as far as it is known.
type ending struct {
	reason   Reason // "": it never started
	code     int
	signal   string
	err      *Error
	ready    int64         // bootNow of the sandbox being ready, 0: it never was
	started  int64         // bootNow of the program's start, 0: it never did
	stopped  int64         // bootNow of its end, or of the decision to end it
	duration time.Duration // by engine-init's clock, 0: unknown
}

func (sb *sandbox) dir(elem ...string) string {
	return filepath.Join(append([]string{sb.Host.runDir(sb.Request.ID)}, elem...)...)
}

// create builds the sandbox up to a PID 1 that is ready for its program. What it
// leaves behind when it fails is torn down with everything else.
func (sb *sandbox) create(ctx context.Context, cancel func()) error {
	if err := sb.openControl(cancel); err != nil {
		return err
	}
	if err := sb.choose(); err != nil {
		return err
	}
	if err := sb.isolate(); err != nil {
		return err
	}
	stop := sb.warm()
	defer stop()
	if err := sb.parts(); err != nil {
		return err
	}
	if err := sb.mountPoints(); err != nil {
		return err
	}
	return sb.launch(ctx)
}

// choose takes what the run needs and others may be using: the image, the uid block.
func (sb *sandbox) choose() (err error) {
	defer sb.clock.phase("choose")()
	if sb.runtime, err = openRuntime(sb.Plan.Runtime, sb.linked); err != nil {
		return Failed("bad_runtime", "%w", err)
	}
	if sb.image, err = openRoot(sb.Host, sb.Request); err != nil {
		return err
	}
	failpoint("before-uids")
	if sb.ids, err = takeIDBlock(sb.Host, sb.Request.ID); err != nil {
		return err
	}
	failpoint("after-uids")
	return nil
}

// isGVisor reports whether the program runs on gVisor's kernel and not on the host's.
func (sb *sandbox) isGVisor() bool { return sb.Plan.isGVisor() }

// controls reports whether the run's cgroup has all these controllers.
func (sb *sandbox) controls(controllers ...string) bool {
	return controls(sb.Hierarchy, controllers...)
}

// warm shortens the wait of runtimes that move their first process into a cgroup,
// which costs one RCU grace period: it pays for that period beside the other steps.
func (sb *sandbox) warm() (stop func()) {
	if !sb.Plan.migrates() {
		return func() {}
	}
	done := make(chan struct{})
	go sb.Hierarchy.Group(cgroups.Monitors).WarmMigration(done)
	return sync.OnceFunc(func() { close(done) })
}

// parts makes, side by side, what does not depend on each other.
func (sb *sandbox) parts() error {
	steps := []struct {
		name string
		do   func() error
	}{
		{"netns", sb.openNetwork},
		{"rootfs", sb.mountRoot},
		{"files", sb.writeFiles},
	}
	errs := make([]error, len(steps))
	var wg sync.WaitGroup
	for i, s := range steps {
		wg.Go(func() {
			defer sb.clock.phase(s.name)()
			errs[i] = s.do()
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		var refused *Error
		if errors.As(err, &refused) && refused.Class == ClassRequest {
			return refused
		}
		return Failed("no_sandbox", "cannot build the sandbox of run=%s: %w", sb.Request.ID, err)
	}
	return nil
}

func (sb *sandbox) mountRoot() error {
	layer, err := rootfs.EnsureLayer(sb.Host.RunDir, sb.Host.programs())
	if err != nil {
		return err
	}
	root := sb.dir("rootfs")
	if err := os.Mkdir(root, 0o711); err != nil {
		return err
	}
	if err := rootfs.Mount(layer, sb.image.lowers, root); err != nil {
		return err
	}
	return sb.mountHost(layer, root)
}

// mountPoints refuses mounts of the request in places that the root does not have: no
// runtime can make a directory in it.
func (sb *sandbox) mountPoints() error {
	if len(sb.Request.Tmpfs) == 0 {
		return nil
	}
	root, err := os.OpenRoot(sb.dir("rootfs"))
	if err != nil {
		return Failed("no_sandbox", "cannot look into the root of run=%s: %w", sb.Request.ID, err)
	}
	defer root.Close()
	for _, t := range sb.Request.Tmpfs {
		info, err := root.Stat(strings.TrimPrefix(path.Clean(t.Path), "/"))
		if err != nil || !info.IsDir() {
			return Refused("bad_mount", "cannot mount tmpfs=%q: the root has no such directory", t.Path).
				WithFix("make the directory in the root file system, or remove the mount")
		}
	}
	return nil
}

// writeFiles makes the run's own small files and directories, and its pipes.
func (sb *sandbox) writeFiles() (err error) {
	for dir, mode := range map[string]os.FileMode{"proc": 0o711, "bundle": 0o700, "runtime": 0o700} {
		if err := os.Mkdir(sb.dir(dir), mode); err != nil {
			return err
		}
	}
	if sb.binds, err = rootfs.ProcFiles(sb.dir("proc"), sb.Plan.CPUs, sb.Request.Limits.Memory); err != nil {
		return err
	}
	if err := sb.record.Reserve(); err != nil {
		return err
	}
	if err := sb.resolverFiles(); err != nil {
		return err
	}
	if sb.Request.Session != nil {
		return nil // its programs have their own
	}
	if sb.output, err = journal.CreateOutput(sb.record.OutputPath(), sb.Request.Limits.OutputKept); err != nil {
		return err
	}
	sb.outputs, err = newOutputs(sb.output, sb.Request.Limits.OutputMax, sb.stdio[1], sb.stdio[2], sb.callerGone)
	return err
}

// launch renders the bundle, starts it and waits for engine-init to be ready. The
// job is sent at the same time: it waits in the socket.
func (sb *sandbox) launch(ctx context.Context) error {
	name := sb.runtime.Info().Name
	spec, err := oci.Render(name, sb.intent())
	if err != nil {
		return Failed("no_bundle", "cannot render the bundle of run=%s: %w", sb.Request.ID, err)
	}
	if name != "embedded" && name != "direct" {
		if err := oci.WriteBundle(sb.dir("bundle"), spec); err != nil {
			return Failed("no_bundle", "%w", err)
		}
	}
	conn, theirs, err := initwire.Pair()
	if err != nil {
		return Failed("no_descriptors", "%w", err)
	}
	sb.guest = newInitConn(conn)
	if err := sb.sendFirst(conn); err != nil {
		theirs.Close()
		return err
	}
	failpoint("after-job-sent")
	if err := sb.start(ctx, spec, theirs); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return Failed("no_start", "%w", err)
	}
	defer sb.clock.phase("ready")()
	select {
	case f, ok := <-sb.guest.frames:
		if !ok || f.Type != initwire.Ready {
			return Failed("no_start", "cannot start run=%s: engine-init ended before it was ready", sb.Request.ID)
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	sb.end.ready = bootNow()
	sb.notes.write(journal.Created, map[string]string{"runtime": name})
	return nil
}

// sendFirst has the job, or the session, sent beside all else.
func (sb *sandbox) sendFirst(conn *net.UnixConn) error {
	if sb.Request.Session != nil {
		go func() { sb.sent(conn, initwire.SendSession(conn, sb.shared())) }()
		return nil
	}
	stdin, err := feed(sb.stdio[0])
	if err != nil {
		return err
	}
	sb.sending = true
	go sb.send(conn, stdin)
	return nil
}

// start lets the runtime make the container. It closes the guest's end of the socket,
// which the container then holds alone.
func (sb *sandbox) start(ctx context.Context, spec *specs.Spec, theirs *os.File) error {
	defer sb.clock.phase("runtime")()
	defer theirs.Close()
	c := ociruntime.Container{
		ID: sb.Request.ID, Bundle: sb.dir("bundle"), Spec: spec, StateDir: sb.dir("runtime"), Guest: theirs,
		Network: sb.network.gateway != nil,
	}
	if sb.isGVisor() && !sb.controls("cpu", "cpuset", "io", "memory", "pids") {
		group, _, err := sb.Hierarchy.Create(runGroup(sb.Request.ID)+"/ctr", cgroups.Limits{})
		if err != nil {
			return err
		}
		if c.Cgroup, err = group.Open(); err != nil {
			return err
		}
		defer c.Cgroup.Close()
	}
	return sb.bounded(ctx, c)
}

// bounded is the runtime's Start, which ends when ctx does, whatever the runtime waits
// for: the embedded one waits for its child, which may be waiting for it, and does not
// know of ctx.
func (sb *sandbox) bounded(ctx context.Context, c ociruntime.Container) error {
	started := make(chan error, 1)
	go func() { started <- sb.runtime.Start(ctx, c) }()
	select {
	case err := <-started:
		return err
	case <-ctx.Done():
	}
	sb.group.Kill() // once more at the end, where it is waited for
	killChildren()
	select {
	case err := <-started:
		return err
	case <-time.After(abortBound):
		return ctx.Err() // it ends with this process
	}
}

// send gives engine-init the job together with the far ends of the program's
// streams, of which this process then keeps none.
func (sb *sandbox) send(conn *net.UnixConn, stdin *os.File) {
	err := initwire.Send(conn, sb.job(), stdin, sb.outputs.pumps[0].write, sb.outputs.pumps[1].write)
	stdin.Close()
	sb.outputs.closeWriters()
	sb.outputs.start()
	sb.sent(conn, err)
}

// sent is called when the first message has left, or did not: an engine-init that it did
// not reach is told that nothing more comes, and ends; what it has said is still read.
func (sb *sandbox) sent(conn *net.UnixConn, err error) {
	if err != nil {
		sb.guest.undelivered <- err
		conn.CloseWrite() // fails for one that is gone
	}
	for _, s := range sb.Secrets {
		clear(s.Value)
	}
	sb.FileData = nil
}

// initConn is engine-init, at the other end of its socket.
type initConn struct {
	conn   *net.UnixConn
	frames chan initwire.Frame // closed when the sandbox is gone
	// undelivered holds why the job did not reach it.
	undelivered chan error
}

func newInitConn(conn *net.UnixConn) *initConn {
	g := &initConn{conn: conn, frames: make(chan initwire.Frame, 8), undelivered: make(chan error, 1)}
	go func() {
		defer close(g.frames)
		for {
			f, err := initwire.ReadFrame(conn)
			if err != nil {
				return // gone, or not engine-init any more: either way it is to be killed
			}
			g.frames <- f
		}
	}()
	return g
}
