package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/engine/journal"
)

// Stdio is what the program's standard streams are joined to. A nil file is
// /dev/null. The files stay the caller's.
type Stdio struct {
	In, Out, Err *os.File
}

// hello is the first message on the control socket: all that a monitor knows.
type hello struct {
	Version   string            `json:"version"` // of the caller: the two are built together
	Host      Host              `json:"host"`
	Hierarchy cgroups.Hierarchy `json:"hierarchy"`
	Request   Request           `json:"request"`
	Secrets   []Secret          `json:"secrets"`
	FileData  [][]byte          `json:"fileData"` // of Request.Files, in this order
	Plan      plan              `json:"plan"`
	StartedAt int64             `json:"startedAt"`
}

// message is every later one, in both directions.
type message struct {
	Cancel bool `json:"cancel,omitempty"` // caller: end the run
	Done   bool `json:"done,omitempty"`   // monitor: the run has ended, and its output was passed on

	// Error, with Done, is why there is no result on record: nobody may take a run
	// for one that succeeded when nothing says so.
	Error *Error `json:"error,omitempty"`
}

// Descriptors a monitor inherits.
const (
	controlFD = 3
	lockFD    = 4
)

// Run is a run that this process started and follows. Its monitor lives on when
// this process dies.
type Run struct {
	host    Host
	id      string
	control *net.UnixConn // nil: another process started it
	ended   chan struct{} // closed when the monitor is gone and has been reaped
}

// Start starts one run and returns once its monitor has been told. Every error is an
// *Error; after one, no sandbox exists.
//
// It is idempotent for a request that names its id: the first caller starts the run,
// every other one, at the same time or later, follows that run. A request that
// differs from the one on record is refused.
//
// The monitor is started at once and the request is put on record while its program
// loads; it does nothing before it is told the request, which happens after that
// record has reached the disk.
func (h Host) Start(ctx context.Context, req Request, secrets []Secret, stdio Stdio) (*Run, error) {
	startedAt := bootNow()
	total := 0
	for _, s := range secrets {
		req.SecretNames = append(req.SecretNames, s.Name)
		if len(s.Value) > maxSecret {
			return nil, Refused("bad_secret", "cannot accept secret=%s: more than %d bytes", s.Name, maxSecret)
		}
		if total += len(s.Value); total > maxSecrets {
			return nil, Refused("bad_secret", "cannot accept secrets of more than %d bytes together", maxSecrets)
		}
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	if req.Session != nil && stdio != (Stdio{}) {
		return nil, Refused("bad_session", "cannot join streams to a session: it has no program of its own")
	}
	var fileData [][]byte
	req.Files, fileData = splitFiles(req.Files)
	if err := ctx.Err(); err != nil {
		return nil, Refused("cancelled", "cannot start a run: %w", err)
	}
	h, err := h.ready()
	if err != nil {
		return nil, err
	}
	if req, err = req.settle(h); err != nil {
		return nil, err
	}
	hierarchy, err := cgroups.Open(h.CgroupRoot)
	if err != nil {
		return nil, Failed("no_cgroup", "%w", err)
	}
	if req.ID == "" {
		req.ID = journal.NewID()
	}
	plan, err := makePlan(ctx, h, req)
	if err != nil {
		return nil, err
	}
	for {
		failpoint("before-reserve")
		record, err := journal.Create(h.StateDir, req.ID)
		if err == nil {
			failpoint("after-reserve")
			return h.begin(record, hello{Version, h, hierarchy, req, secrets, fileData, plan, startedAt}, stdio)
		}
		if !errors.Is(err, journal.ErrExists) {
			return nil, Failed("no_record", "%w", err)
		}
		r, err := h.join(ctx, req)
		if !errors.Is(err, errNeverBegun) {
			return r, err
		}
	}
}

// splitFiles returns the files as they go on record, and apart from them their bytes.
func splitFiles(files []File) ([]File, [][]byte) {
	files = slices.Clone(files)
	data := make([][]byte, len(files))
	for i := range files {
		f := &files[i]
		sum := sha256.Sum256(f.Data)
		f.Size, f.SHA256 = int64(len(f.Data)), hex.EncodeToString(sum[:])
		data[i], f.Data = f.Data, nil
	}
	return files, data
}

// begin starts the run whose record is new and held by this process.
func (h Host) begin(record *journal.Run, told hello, stdio Stdio) (*Run, error) {
	r := &Run{host: h, id: record.ID(), ended: make(chan struct{})}
	clock := clock{start: told.StartedAt}
	stop := clock.phase("cgroup")
	err := told.Plan.limit(told.Hierarchy, told.Request, record)
	stop()
	told.Plan.Phases = clock.phases()
	if err == nil {
		err = r.handOver(record, told, stdio)
	}
	if err != nil {
		err = errors.Join(err, told.Hierarchy.Group(runGroup(r.id)).Remove())
	}
	record.Close()
	if err != nil {
		return nil, AsError(errors.Join(err, journal.Remove(h.StateDir, r.id)))
	}
	return r, nil
}

// handOver gives the run to a monitor. After an error nothing has been started.
func (r *Run) handOver(record *journal.Run, h hello, stdio Stdio) error {
	failpoint("before-spawn")
	if err := r.spawn(h.Hierarchy, record.Lock(), stdio); err != nil {
		return err
	}
	if h.Plan.migrates() {
		go h.Hierarchy.StartMigration()
	}
	failpoint("before-intent")
	err := record.Write(journal.Intent, h.Request, true)
	failpoint("after-intent")
	if err == nil {
		err = json.NewEncoder(r.control).Encode(h)
	}
	failpoint("after-handover")
	if err != nil {
		r.control.Close() // a monitor that was told nothing ends
		<-r.ended
		return Failed("no_record", "cannot hand over run=%s: %w", r.id, err)
	}
	return nil
}

// spawn starts the monitor: a session, a mount namespace and a cgroup of its own, no
// environment, and the caller's standard streams.
func (r *Run) spawn(hierarchy cgroups.Hierarchy, lock *os.File, stdio Stdio) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Failed("no_descriptors", "cannot make a control socket: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "control")
	defer theirs.Close()
	ours := os.NewFile(uintptr(fds[0]), "control")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return Failed("no_descriptors", "cannot use the control socket: %w", err)
	}
	r.control = conn.(*net.UnixConn)
	cgroup, err := hierarchy.Group(cgroups.Monitors).Open()
	if err != nil {
		return Failed("no_cgroup", "%w", err)
	}
	defer cgroup.Close()
	cmd := &exec.Cmd{
		Path:       r.host.Monitor,
		Args:       []string{"engine-monitor", r.id},
		Env:        append(failpointEnv(), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOTRACEBACK=none"),
		Dir:        "/",
		ExtraFiles: []*os.File{theirs, lock},
		SysProcAttr: &syscall.SysProcAttr{
			Setsid:      true,
			Cloneflags:  unix.CLONE_NEWNS,
			UseCgroupFD: true,
			CgroupFD:    int(cgroup.Fd()),
		},
	}
	// A nil *os.File in an interface is not nil.
	if stdio.In != nil {
		cmd.Stdin = stdio.In
	}
	if stdio.Out != nil {
		cmd.Stdout = stdio.Out
	}
	if stdio.Err != nil {
		cmd.Stderr = stdio.Err
	}
	if err := cmd.Start(); err != nil {
		r.control.Close()
		return Failed("no_monitor", "cannot start monitor=%s: %w", r.host.Monitor, err)
	}
	go func() {
		cmd.Wait() // how it ended is told by the control socket and the record
		close(r.ended)
	}()
	return nil
}

// errNeverBegun reports an id whose owner died before its request was on record. No
// monitor was told of it, and none ever will be.
var errNeverBegun = errors.New("its starter died before the request was on record")

// join follows the run that has req's id already.
func (h Host) join(ctx context.Context, req Request) (*Run, error) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := h.load(req.ID)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errNeverBegun // or removed since
		}
		if err != nil {
			return nil, Failed("no_record", "cannot join run=%s: %w", req.ID, err)
		}
		switch {
		case !r.Created.IsZero() && sameRequest(r.Request, req):
			return &Run{host: h, id: req.ID}, nil
		case !r.Created.IsZero():
			return nil, Refused("exists", "cannot start run=%s: a run of another request has this id", req.ID).
				WithFix("choose another id, or see engine inspect " + req.ID)
		case !r.Alive && r.unbegun:
			if err := h.gcOne(ctx, req.ID); err != nil {
				return nil, err
			}
			return nil, errNeverBegun // or somebody else was quicker, and is looked at next
		case !r.Alive:
			return nil, Failed("no_record", "cannot join run=%s: its request cannot be read: %s", req.ID, strings.Join(r.Problems, "; ")).
				WithFix("see engine inspect " + req.ID + ", and remove it with engine rm")
		}
		select {
		case <-tick.C: // its starter is about to write the request
		case <-ctx.Done():
			return nil, Failed("no_record", "cannot join run=%s: %w", req.ID, ctx.Err())
		}
	}
}

