package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// call is one system call to try behind the filter.
type call struct {
	Name string
	Nr   uintptr
	Args [4]uintptr
}

// childEnv makes the test binary the process that attaches the filter.
const childEnv = "OCI_TEST_CALLS"

func TestMain(m *testing.M) {
	if calls := os.Getenv(childEnv); calls != "" {
		tryCalls(calls)
		return
	}
	os.Exit(m.Run())
}

// tryCalls attaches the filter to every thread, makes the calls and prints the
// errno of each. What it needs for that is allowed by the filter.
func tryCalls(text string) {
	var calls []call
	if err := json.Unmarshal([]byte(text), &calls); err != nil {
		panic(err)
	}
	program := Filter()
	fprog := unix.SockFprog{Len: uint16(len(program) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(&program[0]))}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog))); errno != 0 {
		panic(errno)
	}
	errnos := make([]syscall.Errno, len(calls))
	for i, c := range calls {
		_, _, errnos[i] = unix.RawSyscall6(c.Nr, c.Args[0], c.Args[1], c.Args[2], c.Args[3], 0, 0)
	}
	if err := json.NewEncoder(os.Stdout).Encode(errnos); err != nil {
		panic(err)
	}
}

func behindFilter(t *testing.T, calls ...call) ([]syscall.Errno, error) {
	t.Helper()
	text, err := json.Marshal(calls)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var errnos []syscall.Errno
	if err := json.Unmarshal(out, &errnos); err != nil || len(errnos) != len(calls) {
		t.Fatalf("child said %q, %q: %v", out, &stderr, err)
	}
	return errnos, nil
}

