/*
 * A session: programs started when the monitor says so, many at once, until it
 * hangs up or the session's deadline passes.
 *
 * One loop does everything and waits for nothing else. A program whose start fails,
 * for whatever reason, is an ERR frame of that exec alone; a malformed message ends
 * the session, since what follows it cannot be understood.
 *
 * Any number of execs, up to STARTS_MAX, are between fork and execve at once; past
 * that no further message is taken from the socket until one of them is through. Dead
 * children, deadlines and the end of the socket are looked at meanwhile.
 *
 * SECURITY: no program of a session holds up process 1, or another's start for long.
 * They share a user id, so each may signal another's child before that has become a
 * program: stopped there, it would keep us waiting, deaf to the monitor's death.
 * Holds because: we never wait for a child outside of ppoll, which also watches
 * socket and clock, and other starts go on beside it; one that takes too long is
 * killed and reported as failed. Not covered: a program that stops or kills another,
 * or STARTS_MAX of them, in a sandbox that is theirs.
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
#define STARTS_MAX  16u /* each holds a descriptor, of which there may be few */
#define START_BOUND (INT64_C(10) * 1000000000)

struct exec {
	uint32_t id;
	pid_t pid;
	int64_t deadline; /* 0: none */

	/* Between fork and execve. */
	int report; /* the pipe that tells how it went; -1: the program runs */
	int64_t begun;
	uint64_t signals; /* that it is sent as soon as it is a program */
	bool dead;        /* reaped already */
	int status;
	uint64_t cpu;
};

static struct exec execs[EXECS_MAX]; /* that run or start */
static unsigned count, starts;

/*** Ends ***/

/* drop forgets an exec; the last takes its place. */
static void drop(struct exec *e)
{
	*e = execs[--count];
}

/* ended takes note of a dead child. Most are orphans that were left to us. */
static void ended(pid_t pid, int status, const struct rusage *usage)
{
	uint64_t cpu = (uint64_t)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000 +
		       (uint64_t)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);

	for (struct exec *e = execs; e < execs + count; e++) {
		if (e->pid != pid || e->dead)
			continue;
		if (e->report < 0) {
			send_exit(e->id, status, cpu);
			drop(e);
		} else {
			e->dead = true; /* the pipe says whether it was the program */
			e->status = status;
			e->cpu = cpu;
		}
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
	struct exec e;

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
	/* The time is taken before: the program may run, and end, before we do again. */
	e = (struct exec){ .id = message->id, .deadline = job->deadline, .begun = now() };
	e.pid = start_exec(job, &e.report);
	if (e.pid < 0) {
		send_frame(message->id, FRAME_ERR, errno, STAGE_FORK, 0);
	} else {
		execs[count++] = e;
		starts++;
	}
	forget_job(job);
}

/* settle ends a start, which failed if there is an error. */
static void settle(struct exec *e, struct failure why)
{
	close(e->report);
	e->report = -1;
	starts--;
	if (why.stage != 0) {
		send_frame(e->id, FRAME_ERR, why.error, why.stage, 0);
		drop(e);
		return;
	}
	send_frame_at(e->begun, e->id, FRAME_STARTED, e->pid, 0, 0);
	if (e->dead) {
		send_exit(e->id, e->status, e->cpu);
		drop(e);
		return;
	}
	for (int signo = 1; signo <= SIGNAL_MAX; signo++)
		if (e->signals >> (signo - 1) & 1)
			kill(-e->pid, signo);
}

/* hear reads what became of a start. */
static void hear(struct exec *e)
{
	struct failure why = { 0, 0 };
	ssize_t n = read(e->report, &why, sizeof why);

	if (n < 0 && errno == EINTR)
		return;
	if (n != 0 && n != sizeof why)
		why = (struct failure){ STAGE_FORK, EIO };
	settle(e, why);
}

/*** Messages ***/

