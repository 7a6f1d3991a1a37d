/*
 * engine-init: the first process of a sandbox.
 *
 * Theory of operation
 *
 * Three parties take part. The monitor is a process on the host; it made the
 * sandbox and decides about it. We are process 1 of the sandbox's pid namespace,
 * with the same user id as the job, no Linux caps, and a read-only root. The job
 * is the program somebody wants run; from its first instruction it is hostile.
 *
 *	monitor                    engine-init (pid 1)               job
 *	   |      socket, fd 3         |
 *	   |<------- READY ------------|
 *	   |-------- job ------------->|   arguments, environment, secrets, files,
 *	   |   + its stdin/out/err     |   filter, stdio as SCM_RIGHTS
 *	   |                           |--- clone, filter, execve ---->|
 *	   |<------- STARTED ----------|                               |
 *	   |-------- SIGNAL ---------->|--- kill(process group) ------>|
 *	   |<------- EXIT -------------|<-------- wait ----------------|
 *	   |                           '- exits; the kernel ends what is left
 *
 * That is a run of one program. A session has none of its own: the first message
 * carries what all its programs share, and then the monitor has programs started,
 * any number, until it hangs up (session.c).
 *
 *	monitor                    engine-init (pid 1)               programs
 *	   |<------- READY ------------|
 *	   |------- session ---------->|   environment, secrets, files, filter
 *	   |<------ SERVING -----------|
 *	   |------- EXEC 7 ----------->|   arguments, more environment, stdio
 *	   |                           |--- fork, filter, execve ----->|
 *	   |<------ STARTED 7 ---------|                               |
 *	   |-- SIGNAL 7, DEADLINE ---->|--- kill(process group) ------>|
 *	   |<------ EXIT 7 ------------|<-------- wait ----------------|
 *
 * The job may be in the socket before we run. It comes whole or not at all: all
 * of it is received into one mapping and checked (job.c) before anything is done
 * about it. Then its files are written, each new, on a tmpfs and owned by the
 * job's user: secrets into a directory that the runtime made, the program's own
 * anywhere below its working directory, with the directories that are missing on
 * the way. Then the job is started (start.c), the mapping is wiped, and we
 * supervise until the first of: the job's exit, our own
 * deadline, the end of the socket. Whichever it is, we exit, and with process 1
 * the kernel kills the rest of the pid namespace, however it forked or hid.
 * The job and the monitor are never told apart by content: the socket is ours
 * alone, and the job has no descriptor of it.
 *
 * A failure before the job's first instruction is never reported as the job's
 * own: it travels as an ERR frame with errno and stage. Our exit status repeats
 * the outcome for a reader without the socket.
 *
 * SECURITY: the job cannot read, stop, or outlive process 1.
 * They share a user id, so the usual permission checks allow the job everything.
 * Holds because: PR_SET_DUMPABLE 0 closes /proc/1 and ptrace before a job exists;
 * every signal is ignored, and the kernel keeps KILL and STOP from a pid
 * namespace's first process; a poll that fails ends us instead of being tried
 * again, since prlimit(1, RLIMIT_NOFILE, 0) makes it fail for ever; reaping is
 * bounded per round, so that a fork storm delays neither deadline nor end of file.
 * Not covered: gVisor, whose kernel does deliver KILL and STOP to process 1, by
 * whatever way: kill and its kin, pidfd_send_signal on an opened /proc/1, fcntl's
 * F_SETSIG with process 1 as owner; and everywhere setpriority, ioprio_set, the
 * sched_set calls and prlimit on process 1. The job's filter has to refuse those.
 * Checked by: TestJobCannotTouchInit.
 *
 * Sections: frames, shield, supervision, main. No memory is allocated besides
 * one mapping for each message, and nothing is written to descriptors 0 to 2.
 */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little endian");

/*** Frames ***/

#define FRAME_MAGIC 0x454e4733u /* "ENG3" */

struct frame {
	uint32_t magic;
	uint32_t type;
	int32_t a, b;
	uint64_t c;
	uint64_t d; /* CLOCK_MONOTONIC nanoseconds of what the frame reports */
	uint32_t exec; /* whose it is, 0: the job's or the whole sandbox's */
	uint32_t zero;
};
_Static_assert(sizeof(struct frame) == 40, "a frame has 40 bytes");

