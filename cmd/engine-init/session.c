/*
 * A session: programs started when the monitor says so, many at once, until it
 * hangs up or the session's deadline passes.
 *
 * One loop does everything and waits for nothing else. A program whose start fails,
 * for whatever reason, is an ERR frame of that exec alone; a malformed message ends
 * the session, since what follows it cannot be understood.
 *
 * Execs are started one after the other: while one is between fork and execve, no
 * further message is taken from the socket. Dead children, deadlines and the end of
 * the socket are looked at meanwhile.
 *
 * SECURITY: no program of a session holds up process 1, or another's start for long.
 * They share a user id, so each may signal another's child before that has become a
 * program: stopped there, it would keep us waiting, deaf to the monitor's death.
 * Holds because: we never wait for a child outside of ppoll, which also watches
 * socket and clock; a start that takes too long is killed and reported as failed.
 * Not covered: a program that stops or kills another, in a sandbox that is theirs.
 * Checked by: TestStoppedStartsHoldUpNothing.
 */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXECS_MAX   1024u
#define START_BOUND (INT64_C(10) * 1000000000)

struct exec {
	uint32_t id;
	pid_t pid;
	int64_t deadline; /* 0: none */
};

static struct exec execs[EXECS_MAX]; /* that run */
static unsigned count;

/* The exec between fork and execve. */
static struct {
	struct exec exec;
	int report; /* -1: there is none */
	int64_t begun;
	bool dead; /* reaped already */
	int status;
	uint64_t cpu;
} starting = { .report = -1 };

/*** Ends ***/

static void drop(unsigned i)
{
	execs[i] = execs[--count];
}

/* ended takes note of a dead child. Most are orphans that were left to us. */
static void ended(pid_t pid, int status, const struct rusage *usage)
{
	uint64_t cpu = (uint64_t)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000 +
		       (uint64_t)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);

	if (starting.report >= 0 && pid == starting.exec.pid) {
		starting.dead = true; /* the pipe says whether it was the program */
		starting.status = status;
		starting.cpu = cpu;
		return;
	}
	for (unsigned i = 0; i < count; i++)
		if (execs[i].pid == pid) {
			send_exit(execs[i].id, status, cpu);
			drop(i);
			return;
		}
}

/* reap collects dead children, and returns true if more may be waiting. */
static bool reap(void)
{
	for (int i = 0; i < REAP_BATCH; i++) {
		struct rusage usage;
		int status;
		pid_t pid = wait4(-1, &status, WNOHANG | __WALL, &usage);

		if (pid <= 0)
			return false; /* none is dead, or there is none at all */
		ended(pid, status, &usage);
	}
	return true;
}

/*** Starts ***/

/* add_environment appends to an exec's variables those of the session that it does
 * not set itself. Its table has room for them. */
static void add_environment(char **envp, char *const *session)
{
	char **end = envp;

	while (*end != NULL)
		end++;
	for (char **to = end; *session != NULL; session++) {
		size_t name = strcspn(*session, "=") + 1;
		char **own = envp;

		while (own < end && strncmp(*own, *session, name) != 0)
			own++;
		if (own < end)
			continue;
		*to++ = *session;
		*to = NULL;
	}
}

/* begin forks the exec's child. */
static void begin(struct message *message, const struct job *session)
{
	struct job *job = &message->job;
	int report;

	for (unsigned i = 0; i < count; i++)
		if (execs[i].id == message->id)
			fail(STAGE_PROTOCOL, EEXIST);
	if (job->memory == NULL || count == EXECS_MAX) {
		send_frame(message->id, FRAME_ERR, job->memory == NULL ? ENOMEM : EAGAIN, STAGE_FORK, 0);
		forget_job(job);
		return;
	}
	add_environment(job->envp, session->envp);
	job->filter = session->filter;
	job->filters = session->filters;
	job->cpus = session->cpus;
	job->cpus_size = session->cpus_size;
	memset(&starting, 0, sizeof starting);
	starting.begun = now(); /* taken before: the program may run, and end, before we do again */
	starting.exec = (struct exec){ message->id, start_exec(job, &report), job->deadline };
	starting.report = starting.exec.pid < 0 ? -1 : report;
	if (starting.exec.pid < 0)
		send_frame(message->id, FRAME_ERR, errno, STAGE_FORK, 0);
	forget_job(job);
}

