package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/direct-oci/engine/integration/vm/wire"
)

const program = "qemu-system-x86_64"

// spec is everything QEMU is told.
type spec struct {
	program               string
	accel, kernel, initrd string
	memory, cpus          int
	drives                []drive
}

type drive struct {
	Disk
	serial string
}

// cmdline keeps the kernel from doing what a machine of a few seconds has no use
// for. Under emulation each of these is worth 50 to 300 ms.
const cmdline = "quiet panic=-1 console=ttyS0 nokaslr mitigations=off init_on_alloc=0 no5lvl nowatchdog audit=0 " +
	"lsm=landlock,yama 8250.nr_uarts=1 no_timer_check tsc=reliable random.trust_cpu=on rcupdate.rcu_expedited=1 " +
	"cryptomgr.notests initcall_blacklist=jent_mod_init cgroup_no_v1=all"

// The descriptors QEMU inherits, in the order of exec.Cmd.ExtraFiles.
const (
	portFD    = 3
	consoleFD = 4
)

func (s spec) args() []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", "q35", "-cpu", "max",
		"-accel", s.accel, "-smp", strconv.Itoa(s.cpus), "-m", fmt.Sprintf("%dM", s.memory),
		"-kernel", s.kernel, "-initrd", s.initrd, "-append", cmdline,
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", consoleFD), "-serial", "chardev:console",
		"-device", "virtio-serial-pci",
		"-chardev", fmt.Sprintf("socket,id=port,fd=%d", portFD), "-device", "virtserialport,chardev=port,name=" + wire.Port,
	}
	for _, d := range s.drives {
		mode := "cache=unsafe,snapshot=on"
		if d.Keep {
			mode = "cache=writeback"
		}
		args = append(args,
			"-drive", "if=none,id="+d.serial+",format=raw,"+mode+",file.locking=off,file="+strings.ReplaceAll(d.Image, ",", ",,"),
			"-device", "virtio-blk-pci,drive="+d.serial+",serial="+d.serial)
	}
	return args
}

// qemu is one running emulator.
type qemu struct {
	outer   context.Context    // the caller's
	cancel  context.CancelFunc // kills the process
	port    *os.File
	console *tail
	gone    chan struct{} // closed when the process has been reaped
}

// launch starts QEMU. The port reads io.EOF once QEMU is gone.
func launch(ctx context.Context, s spec) (*qemu, error) {
	port, portPeer, err := socketpair("port")
	if err != nil {
		return nil, err
	}
	defer portPeer.Close()
	console, consolePeer, err := socketpair("console")
	if err != nil {
		return nil, errors.Join(err, port.Close())
	}
	defer consolePeer.Close()

	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	q := &qemu{outer: outer, cancel: cancel, port: port, console: &tail{}, gone: make(chan struct{})}
	cmd := exec.Command(s.program, s.args()...)
	cmd.ExtraFiles = []*os.File{portPeer, consolePeer}
	cmd.Stderr = q.console // its complaints are read where the guest's are
	// A killed harness takes its emulator along.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() {
		// The death signal is tied to this thread, so it must outlive the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() }) // fails only when it has ended
		_ = cmd.Wait()                                                    // how it ended is told by the port and the console
		stop()
		close(q.gone)
	}()
	if err := <-started; err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("cannot start %s: %w", s.program, err), port.Close(), console.Close())
	}
	go func() {
		defer console.Close()
		_, _ = io.Copy(q.console, console) // ends with QEMU
	}()
	context.AfterFunc(ctx, func() {
		// A process stuck in the kernel keeps its descriptors: do not wait for it.
		_ = port.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	})
	return q, nil
}

// kill ends QEMU and waits, within reason, until it is gone. It may be repeated.
func (q *qemu) kill() {
	q.cancel()
	select {
	case <-q.gone:
	case <-time.After(time.Second): // stuck in the kernel; it dies when it comes out
	}
	_ = q.port.Close() // fails only when it is closed already
}

// socketpair returns two connected sockets; the first is ours and can be polled.
func socketpair(name string) (ours, theirs *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make socket pair: %w", err)
	}
	if err := syscall.SetNonblock(fds[0], true); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}

// tail keeps the last bytes written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 8 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if n := len(t.buf) - tailSize; n > 0 {
		t.buf = append(t.buf[:0], t.buf[n:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.ReplaceAll(string(t.buf), "\r", ""))
}

const (
	// One thread for all processors: with one each, a processor was seen to execute
	// half of an instruction that another was patching (a static key of the scheduler,
	// at the first cpu.max), which panics the guest.
	emulation = "tcg,thread=single,tb-size=512"
	hardware  = "kvm"
)

// probeLimit is how long a guest may take to greet us under KVM. It needs well
// under a second where KVM works; on some hosts it hangs for ever.
const probeLimit = 5 * time.Second

// acceleration returns "kvm" if a guest has been seen to boot with it, otherwise
// emulation. The answer is kept in the cache for this host and boot.
func acceleration(ctx context.Context, cache string, s spec) (string, error) {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return emulation, nil
	}
	f.Close()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	file := filepath.Join(cache, "accel-"+strings.TrimSpace(string(boot)))
	if answer, err := os.ReadFile(file); err == nil {
		now := time.Now()
		return string(answer), os.Chtimes(file, now, now) // in use: not to be pruned
	}
	answer := emulation
	if probe(ctx, s) {
		answer = hardware
	}
	if err := ctx.Err(); err != nil {
		return "", context.Cause(ctx) // the probe was cut short: no answer to keep
	}
	return answer, writeFile(file, []byte(answer))
}

// probe boots the guest without disks under KVM and reports whether it greets us.
func probe(ctx context.Context, s spec) bool {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	s.accel, s.drives = hardware, nil
	q, err := launch(ctx, s)
	if err != nil {
		return false
	}
	defer q.kill()
	return wait(q.port, wire.Hello) == nil
}

// checkTools names the first tool that is missing.
func checkTools() error {
	for _, t := range []MissingError{
		{program, "qemu-system-x86"}, {"mkfs.ext4", "e2fsprogs"}, {"zstd", "zstd"}, {"xz", "xz-utils"},
	} {
		if _, err := lookTool(t.Tool); err != nil {
			return &t
		}
	}
	return nil
}
