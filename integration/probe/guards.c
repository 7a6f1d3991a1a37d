#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probe.h"

static void report(const char *name, long r)
{
	printf("%s: %s\n", name, r < 0 ? (errno == EPERM ? "EPERM" : strerror(errno)) : "0");
}

static void signals_to_init(void)
{
	struct {
		int signo, error, code, pad, pid, uid;
		char rest[104];
	} info = {.signo = SIGKILL, .code = -1, .pid = getpid(), .uid = (int)getuid()};
	report("kill 1 KILL", syscall(SYS_kill, 1L, (long)SIGKILL));
	report("kill 1 STOP", syscall(SYS_kill, 1L, (long)SIGSTOP));
	report("kill 0x100000001 KILL", syscall(SYS_kill, 0x100000001L, (long)SIGKILL));
	report("tkill 1 KILL", syscall(SYS_tkill, 1L, (long)SIGKILL));
	report("tgkill 1 1 KILL", syscall(SYS_tgkill, 1L, 1L, (long)SIGKILL));
	report("rt_sigqueueinfo 1 KILL", syscall(SYS_rt_sigqueueinfo, 1L, (long)SIGKILL, &info));
	report("rt_tgsigqueueinfo 1 1 KILL", syscall(SYS_rt_tgsigqueueinfo, 1L, 1L, (long)SIGKILL, &info));
	int dir = open("/proc/1", O_RDONLY | O_DIRECTORY);
	report("pidfd_send_signal /proc/1 KILL", syscall(SYS_pidfd_send_signal, (long)dir, (long)SIGKILL, 0L, 0L));
	report("pidfd_open 1", syscall(434, 1L, 0L));
	int pipes[2];
	if (pipe(pipes))
		return;
	report("fcntl F_SETOWN 1", fcntl(pipes[0], F_SETOWN, 1));
	report("fcntl F_SETOWN -1", fcntl(pipes[0], F_SETOWN, -1));
	int owner[2] = {1, 1};
	report("fcntl F_SETOWN_EX 1", fcntl(pipes[0], F_SETOWN_EX, owner));
	int one = 1;
	report("ioctl FIOSETOWN 1", ioctl(pipes[0], 0x8901, &one));
	report("ioctl SIOCSPGRP 1", ioctl(pipes[0], 0x8902, &one));
	report("ioctl TIOCSTI", ioctl(0, 0x5412, ""));
}

static void settings_of_init(void)
{
	struct rlimit none = {0, 0};
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(0, &set);
	struct sched_param param = {0};
	unsigned attr[16] = {sizeof attr};
	report("prlimit 1 NOFILE 0", syscall(SYS_prlimit64, 1L, (long)RLIMIT_NOFILE, &none, 0L));
	report("sched_setaffinity 1", syscall(SYS_sched_setaffinity, 1L, sizeof set, &set));
	report("sched_setparam 1", syscall(SYS_sched_setparam, 1L, &param));
	report("sched_setscheduler 1", syscall(SYS_sched_setscheduler, 1L, 3L, &param));
	report("sched_setattr 1", syscall(SYS_sched_setattr, 1L, attr, 0L));
	report("setpriority 1", syscall(SYS_setpriority, (long)PRIO_PROCESS, 1L, 19L));
	report("setpriority of the user", syscall(SYS_setpriority, (long)PRIO_USER, 0L, 19L));
	report("ioprio_set 1", syscall(SYS_ioprio_set, 1L, 1L, 3L << 13));
	report("ioprio_set of the user", syscall(SYS_ioprio_set, 3L, 0L, 3L << 13));
}

static void memory_of_init(void)
{
	static const char *files[] = {"environ", "maps", "mem", "auxv", "fd/3", "root/etc", "cwd/etc", "exe"};
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		char path[64], name[80], buf[4096];
		snprintf(path, sizeof path, "/proc/1/%s", files[i]);
		snprintf(name, sizeof name, "read %s", path);
		errno = 0;
		int fd = open(path, O_RDONLY | O_NONBLOCK);
		ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof buf);
		printf("%s: %s\n", name, n > 0 ? "readable" : n == 0 ? "empty" : strerror(errno));
		if (fd >= 0)
			close(fd);
	}
}

/* everyone signals all that a signal may reach: a sleeping child dies of it, the
 * process itself and PID 1 do not. */
static void everyone(void)
{
	pid_t child = fork();
	if (!child) {
		for (;;)
			pause();
	}
	report("kill -1 KILL", syscall(SYS_kill, -1L, (long)SIGKILL));
	int status = 0;
	waitpid(child, &status, 0);
	printf("child: signal %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

int guards(int argc, char **argv)
{
	(void)argc, (void)argv;
	signals_to_init();
	settings_of_init();
	memory_of_init();
	fflush(stdout);
	everyone();
	return 0;
}

/* strangers lists the processes that can be seen besides PID 1 and this one. */
int strangers(int argc, char **argv)
{
	(void)argc, (void)argv;
	for (int pid = 1; pid < 5000; pid++)
		if (pid != getpid() && (!syscall(SYS_getpgid, (long)pid) || errno != ESRCH))
			printf("process %d\n", pid);
	return 0;
}
