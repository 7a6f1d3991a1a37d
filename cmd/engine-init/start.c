/*
 * Starting the job: a child that shares our memory until execve, as vfork's does.
 *
 * Sharing is what makes errors exact: the child stores errno and the stage it
 * reached, and we, suspended until it is gone, read them. It is safe because the
 * child is our own code, we do not run beside it, and its stack is its own. It
 * also needs no copy of the secrets.
 */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECCOMP_MODE_FILTER 2
#define SIGNAL_COUNT        64
#define DEFAULT_PATH        "/usr/local/bin:/usr/bin:/bin"

/* What the child reports; the parent is suspended while it writes. */
static volatile struct {
	enum stage stage; /* 0: it got as far as execve */
	int error;
} failure;

static _Noreturn void give_up(enum stage stage, int error)
{
	failure.error = error;
	failure.stage = stage;
	_exit(EXIT_ENGINE);
}

/*** Signals ***/

/* set_signals gives every signal one disposition. It uses the system call, since
 * libc keeps three signals for itself, and those have to be covered too. KILL and
 * STOP refuse, as they should. */
static void set_signals(void (*handler)(int))
{
	/* The kernel's struct begins with the handler on every architecture; flags,
	 * restorer and mask are zero. */
	struct { void (*handler)(int); unsigned long rest[3]; } action = { handler, { 0 } };

	for (int signo = 1; signo <= SIGNAL_COUNT; signo++)
		(void)syscall(SYS_rt_sigaction, signo, &action, NULL, SIGNAL_COUNT / 8);
}

void ignore_signals(void)
{
	set_signals(SIG_IGN);
}

static void restore_signals(void)
{
	sigset_t none;

	set_signals(SIG_DFL);
	sigemptyset(&none);
	if (sigprocmask(SIG_SETMASK, &none, NULL) != 0)
		give_up(STAGE_FORK, errno);
}

/*** Finding the program ***/

static const char *search_path(char *const *envp)
{
	for (; *envp != NULL; envp++)
		if (strncmp(*envp, "PATH=", 5) == 0)
			return *envp + 5;
	return DEFAULT_PATH;
}

/* execute does what execvpe(3) does, with the job's own PATH, except that a file
 * the kernel does not know how to run is an error and not a shell script. It
 * returns the errno to report. EACCES somewhere on PATH outranks ENOENT: the
 * program is there and may not be run. */
static int execute(char *const *argv, char *const *envp)
{
	static char file[PATH_MAX];
	size_t name = strlen(argv[0]);
	bool denied = false;

	if (name == 0)
		return ENOENT;
	if (strchr(argv[0], '/') != NULL) {
		execve(argv[0], argv, envp);
		return errno;
	}
	for (const char *dir = search_path(envp), *end;; dir = end + 1) {
		size_t length;

		end = strchrnul(dir, ':');
		length = (size_t)(end - dir);
		if (length + 1 + name < sizeof file) {
			memcpy(file, dir, length);
			file[length] = '/';
			/* An empty element is the working directory. */
			memcpy(file + length + (length > 0), argv[0], name + 1);
			execve(file, argv, envp);
			if (errno == EACCES)
				denied = true;
			else if (errno != ENOENT && errno != ENOTDIR)
				return errno;
		}
		if (*end == 0)
			return denied ? EACCES : ENOENT;
	}
}

/*** The child ***/

/* attach_filter puts the job's filter on this thread alone; execve hands it on. */
static void attach_filter(const struct job *job)
{
	struct {
		unsigned short count;
		const void *filter;
	} program = { (unsigned short)job->filters, job->filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		give_up(STAGE_FILTER, errno);
	if (job->filters > 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0)
		give_up(STAGE_FILTER, errno);
}

/* child becomes the job.
 *
 * SECURITY: the job holds its stdio and no other descriptor.
 * A directory of the host behind a stray one is a way out of the sandbox.
 * Holds because: everything above 2 is closed, and an error there is fatal; the
 * working directory is entered afterwards, so that it cannot lead through
 * /proc/self/fd either. Not covered: what the monitor passes as stdio.
 * Checked by: TestJobInheritsNothing. */
static int child(void *arg)
{
	const struct job *job = arg;

	if (setsid() < 0)
		give_up(STAGE_FORK, errno);
	for (int i = 0; i < 3; i++)
		if (dup2(job->stdio[i], i) != i)
			give_up(STAGE_FORK, errno);
	if (syscall(SYS_close_range, 3, ~0u, 0) != 0)
		give_up(STAGE_FORK, errno);
	restore_signals();
	if (chdir(job->cwd) != 0)
		give_up(STAGE_CWD, errno);
	if (job->cpus_size > 0 &&
	    syscall(SYS_sched_setaffinity, 0, job->cpus_size, job->cpus) != 0)
		give_up(STAGE_AFFINITY, errno);
	attach_filter(job);
	give_up(STAGE_EXEC, execute(job->argv, job->envp));
}

/* start_job returns the pid of the running job. */
pid_t start_job(struct job *job)
{
	static char stack[16 << 10] __attribute__((aligned(16)));
	pid_t pid = clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, job);

	if (pid < 0)
		fail(STAGE_FORK, errno);
	if (failure.stage != 0)
		fail(failure.stage, failure.error);
	return pid;
}