static uint32_t strings(char *const *list)
{
	uint32_t n = 0;

	while (list[n] != NULL)
		n++;
	return n;
}

/* pass_on sends an exec's programs a signal. A start has no process group yet, so
 * it has the signal later. */
static void pass_on(uint32_t id, uint32_t signo)
{
	for (struct exec *e = execs; e < execs + count; e++) {
		if (e->id != id)
			continue;
		if (e->report < 0)
			kill(-e->pid, (int)signo);
		else
			e->signals |= UINT64_C(1) << (signo - 1);
		return;
	}
	/* It ended before the message came. */
}

/* obey does what the messages say that are there, for as long as execs may start. */
static void obey(struct job *session)
{
	struct message message;
	uint32_t env = strings(session->envp);

	while (starts < STARTS_MAX && receive_later(&message, env))
		switch (message.kind) {
		case MESSAGE_EXEC:
			begin(&message, session);
			break;
		case MESSAGE_SIGNAL:
			pass_on(message.id, message.arg);
			break;
		default:
			session->deadline = message.job.deadline;
		}
}

/*** Deadlines ***/

/* sooner is the earlier of two times, of which 0 is never. */
static int64_t sooner(int64_t a, int64_t b)
{
	return a == 0 || (b != 0 && b < a) ? b : a;
}

/* enforce ends what is over its time, and returns when it is to be called next, 0: not
 * by itself. */
static int64_t enforce(int64_t session)
{
	int64_t t = now(), next = session;

	if (session && session <= t) {
		send_frame(0, FRAME_DEADLINE, 0, 0, 0);
		_exit(EXIT_DEADLINE);
	}
	for (unsigned i = count; i-- > 0;) { /* backwards: settle may drop it */
		struct exec *e = &execs[i];

		if (e->report >= 0) {
			if (e->begun + START_BOUND > t) {
				next = sooner(next, e->begun + START_BOUND);
				continue;
			}
			kill(e->pid, SIGKILL);
			settle(e, (struct failure){ STAGE_FORK, ETIMEDOUT });
			continue;
		}
		if (e->deadline && e->deadline <= t) {
			kill(-e->pid, SIGKILL);
			e->deadline = 0;
		}
		next = sooner(next, e->deadline);
	}
	return next;
}

/* await waits until something happens, for at most *wait, NULL: for ever. It returns
 * true if the socket has a message. */
static bool await(const struct timespec *wait)
{
	static struct pollfd fds[1 + STARTS_MAX];
	sigset_t none;
	nfds_t n = 0;

	sigemptyset(&none);
	fds[n++] = (struct pollfd){ .fd = CONTROL, .events = starts < STARTS_MAX ? POLLIN : 0 };
	for (unsigned i = count; i-- > 0;)
		if (execs[i].report >= 0)
			fds[n++] = (struct pollfd){ .fd = execs[i].report, .events = POLLIN };
	if (ppoll(fds, n, wait, &none) < 0) {
		if (errno != EINTR)
			_exit(EXIT_ENGINE);
		return false;
	}
	if (fds[0].revents & ~POLLIN)
		_exit(EXIT_ENGINE); /* the monitor is gone */
	n = 1;
	for (unsigned i = count; i-- > 0;) /* the same order; hear may drop it */
		if (execs[i].report >= 0 && fds[n++].revents)
			hear(&execs[i]);
	return fds[0].revents;
}

/* serve is the session. */
_Noreturn void serve(struct job *session)
{
	forget_files(session);
	send_frame(0, FRAME_SERVING, 0, 0, 0);
	for (;;) {
		struct timespec wait = { 0, 0 };
		bool more = reap();
		int64_t next = enforce(session->deadline), left = next ? next - now() : 0;

		if (!more && left > 0) {
			wait.tv_sec = left / 1000000000;
			wait.tv_nsec = left % 1000000000;
		}
		if (await(more || next ? &wait : NULL))
			obey(session);
	}
}