/* settle ends the start under way, which failed if there is an error. */
static void settle(struct failure why)
{
	close(starting.report);
	starting.report = -1;
	if (why.stage != 0) {
		send_frame(starting.exec.id, FRAME_ERR, why.error, why.stage, 0);
		return;
	}
	send_frame_at(starting.begun, starting.exec.id, FRAME_STARTED, starting.exec.pid, 0, 0);
	if (starting.dead)
		send_exit(starting.exec.id, starting.status, starting.cpu);
	else
		execs[count++] = starting.exec;
}

/* hear reads what became of the start under way. */
static void hear(void)
{
	struct failure why = { 0, 0 };
	ssize_t n = read(starting.report, &why, sizeof why);

	if (n < 0 && errno == EINTR)
		return;
	if (n != 0 && n != sizeof why)
		why = (struct failure){ STAGE_FORK, EIO };
	settle(why);
}

/*** Messages ***/

static uint32_t strings(char *const *list)
{
	uint32_t n = 0;

	while (list[n] != NULL)
		n++;
	return n;
}

/* obey does what the messages say that are there, up to one that starts an exec. */
static void obey(struct job *session)
{
	struct message message;
	uint32_t env = strings(session->envp);

	while (starting.report < 0 && receive_later(&message, env))
		switch (message.kind) {
		case MESSAGE_EXEC:
			begin(&message, session);
			break;
		case MESSAGE_SIGNAL:
			for (unsigned i = 0; i < count; i++)
				if (execs[i].id == message.id)
					kill(-execs[i].pid, (int)message.arg);
			break; /* of none: it ended before the message came */
		default:
			session->deadline = message.job.deadline;
		}
}

/*** Deadlines ***/

/* enforce ends what is over its time, and returns when it is to be called next, 0: not
 * by itself. */
static int64_t enforce(int64_t session)
{
	int64_t t = now(), next = session;

	if (session && session <= t) {
		send_frame(0, FRAME_DEADLINE, 0, 0, 0);
		_exit(EXIT_DEADLINE);
	}
	for (unsigned i = 0; i < count; i++) {
		struct exec *e = &execs[i];

		if (e->deadline && e->deadline <= t) {
			kill(-e->pid, SIGKILL);
			e->deadline = 0;
		}
		if (e->deadline && (next == 0 || e->deadline < next))
			next = e->deadline;
	}
	if (starting.report < 0)
		return next;
	if (starting.begun + START_BOUND <= t) {
		kill(starting.exec.pid, SIGKILL);
		settle((struct failure){ STAGE_FORK, ETIMEDOUT });
	} else if (next == 0 || starting.begun + START_BOUND < next) {
		next = starting.begun + START_BOUND;
	}
	return next;
}

/* serve is the session. */
_Noreturn void serve(struct job *session)
{
	sigset_t none;

	sigemptyset(&none);
	forget_files(session);
	send_frame(0, FRAME_SERVING, 0, 0, 0);
	for (;;) {
		struct timespec wait = { 0, 0 };
		bool more = reap();
		int64_t next = enforce(session->deadline), left = next ? next - now() : 0;
		struct pollfd fds[2] = {
			{ .fd = CONTROL, .events = (short)(starting.report < 0 ? POLLIN : 0) },
			{ .fd = starting.report, .events = POLLIN },
		};

		if (!more && left > 0) {
			wait.tv_sec = left / 1000000000;
			wait.tv_nsec = left % 1000000000;
		}
		if (ppoll(fds, 2, more || next ? &wait : NULL, &none) < 0) {
			if (errno != EINTR)
				_exit(EXIT_ENGINE);
			continue;
		}
		if (fds[0].revents & ~POLLIN)
			_exit(EXIT_ENGINE); /* the monitor is gone */
		if (fds[1].revents)
			hear();
		if (fds[0].revents)
			obey(session);
	}
}
