package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/engine/ociruntime"
	"github.com/direct-oci/engine/rootfs"
)

// Monitor is the whole of engine-monitor: it takes over the run that a caller hands
// it on inherited descriptors, sees it to its end and cleans up. The return value is
// the exit status: 0 when the result is on record, whatever it says. linked opens the
// runtimes that are a part of the program, and returns nil for every other.
func Monitor(linked func(ociruntime.Info) ociruntime.Runtime) int {
	if err := monitor(linked); err != nil {
		fmt.Fprintln(os.Stderr, "engine-monitor:", err)
		return 1
	}
	return 0
}

func monitor(linked func(ociruntime.Info) ociruntime.Runtime) error {
	// A caller that hangs up, or a terminal that goes away, does not end a run.
	// No core of this process, no debugger and no look into its memory: it sees secrets.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot shield this process: %w", err)
	}
	unix.Umask(0) // what is made here has the mode that is written here, whoever the caller is
	signal.Ignore(unix.SIGPIPE, unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
	control := os.NewFile(controlFD, "control")
	conn, err := net.FileConn(control)
	control.Close()
	if err != nil {
		return fmt.Errorf("cannot use the control socket, so this program was not started by engine: %w", err)
	}
	defer conn.Close()
	decoder := json.NewDecoder(conn)
	var h hello
	if err := decoder.Decode(&h); err != nil {
		if errors.Is(err, io.EOF) {
			return nil // the caller thought better of it
		}
		return fmt.Errorf("cannot read the request: %w", err)
	}
	record, err := journal.Adopt(h.Host.StateDir, h.Request.ID, os.NewFile(lockFD, "lock"))
	if err != nil {
		return err
	}
	defer record.Close()
	if h.Version != Version {
		return h.refuse(record, conn)
	}
	sb := &sandbox{
		hello: h, record: record, linked: linked, notes: newNotes(record),
		clock: clock{start: h.StartedAt, list: h.Plan.Phases},
		group: h.Hierarchy.Group(runGroup(h.Request.ID)),
	}
	failpointGroup(sb.group.Dir)
	if err := sb.takeStdio(); err != nil {
		return err
	}
	sb.clock.add("monitor", h.StartedAt, bootNow())
	c := newCaller(conn, decoder)
	sb.callerGone = c.gone
	return sb.run(context.Background(), c)
}

// refuse tells the caller, and whoever else asks for the run, that the two are of different
// versions, as they are for a moment while the programs are replaced.
func (h hello) refuse(record *journal.Run, conn net.Conn) error {
	refusal := Failed("version_mismatch", "cannot run: engine is version %s and engine-monitor is %s", h.Version, Version).
		WithFix("install the engine's programs together")
	result := newResult(h.Request)
	result.setReason(ReasonInternal)
	result.Error = refusal
	return errors.Join(refusal, record.Write(journal.Exit, result, true), json.NewEncoder(conn).Encode(message{Done: true, Error: refusal}))
}

// takeStdio moves the caller's streams away from 0, 1 and 2, so that nothing this
// process starts, and no stray message, ever meets them.
func (sb *sandbox) takeStdio() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("cannot open %s: %w", os.DevNull, err)
	}
	defer null.Close()
	for fd := range sb.stdio {
		if sb.stdio[fd], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 10); err != nil {
			return fmt.Errorf("cannot keep descriptor %d: %w", fd, err)
		}
		if err := unix.Dup2(int(null.Fd()), fd); err != nil {
			return fmt.Errorf("cannot replace descriptor %d: %w", fd, err)
		}
	}
	return nil
}

// closeStdio gives the caller's streams back: whoever reads them sees their end now,
// and not after teardown.
func (sb *sandbox) closeStdio() {
	for _, fd := range sb.stdio {
		unix.Close(fd)
	}
}

// caller is the other end of the control socket.
type caller struct {
	conn      net.Conn
	gone      chan struct{} // closed when the caller is
	cancelled chan struct{} // closed when the run is to end
	once      sync.Once
}

func newCaller(conn net.Conn, decoder *json.Decoder) *caller {
	c := &caller{conn: conn, gone: make(chan struct{}), cancelled: make(chan struct{})}
	go func() {
		defer close(c.gone)
		for {
			var m message
			if err := decoder.Decode(&m); err != nil {
				return
			}
			if m.Cancel {
				c.cancel()
			}
		}
	}()
	return c
}

