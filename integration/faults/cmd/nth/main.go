//go:build amd64

// Command nth runs a program and lets one of its system calls fail, or kills it there.
//
//	nth -n N -fault ENOSPC|EIO|EMFILE|ENOMEM|EPERM|EINTR|KILL -log FILE PROGRAM ARG0 [ARG...]
//
// The N-th call of the program is counted over all of its threads, and not over its
// children. strace -f -e inject=…:when=N counts each thread and each child for itself,
// so that a program of many threads meets several faults in one run, others each time;
// here it is one fault, and after it the program is on its own.
//
// The program inherits descriptors 0 to 4, of which nth keeps none. It takes the
// program's exit status for its own. The log gets one line: the number of the call that
// was hit, -1 if the program ended before, and how many calls were counted.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// faults are what can happen to a call. 0 is SIGKILL instead of it.
var faults = map[string]syscall.Errno{
	"ENOSPC": syscall.ENOSPC, "EIO": syscall.EIO, "EMFILE": syscall.EMFILE,
	"ENOMEM": syscall.ENOMEM, "EPERM": syscall.EPERM, "EINTR": syscall.EINTR, "KILL": 0,
}

// unharmed are calls that tell nothing and change nothing outside the program: a kill
// there is one at the call before, and they fail for none of these reasons.
var unharmed = map[uint64]bool{
	unix.SYS_FUTEX: true, unix.SYS_SCHED_YIELD: true, unix.SYS_RT_SIGPROCMASK: true, unix.SYS_RT_SIGRETURN: true,
	unix.SYS_RT_SIGACTION: true, unix.SYS_SIGALTSTACK: true, unix.SYS_GETTID: true, unix.SYS_GETPID: true,
	unix.SYS_TGKILL: true, unix.SYS_NANOSLEEP: true, unix.SYS_CLOCK_NANOSLEEP: true, unix.SYS_EPOLL_PWAIT: true,
	unix.SYS_EPOLL_WAIT: true, unix.SYS_MADVISE: true, unix.SYS_MUNMAP: true, unix.SYS_EXIT: true, unix.SYS_EXIT_GROUP: true,
	unix.SYS_RESTART_SYSCALL: true, unix.SYS_CLOCK_GETTIME: true, unix.SYS_ARCH_PRCTL: true,
	unix.SYS_SCHED_GETAFFINITY: true, unix.SYS_SET_ROBUST_LIST: true, unix.SYS_RSEQ: true,
}

func main() {
	n := flag.Int("n", 0, "`number` of the call, from 1; 0 only counts")
	fault := flag.String("fault", "", "`name` of an error, or KILL")
	log := flag.String("log", "", "`file` for the outcome")
	flag.Parse()
	errno, ok := faults[*fault]
	if !ok || flag.NArg() < 2 {
		flag.Usage()
		os.Exit(2)
	}
	// ptrace knows threads, not processes.
	runtime.LockOSThread()
	t := &tracer{n: *n, errno: errno, hit: -1, log: *log, failing: map[int]bool{}, entered: map[int]bool{}}
	status, err := t.run(flag.Arg(0), flag.Args()[1:])
	if err == nil {
		err = os.WriteFile(*log, fmt.Appendf(nil, "%d %d\n", t.hit, t.count), 0o600)
	}
	if err != nil {
		os.WriteFile(*log, []byte(err.Error()), 0o600)
		os.Exit(2)
	}
	os.Exit(status)
}

// tracer follows the threads of one process.
type tracer struct {
	n     int
	errno syscall.Errno

	pid     int
	log     string
	count   int
	hit     int          // number of the call that was hit
	entered map[int]bool // threads inside a call
	failing map[int]bool // threads whose call was replaced
}

func (t *tracer) run(program string, args []string) (int, error) {
	cmd := &exec.Cmd{
		Path: program, Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		ExtraFiles: []*os.File{os.NewFile(3, "control"), os.NewFile(4, "lock")},
		// A monitor refuses to share its mount namespace with its parent.
		SysProcAttr: &syscall.SysProcAttr{Ptrace: true, Cloneflags: unix.CLONE_NEWNS},
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	t.pid = cmd.Process.Pid
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	for fd := range 5 {
		unix.Dup2(null, fd) // whoever holds a descriptor of these counts as a live monitor
	}
	var ws unix.WaitStatus
	if _, err := wait(t.pid, &ws); err != nil {
		return 0, err
	}
	if err := unix.PtraceSetOptions(t.pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL); err != nil {
		return 0, err
	}
	unix.PtraceSyscall(t.pid, 0)
	for {
		tid, err := wait(-1, &ws)
		if err != nil {
			return 0, err
		}
		switch {
		case ws.Exited() || ws.Signaled():
			if tid != t.pid {
				continue
			}
			if ws.Signaled() {
				return 128 + int(ws.Signal()), nil
			}
			return ws.ExitStatus(), nil
		case ws.Stopped():
			unix.PtraceSyscall(tid, t.stopped(tid, ws)) // fails for a thread that was killed meanwhile
		}
	}
}

func wait(pid int, ws *unix.WaitStatus) (int, error) {
	for {
		tid, err := unix.Wait4(pid, ws, unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return tid, err
		}
	}
}

// stopped deals with a thread that waits for us, and returns the signal to give it.
func (t *tracer) stopped(tid int, ws unix.WaitStatus) int {
	const syscallStop = unix.SIGTRAP | 0x80
	sig := ws.StopSignal()
	switch {
	case sig == syscallStop:
		t.call(tid)
		return 0
	case sig == unix.SIGTRAP || sig == unix.SIGSTOP:
		return 0 // of tracing itself: a new thread, the exec
	}
	return int(sig)
}

// call deals with a thread at the entry of a system call, or at its return.
func (t *tracer) call(tid int) {
	var regs unix.PtraceRegs
	if unix.PtraceGetRegs(tid, &regs) != nil {
		return // killed meanwhile
	}
	if t.entered[tid] {
		t.entered[tid] = false
		if t.failing[tid] {
			delete(t.failing, tid)
			regs.Rax = uint64(-int64(t.errno))
			unix.PtraceSetRegs(tid, &regs)
		}
		return
	}
	t.entered[tid] = true
	if unharmed[regs.Orig_rax] {
		return
	}
	if t.count++; t.count != t.n {
		return
	}
	t.hit = int(regs.Orig_rax)
	os.WriteFile(t.log+".hit", fmt.Appendln(nil, t.hit), 0o600) // for a program that hangs from here on
	if t.errno == 0 {
		unix.Kill(t.pid, unix.SIGKILL)
		return
	}
	t.failing[tid] = true
	if regs.Orig_rax == unix.SYS_CLOSE {
		return // Linux gives the descriptor up whatever it returns
	}
	regs.Orig_rax = ^uint64(0) // no call at all
	unix.PtraceSetRegs(tid, &regs)
}