// mustBlock are calls that no job may reach, whatever the profile becomes. Their
// arguments would do nothing if one came through.
var mustBlock = []call{
	{"acct", unix.SYS_ACCT, [4]uintptr{1}},
	{"add_key", unix.SYS_ADD_KEY, [4]uintptr{}},
	{"adjtimex", unix.SYS_ADJTIMEX, [4]uintptr{}},
	{"bpf", unix.SYS_BPF, [4]uintptr{}},
	{"chroot", unix.SYS_CHROOT, [4]uintptr{}},
	{"clock_adjtime", unix.SYS_CLOCK_ADJTIME, [4]uintptr{}},
	{"clock_settime", unix.SYS_CLOCK_SETTIME, [4]uintptr{}},
	{"clone new cgroup namespace", unix.SYS_CLONE, [4]uintptr{unix.CLONE_NEWCGROUP | unix.CLONE_SIGHAND}},
	{"clone new ipc namespace", unix.SYS_CLONE, [4]uintptr{unix.CLONE_NEWIPC | unix.CLONE_SIGHAND}},
	{"clone new mount namespace", unix.SYS_CLONE, [4]uintptr{unix.CLONE_NEWNS | unix.CLONE_SIGHAND}},
	{"clone new network namespace", unix.SYS_CLONE, [4]uintptr{unix.CLONE_NEWNET | unix.CLONE_SIGHAND}},
	{"clone new pid namespace", unix.SYS_CLONE, [4]uintptr{unix.CLONE_NEWPID | unix.CLONE_SIGHAND}},
	{"clone new user namespace", unix.SYS_CLONE, [4]uintptr{unix.CLONE_NEWUSER | unix.CLONE_SIGHAND}},
	{"clone new uts namespace", unix.SYS_CLONE, [4]uintptr{unix.CLONE_NEWUTS | unix.CLONE_SIGHAND}},
	{"delete_module", unix.SYS_DELETE_MODULE, [4]uintptr{}},
	{"fanotify_init", unix.SYS_FANOTIFY_INIT, [4]uintptr{}},
	{"fanotify_mark", unix.SYS_FANOTIFY_MARK, [4]uintptr{}},
	{"fcntl F_SETOWN", unix.SYS_FCNTL, [4]uintptr{0, unix.F_SETOWN, 1}},
	{"fcntl F_SETOWN_EX", unix.SYS_FCNTL, [4]uintptr{0, unix.F_SETOWN_EX}},
	{"finit_module", unix.SYS_FINIT_MODULE, [4]uintptr{}},
	{"fsconfig", unix.SYS_FSCONFIG, [4]uintptr{}},
	{"fsmount", unix.SYS_FSMOUNT, [4]uintptr{}},
	{"fsopen", unix.SYS_FSOPEN, [4]uintptr{}},
	{"fspick", unix.SYS_FSPICK, [4]uintptr{}},
	{"get_mempolicy", unix.SYS_GET_MEMPOLICY, [4]uintptr{}},
	{"init_module", unix.SYS_INIT_MODULE, [4]uintptr{}},
	{"io_uring_enter", unix.SYS_IO_URING_ENTER, [4]uintptr{}},
	{"io_uring_register", unix.SYS_IO_URING_REGISTER, [4]uintptr{}},
	{"io_uring_setup", unix.SYS_IO_URING_SETUP, [4]uintptr{}},
	{"ioctl FIOSETOWN", unix.SYS_IOCTL, [4]uintptr{0, 0x8901}},
	{"ioctl TIOCSTI", unix.SYS_IOCTL, [4]uintptr{0, unix.TIOCSTI}},
	{"ioprio_set of PID 1", unix.SYS_IOPRIO_SET, [4]uintptr{1, 1}},
	{"kcmp", unix.SYS_KCMP, [4]uintptr{}},
	{"kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, [4]uintptr{}},
	{"kexec_load", unix.SYS_KEXEC_LOAD, [4]uintptr{0, 1 << 20}},
	{"keyctl", unix.SYS_KEYCTL, [4]uintptr{}},
	{"kill PID 1", unix.SYS_KILL, [4]uintptr{1, 0}},
	{"kill PID 1 behind a high word", unix.SYS_KILL, [4]uintptr{0x100000001, 0}},
	{"listmount", unix.SYS_LISTMOUNT, [4]uintptr{}},
	{"lookup_dcookie", unix.SYS_LOOKUP_DCOOKIE, [4]uintptr{}},
	{"mbind", unix.SYS_MBIND, [4]uintptr{}},
	{"memfd_secret", unix.SYS_MEMFD_SECRET, [4]uintptr{1}},
	{"migrate_pages", unix.SYS_MIGRATE_PAGES, [4]uintptr{}},
	{"mount", unix.SYS_MOUNT, [4]uintptr{}},
	{"mount_setattr", unix.SYS_MOUNT_SETATTR, [4]uintptr{}},
	{"move_mount", unix.SYS_MOVE_MOUNT, [4]uintptr{}},
	{"move_pages", unix.SYS_MOVE_PAGES, [4]uintptr{}},
	{"name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, [4]uintptr{}},
	{"nfsservctl", unix.SYS_NFSSERVCTL, [4]uintptr{}},
	{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, [4]uintptr{}},
	{"open_tree", unix.SYS_OPEN_TREE, [4]uintptr{}},
	{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, [4]uintptr{}},
	{"personality", unix.SYS_PERSONALITY, [4]uintptr{0xffffffff}},
	{"pidfd_getfd", unix.SYS_PIDFD_GETFD, [4]uintptr{}},
	{"pidfd_open of PID 1", unix.SYS_PIDFD_OPEN, [4]uintptr{1, 0x40000000}},
	{"pidfd_send_signal", unix.SYS_PIDFD_SEND_SIGNAL, [4]uintptr{}},
	{"pivot_root", unix.SYS_PIVOT_ROOT, [4]uintptr{}},
	{"prlimit64 of PID 1", unix.SYS_PRLIMIT64, [4]uintptr{1, 1 << 20}},
	{"process_madvise", unix.SYS_PROCESS_MADVISE, [4]uintptr{}},
	{"process_vm_readv", unix.SYS_PROCESS_VM_READV, [4]uintptr{}},
	{"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, [4]uintptr{}},
	{"ptrace", unix.SYS_PTRACE, [4]uintptr{1 << 20}},
	{"quotactl", unix.SYS_QUOTACTL, [4]uintptr{}},
	{"quotactl_fd", unix.SYS_QUOTACTL_FD, [4]uintptr{}},
	{"reboot", unix.SYS_REBOOT, [4]uintptr{}},
	{"request_key", unix.SYS_REQUEST_KEY, [4]uintptr{}},
	{"sched_setaffinity of PID 1", unix.SYS_SCHED_SETAFFINITY, [4]uintptr{1}},
	{"sched_setattr of PID 1", unix.SYS_SCHED_SETATTR, [4]uintptr{1}},
	{"sched_setparam of PID 1", unix.SYS_SCHED_SETPARAM, [4]uintptr{1}},
	{"sched_setscheduler of PID 1", unix.SYS_SCHED_SETSCHEDULER, [4]uintptr{1, 1 << 20}},
	{"seccomp", unix.SYS_SECCOMP, [4]uintptr{1 << 20}},
	{"set_mempolicy", unix.SYS_SET_MEMPOLICY, [4]uintptr{1 << 10}},
	{"setdomainname", unix.SYS_SETDOMAINNAME, [4]uintptr{0, 1 << 20}},
	{"sethostname", unix.SYS_SETHOSTNAME, [4]uintptr{0, 1 << 20}},
	{"setns", unix.SYS_SETNS, [4]uintptr{1 << 20}},
	{"setpriority of a user", unix.SYS_SETPRIORITY, [4]uintptr{unix.PRIO_USER, 1 << 20}},
	{"setpriority of PID 1", unix.SYS_SETPRIORITY, [4]uintptr{3, 1}},
	{"settimeofday", unix.SYS_SETTIMEOFDAY, [4]uintptr{1, 1}},
	{"socket AF_ALG", unix.SYS_SOCKET, [4]uintptr{unix.AF_ALG, unix.SOCK_SEQPACKET}},
	{"socket AF_BLUETOOTH", unix.SYS_SOCKET, [4]uintptr{unix.AF_BLUETOOTH, unix.SOCK_RAW}},
	{"socket AF_KEY", unix.SYS_SOCKET, [4]uintptr{unix.AF_KEY, unix.SOCK_RAW, 2}},
	{"socket AF_NETLINK netfilter", unix.SYS_SOCKET, [4]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}},
	{"socket AF_NETLINK xfrm", unix.SYS_SOCKET, [4]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM}},
	{"socket AF_PACKET", unix.SYS_SOCKET, [4]uintptr{unix.AF_PACKET, unix.SOCK_RAW}},
	{"socket AF_RXRPC", unix.SYS_SOCKET, [4]uintptr{unix.AF_RXRPC, unix.SOCK_DGRAM}},
	{"socket AF_TIPC", unix.SYS_SOCKET, [4]uintptr{unix.AF_TIPC, unix.SOCK_STREAM}},
	{"socket AF_VSOCK", unix.SYS_SOCKET, [4]uintptr{unix.AF_VSOCK, unix.SOCK_STREAM}},
	{"socket SCTP", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}},
	{"socket SCTP by its type", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET6, unix.SOCK_SEQPACKET}},
	{"socket DCCP by its type", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET, unix.SOCK_DCCP | unix.SOCK_CLOEXEC}},
	{"socket L2TP", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET, unix.SOCK_DGRAM, 115}},
	{"socket MPTCP", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}},
	{"socket UDP-Lite", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE}},
	{"socket SMC", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET, unix.SOCK_STREAM, 256}},
	{"socketpair SCTP", unix.SYS_SOCKETPAIR, [4]uintptr{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}},
	{"socket AF_XDP", unix.SYS_SOCKET, [4]uintptr{unix.AF_XDP, unix.SOCK_RAW}},
	{"statmount", unix.SYS_STATMOUNT, [4]uintptr{}},
	{"swapoff", unix.SYS_SWAPOFF, [4]uintptr{}},
	{"swapon", unix.SYS_SWAPON, [4]uintptr{}},
	{"syslog", unix.SYS_SYSLOG, [4]uintptr{10}},
	{"tgkill PID 1", unix.SYS_TGKILL, [4]uintptr{1, 1, 0}},
	{"tkill PID 1", unix.SYS_TKILL, [4]uintptr{1, 0}},
	{"umount2", unix.SYS_UMOUNT2, [4]uintptr{}},
	{"unshare", unix.SYS_UNSHARE, [4]uintptr{unix.CLONE_NEWUSER}},
	{"userfaultfd", unix.SYS_USERFAULTFD, [4]uintptr{1 << 20}},
	{"vhangup", unix.SYS_VHANGUP, [4]uintptr{}},
	{"vmsplice", unix.SYS_VMSPLICE, [4]uintptr{}},
}