int64_t now(void)
{
	struct timespec ts;

	if (clock_gettime(CLOCK_MONOTONIC, &ts) != 0)
		_exit(EXIT_ENGINE);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void send_frame_at(int64_t when, uint32_t exec, enum frame_type type, int32_t a, int32_t b, uint64_t c)
{
	struct frame frame = { FRAME_MAGIC, type, a, b, c, (uint64_t)when, exec, 0 };

	if (send(CONTROL, &frame, sizeof frame, MSG_NOSIGNAL) != sizeof frame)
		_exit(EXIT_ENGINE);
}

void send_frame(uint32_t exec, enum frame_type type, int32_t a, int32_t b, uint64_t c)
{
	send_frame_at(now(), exec, type, a, b, c);
}

/* send_exit reports how a program ended. */
void send_exit(uint32_t exec, int status, uint64_t cpu)
{
	if (WIFEXITED(status))
		send_frame(exec, FRAME_EXIT, WEXITSTATUS(status), 0, cpu);
	else
		send_frame(exec, FRAME_EXIT, -1, WTERMSIG(status), cpu);
}

/* fail reports why there is no job or no session any more, and ends the sandbox. */
_Noreturn void fail(enum stage stage, int error)
{
	send_frame(0, FRAME_ERR, error, stage, 0);
	if (stage != STAGE_EXEC)
		_exit(EXIT_ENGINE);
	_exit(error == ENOENT || error == ENOTDIR ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE);
}

/*** Shield ***/

/* wake exists so that SIGCHLD interrupts ppoll. */
static void wake(int signo)
{
	(void)signo;
}

/* shield makes us as hard to reach as an unprivileged process can be. SIGCHLD is
 * blocked and comes through inside ppoll alone: none is lost between looking for
 * dead children and going to sleep. Stray descriptors of the runtime are closed;
 * one that leads out of the sandbox has been an escape before. */
static void shield(void)
{
	struct sigaction action = { .sa_handler = wake };
	sigset_t chld;

	if (prctl(PR_SET_DUMPABLE, 0) != 0)
		_exit(EXIT_ENGINE);
	ignore_signals();
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	if (sigaction(SIGCHLD, &action, NULL) != 0 || sigprocmask(SIG_SETMASK, &chld, NULL) != 0)
		_exit(EXIT_ENGINE);
	if (syscall(SYS_close_range, CONTROL + 1, ~0u, 0) != 0)
		_exit(EXIT_ENGINE);
	/* Close-on-exec, and blocking whatever its maker wanted. */
	if (fcntl(CONTROL, F_SETFD, FD_CLOEXEC) != 0 || fcntl(CONTROL, F_SETFL, 0) != 0)
		_exit(EXIT_ENGINE);
}

/*** Supervision ***/

#define JOB_SIGNAL 1u /* arg: number of the signal for the job's process group */

/* finish reports the job's end and ends the sandbox with the same status. */
static _Noreturn void finish(int status)
{
	struct rusage usage;
	uint64_t cpu = 0;

	if (getrusage(RUSAGE_CHILDREN, &usage) == 0)
		cpu = (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
		      (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
	send_exit(0, status, cpu);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* reap collects dead children, ours and those that were left to us. It does not
 * return once the job is among them, and returns true if more may be waiting. */
static bool reap(pid_t job)
{
	for (int i = 0; i < REAP_BATCH; i++) {
		int status;
		pid_t pid = waitpid(-1, &status, WNOHANG | __WALL);

		if (pid < 0)
			_exit(EXIT_ENGINE); /* the job is not reaped yet, so there is a child */
		if (pid == 0)
			return false;
		if (pid == job)
			finish(status);
	}
	return true;
}

/* receive_messages acts on what the monitor sent after the job. Its end of file
 * is the monitor's death, and ours. */
static void receive_messages(pid_t job)
{
	static struct { uint32_t type, arg; } message;
	static size_t have;
	ssize_t n = recv(CONTROL, (char *)&message + have, sizeof message - have, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0)
		_exit(EXIT_ENGINE);
	have += (size_t)n;
	if (have < sizeof message)
		return;
	have = 0;
	if (message.type != JOB_SIGNAL || message.arg < 1 || message.arg > SIGNAL_MAX)
		fail(STAGE_PROTOCOL, EPROTO);
	kill(-job, (int)message.arg); /* ESRCH: it ended before the message came */
}

/* supervise waits for the first of the job's exit, the end of the control socket,
 * and the deadline. */
static _Noreturn void supervise(pid_t job, int64_t deadline)
{
	sigset_t none;

	sigemptyset(&none);
	for (;;) {
		struct pollfd control = { .fd = CONTROL, .events = POLLIN };
		struct timespec wait = { 0, 0 };
		bool more = reap(job);
		int64_t left = deadline ? deadline - now() : 0;
		int n;

		if (deadline && left <= 0) {
			send_frame(0, FRAME_DEADLINE, 0, 0, 0);
			_exit(EXIT_DEADLINE);
		}
		if (!more) {
			wait.tv_sec = left / 1000000000;
			wait.tv_nsec = left % 1000000000;
		}
		n = ppoll(&control, 1, more || deadline ? &wait : NULL, &none);
		if (n < 0 && errno != EINTR)
			_exit(EXIT_ENGINE);
		if (n > 0)
			receive_messages(job);
	}
}

/*** Main ***/

int main(void)
{
	struct message first;
	struct job *job = &first.job;
	int64_t deadline, begun;
	pid_t pid;

	shield();
	send_frame(0, FRAME_READY, 0, 0, 0);
	receive_first(&first);
	write_files(job);
	if (first.kind == MESSAGE_SESSION)
		serve(job);
	deadline = job->deadline;
	begun = now(); /* taken before: the job may run, and end, before we do again */
	pid = start_job(job);
	forget_job(job);
	send_frame_at(begun, 0, FRAME_STARTED, pid, 0, 0);
	supervise(pid, deadline);
}
