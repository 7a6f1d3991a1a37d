#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probe.h"

#define NEWS(flag) SYS_clone, {(flag) | CLONE_SIGHAND}

/* Calls that no program may get through. Where possible the arguments are such that
 * a kernel which was asked would answer something else than EPERM, and would change
 * nothing. */
static const struct {
	const char *name;
	long nr;
	long args[6];
} forbidden[] = {
	{"acct", SYS_acct, {1}},
	{"add_key", SYS_add_key, {0}},
	{"adjtimex", SYS_adjtimex, {0}},
	{"bpf", SYS_bpf, {-1}},
	{"chroot", SYS_chroot, {0}},
	{"clock_adjtime", SYS_clock_adjtime, {0, 0}},
	{"clock_settime", SYS_clock_settime, {0, 0}},
	{"clone CLONE_NEWCGROUP", NEWS(0x02000000)},
	{"clone CLONE_NEWIPC", NEWS(0x08000000)},
	{"clone CLONE_NEWNET", NEWS(0x40000000)},
	{"clone CLONE_NEWNS", NEWS(0x00020000)},
	{"clone CLONE_NEWPID", NEWS(0x20000000)},
	{"clone CLONE_NEWUSER", NEWS(0x10000000)},
	{"clone CLONE_NEWUTS", NEWS(0x04000000)},
	{"clone3", SYS_clone3, {0, 0}},
	{"delete_module", SYS_delete_module, {0}},
	{"fanotify_init", SYS_fanotify_init, {-1}},
	{"fanotify_mark", SYS_fanotify_mark, {-1}},
	{"finit_module", SYS_finit_module, {-1}},
	{"fsconfig", 431, {-1}},
	{"fsmount", 432, {-1}},
	{"fsopen", 430, {0}},
	{"fspick", 433, {-1}},
	{"get_mempolicy", SYS_get_mempolicy, {1}},
	{"init_module", SYS_init_module, {0}},
	{"io_uring_enter", 426, {-1}},
	{"io_uring_register", 427, {-1}},
	{"io_uring_setup", 425, {0}},
	{"kcmp", SYS_kcmp, {0}},
	{"kexec_file_load", SYS_kexec_file_load, {-1}},
	{"kexec_load", SYS_kexec_load, {0}},
	{"keyctl", SYS_keyctl, {0, -3, 0}},
	{"listmount", 458, {0}},
	{"lookup_dcookie", SYS_lookup_dcookie, {0}},
	{"mbind", SYS_mbind, {0}},
	{"memfd_secret", 447, {1}},
	{"migrate_pages", SYS_migrate_pages, {0}},
	{"mount", SYS_mount, {0}},
	{"mount_setattr", 442, {-1}},
	{"move_mount", 429, {-1}},
	{"move_pages", SYS_move_pages, {0}},
	{"name_to_handle_at", SYS_name_to_handle_at, {-1}},
	{"nfsservctl", SYS_nfsservctl, {0}},
	{"open_by_handle_at", SYS_open_by_handle_at, {-1}},
	{"open_tree", 428, {-1}},
	{"perf_event_open", SYS_perf_event_open, {0}},
	{"personality ADDR_NO_RANDOMIZE", SYS_personality, {0x0040000}},
	{"pidfd_getfd", 438, {-1}},
	{"pidfd_send_signal", SYS_pidfd_send_signal, {-1}},
	{"pivot_root", SYS_pivot_root, {0}},
	{"process_madvise", 440, {-1}},
	{"process_vm_readv", SYS_process_vm_readv, {0}},
	{"process_vm_writev", SYS_process_vm_writev, {0}},
	{"ptrace PTRACE_TRACEME", SYS_ptrace, {0}},
	{"ptrace PTRACE_SEIZE of PID 1", SYS_ptrace, {0x4206, 1}},
	{"quotactl", SYS_quotactl, {0}},
	{"quotactl_fd", 443, {-1}},
	{"reboot", SYS_reboot, {0}},
	{"request_key", SYS_request_key, {0}},
	{"seccomp", SYS_seccomp, {-1}},
	{"set_mempolicy", SYS_set_mempolicy, {99}},
	{"setdomainname", SYS_setdomainname, {0, 1}},
	{"sethostname", SYS_sethostname, {0, 1}},
	{"setns", SYS_setns, {-1}},
	{"settimeofday", SYS_settimeofday, {0, 0}},
	{"statmount", 457, {0}},
	{"swapoff", SYS_swapoff, {0}},
	{"swapon", SYS_swapon, {0}},
	{"syslog", SYS_syslog, {10}},
	{"umount2", SYS_umount2, {0}},
	{"unshare CLONE_NEWUSER", SYS_unshare, {0x10000000}},
	{"unshare CLONE_NEWNET", SYS_unshare, {0x40000000}},
	{"unshare CLONE_NEWNS", SYS_unshare, {0x00020000}},
	{"userfaultfd", SYS_userfaultfd, {-1}},
	{"vhangup", SYS_vhangup, {0}},
	{"vmsplice", SYS_vmsplice, {-1}},
#ifdef __x86_64__
	{"_sysctl", SYS__sysctl, {0}},
	{"create_module", SYS_create_module, {0}},
	{"get_kernel_syms", SYS_get_kernel_syms, {0}},
	{"ioperm", SYS_ioperm, {0}},
	{"iopl", SYS_iopl, {99}},
	{"modify_ldt", SYS_modify_ldt, {0}},
	{"query_module", SYS_query_module, {0}},
	{"uselib", SYS_uselib, {0}},
	{"ustat", SYS_ustat, {0}},
	{"sysfs", SYS_sysfs, {99}},
#endif
	/* Address families: AF_UNIX, AF_INET, AF_INET6 and routes are the only ones. */
	{"socket AF_AX25", SYS_socket, {3, 2}},
	{"socket AF_APPLETALK", SYS_socket, {5, 2}},
	{"socket AF_X25", SYS_socket, {9, 5}},
	{"socket AF_KEY", SYS_socket, {15, 3, 2}},
	{"socket AF_NETLINK audit", SYS_socket, {16, 3, 9}},
	{"socket AF_NETLINK netfilter", SYS_socket, {16, 3, 12}},
	{"socket AF_NETLINK xfrm", SYS_socket, {16, 3, 6}},
	{"socket AF_NETLINK crypto", SYS_socket, {16, 3, 21}},
	{"socket AF_NETLINK uevent", SYS_socket, {16, 3, 15}},
	{"socket AF_PACKET", SYS_socket, {17, 3, 0}},
	{"socket AF_RDS", SYS_socket, {21, 5}},
	{"socket AF_CAN", SYS_socket, {29, 3, 1}},
	{"socket AF_TIPC", SYS_socket, {30, 2}},
	{"socket AF_BLUETOOTH", SYS_socket, {31, 3, 1}},
	{"socket AF_RXRPC", SYS_socket, {33, 2, 2}},
	{"socket AF_ALG", SYS_socket, {38, 5}},
	{"socket AF_NFC", SYS_socket, {39, 3}},
	{"socket AF_VSOCK", SYS_socket, {40, 1}},
	{"socket AF_KCM", SYS_socket, {41, 2}},
	{"socket AF_QIPCRTR", SYS_socket, {42, 2}},
	{"socket AF_SMC", SYS_socket, {43, 1}},
	{"socket AF_XDP", SYS_socket, {44, 3}},
	{"socket AF_ALG behind a high word", SYS_socket, {0x100000026, 5}},
	/* Of the internet TCP and UDP are the only ones, by protocol and by type. */
	{"socket SCTP", SYS_socket, {2, 1, 132}},
	{"socket SCTP by type", SYS_socket, {10, 5}},
	{"socket DCCP by type", SYS_socket, {2, 6}},
	{"socket L2TP", SYS_socket, {2, 2, 115}},
	{"socket MPTCP", SYS_socket, {10, 1, 262}},
	{"socket UDP-Lite", SYS_socket, {2, 2, 136}},
	{"socket SMC", SYS_socket, {2, 1, 256}},
	{"socketpair SCTP", SYS_socketpair, {2, 1, 132}},
	{"socketpair AF_TIPC", SYS_socketpair, {30, 2}},
	{"socket raw IPv4", SYS_socket, {2, 3, 1}},
	{"socket raw IPv6", SYS_socket, {10, 3, 58}},
	/* Numbers that nobody has given out yet. */
	{"number 600", 600, {0}},
	{"number 1000", 1000, {0}},
};