// TestFilterBlocksOnThisKernel attaches the filter and meets its errno.
func TestFilterBlocksOnThisKernel(t *testing.T) {
	got, err := behindFilter(t, mustBlock...)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range mustBlock {
		if got[i] != unix.EPERM {
			t.Errorf("%s = errno %d (%v), want EPERM", c.Name, int(got[i]), got[i])
		}
	}
	if len(mustBlock) < 60 {
		t.Errorf("only %d calls are tried", len(mustBlock))
	}
}

// TestFilterAllowsWork tries what every program needs.
func TestFilterAllowsWork(t *testing.T) {
	tests := []struct {
		call
		want syscall.Errno
	}{
		{call{"getppid", unix.SYS_GETPPID, [4]uintptr{}}, 0},
		{call{"kill oneself", unix.SYS_KILL, [4]uintptr{0, 0}}, 0},
		{call{"socket AF_UNIX", unix.SYS_SOCKET, [4]uintptr{unix.AF_UNIX, unix.SOCK_STREAM}}, 0},
		{call{"socket AF_INET", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET, unix.SOCK_STREAM}}, 0},
		{call{"socket AF_INET6", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET6, unix.SOCK_DGRAM}}, 0},
		{call{"socket TCP without blocking", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC, unix.IPPROTO_TCP}}, 0},
		{call{"socket UDP", unix.SYS_SOCKET, [4]uintptr{unix.AF_INET6, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC, unix.IPPROTO_UDP}}, 0},
		{call{"socket AF_NETLINK route", unix.SYS_SOCKET, [4]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}}, 0},
		{call{"personality", unix.SYS_PERSONALITY, [4]uintptr{0}}, 0},
		{call{"setpriority of oneself", unix.SYS_SETPRIORITY, [4]uintptr{unix.PRIO_PROCESS, 0, 0}}, 0},
		{call{"prlimit64 of oneself", unix.SYS_PRLIMIT64, [4]uintptr{0, unix.RLIMIT_NOFILE}}, 0},
		{call{"fcntl F_SETOWN of nobody", unix.SYS_FCNTL, [4]uintptr{1, unix.F_SETOWN, 0}}, 0},
		// A C library takes the older call after these.
		{call{"clone3", unix.SYS_CLONE3, [4]uintptr{}}, unix.ENOSYS},
		{call{"a call of the future", 600, [4]uintptr{}}, unix.ENOSYS},
		{call{"no call", ^uintptr(0), [4]uintptr{}}, unix.ENOSYS},
	}
	calls := make([]call, len(tests))
	for i, tt := range tests {
		calls[i] = tt.call
	}
	got, err := behindFilter(t, calls...)
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range tests {
		if got[i] != tt.want {
			t.Errorf("%s = errno %d (%v), want %d", tt.Name, int(got[i]), got[i], int(tt.want))
		}
	}
}

// TestFilterKillsForeignABI makes an x32 call, by which a filter that only looks
// at amd64's numbers would be passed.
func TestFilterKillsForeignABI(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("only amd64 has a second ABI with the same AUDIT_ARCH")
	}
	_, err := behindFilter(t, call{"x32 getppid", 0x40000000 | unix.SYS_GETPPID, [4]uintptr{}})
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSYS {
		t.Errorf("x32 call ended with %v, want SIGSYS", err)
	}
}

// TestProfileIsACopy guards the built-in profile against a caller's changes.
func TestProfileIsACopy(t *testing.T) {
	p := Profile()
	if p.DefaultAction != specs.ActErrno || len(p.Syscalls) == 0 {
		t.Fatalf("profile = %+v, want one that refuses by default", p)
	}
	p.Syscalls[0].Names[0] = "bpf"
	if got := Profile().Syscalls[0].Names[0]; got == "bpf" {
		t.Errorf("a change to one profile shows in the next")
	}
}