// sameRequest compares what would be on record of two requests.
func sameRequest(a, b Request) bool {
	x, err := json.Marshal(a)
	if err != nil {
		return false
	}
	y, err := json.Marshal(b)
	return err == nil && bytes.Equal(x, y)
}

// ID is the run's id.
func (r *Run) ID() string { return r.id }

// Joined reports that another process started the run: its output goes there, and
// is on record.
func (r *Run) Joined() bool { return r.control == nil }

// Cancel asks the monitor to end the run, with reason cancelled. Idempotent; it
// does not wait, and a run that has ended stays as it was.
func (r *Run) Cancel() {
	if r.Joined() {
		r.host.reach(r.id, "cancel")
		return
	}
	// A monitor that is gone, or that does not read, has nothing left to cancel.
	r.control.SetWriteDeadline(time.Now().Add(time.Second))
	json.NewEncoder(r.control).Encode(message{Cancel: true})
}

// Wait returns the result once it is on record and all output was passed on. A
// monitor that died first makes the run lost: its sandbox is ended here and now.
func (r *Run) Wait() (Result, error) {
	if r.Joined() {
		rec, err := r.host.Await(context.Background(), r.id)
		if err != nil {
			return Result{}, err
		}
		return *rec.Result, nil
	}
	defer r.control.Close()
	var m message
	if err := json.NewDecoder(r.control).Decode(&m); err != nil || !m.Done {
		<-r.ended // so nothing can hold up what is left of it
		if err := r.host.gcOne(context.Background(), r.id); err != nil {
			return Result{}, err
		}
	}
	if m.Error != nil {
		return Result{}, m.Error
	}
	rec, err := r.host.Load(r.id)
	if err != nil {
		return Result{}, err
	}
	if rec.Result == nil {
		return Result{}, noResult(rec)
	}
	return *rec.Result, nil
}