static const char *refusal(int e)
{
	switch (e) {
	case 0: return "0";
	case EPERM: return "EPERM";
	case ENOSYS: return "ENOSYS";
	}
	return strerror(e);
}

static void try_call(size_t i)
{
	const long *a = forbidden[i].args;
	errno = 0;
	long r = syscall(forbidden[i].nr, a[0], a[1], a[2], a[3], a[4], a[5]);
	int e = r < 0 ? errno : 0;
	printf("call %s: %s\n", forbidden[i].name, refusal(e));
	if (r == 0 && forbidden[i].nr == SYS_clone)
		_exit(0);
}

#ifdef __x86_64__
/* Both other ways into the kernel have numbers of their own, which a filter for the
 * native ones does not know. */
static void by_interrupt(void)
{
	long r = 20; /* getpid of i386 */
	__asm__ volatile("int $0x80" : "+a"(r) : : "memory", "r8", "r9", "r10", "r11");
	printf("got %ld\n", r);
	fflush(stdout);
	_exit(0);
}

static void by_x32(void)
{
	errno = 0;
	long r = syscall(SYS_getpid | 0x40000000);
	_exit(r < 0 && errno == ENOSYS ? 77 : 0);
}

static void try_abi(const char *name, void (*enter)(void))
{
	fflush(stdout);
	pid_t pid = fork();
	if (!pid)
		enter();
	int status = 0;
	waitpid(pid, &status, 0);
	printf("abi %s: exit %d signal %d\n", name, WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}
#endif

int syscalls(int argc, char **argv)
{
	(void)argc, (void)argv;
	for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++)
		try_call(i);
	printf("calls %zu\n", sizeof forbidden / sizeof *forbidden);
#ifdef __x86_64__
	try_abi("i386", by_interrupt);
	try_abi("x32", by_x32);
#endif
	return 0;
}