func (c *caller) cancel() { c.once.Do(func() { close(c.cancelled) }) }

// tell says that the result is there, or why it is not. A caller that is gone does
// not hear it.
func (c *caller) tell(err *Error) { json.NewEncoder(c.conn).Encode(message{Done: true, Error: err}) }

const controlFifo = "control"

// openControl makes the run's directory and in it the fifo through which any process
// of root's can cancel the run.
func (sb *sandbox) openControl(cancel func()) error {
	defer sb.clock.phase("directory")()
	dir := sb.dir()
	if err := os.Mkdir(dir, 0o711); err != nil {
		return Failed("no_directory", "cannot make directory=%s: %w", dir, err)
	}
	failpoint("unmarked-directory")
	if err := os.Symlink(lockPath(sb.record), filepath.Join(dir, lockLink)); err != nil {
		return Failed("no_directory", "cannot mark directory=%s: %w", dir, err)
	}
	path := filepath.Join(dir, controlFifo)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return Failed("no_directory", "cannot make fifo=%s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0) // reading and writing: no writer's end ends it
	if err != nil {
		return Failed("no_directory", "cannot open fifo=%s: %w", path, err)
	}
	go sb.obey(f, cancel)
	return nil
}

// obey does what comes through the fifo, a word or two on each line. A run that cannot be
// told anything any more ends: nobody could end it otherwise.
func (sb *sandbox) obey(f *os.File, cancel func()) {
	defer cancel()
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		switch word, arg, _ := strings.Cut(lines.Text(), " "); word {
		case "cancel":
			cancel()
		case "egress":
			sb.changeEgress(arg)
		}
	}
}

// isolate makes this process's mount namespace its own and puts the cgroup2 tree
// where runtimes look for it.
func (sb *sandbox) isolate() error {
	defer sb.clock.phase("isolate")()
	if err := rootfs.PrivateMounts(); err != nil {
		return Failed("no_mounts", "%w", err)
	}
	const usual = "/sys/fs/cgroup"
	if sb.Hierarchy.Mount == usual {
		return nil
	}
	if err := unix.Mount(sb.Hierarchy.Mount, usual, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return Failed("no_mounts", "cannot bind %s over %s: %w", sb.Hierarchy.Mount, usual, err)
	}
	// What lay there, often the old mount itself, is covered now.
	sb.Hierarchy.Root = usual + strings.TrimPrefix(sb.Hierarchy.Root, sb.Hierarchy.Mount)
	sb.Hierarchy.Mount = usual
	sb.group = sb.Hierarchy.Group(runGroup(sb.Request.ID))
	return nil
}

// killAgain is when a run that was told to end and has not is told again.
const killAgain = 200 * time.Millisecond

// Kill ends a run with reason cancelled and returns when its result is on record,
// or ctx has ended. It returns an *Error of kind not_found, or of kind not_running
// when the run has ended already.
func (h Host) Kill(ctx context.Context, id string) error {
	h = h.withDirs()
	rec, err := h.Load(id)
	if err != nil {
		return err
	}
	if !rec.Alive {
		if rec.Result == nil {
			return h.gcOne(ctx, rec.ID) // nobody watches it: this ends it
		}
		return Refused("not_running", "cannot kill run=%s: it has ended (%s)", rec.ID, rec.reason())
	}
	for {
		if err := h.reach(rec.ID, "cancel"); err != nil {
			return Failed("no_monitor", "cannot reach the monitor of run=%s: %w", rec.ID, err)
		}
		// A monitor that has only just begun has no fifo yet, and is told again.
		try, cancel := context.WithTimeout(ctx, killAgain)
		err := h.awaitResult(try, rec.ID)
		over := try.Err() == nil || ctx.Err() != nil
		cancel()
		if err == nil || over {
			return err
		}
	}
}

// reach sends one line to the monitor of the run. A monitor that is gone, or that has
// nothing to do any more, is no error.
func (h Host) reach(id, line string) error {
	fifo, err := os.OpenFile(filepath.Join(h.runDir(id), controlFifo), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENXIO) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = fifo.WriteString(line + "\n")
	return errors.Join(err, fifo.Close())
}
