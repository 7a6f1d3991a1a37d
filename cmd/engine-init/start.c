/*
 * Starting a program.
 *
 * The job's child shares our memory until execve, as vfork's does. Sharing is what
 * makes errors exact: the child stores errno and the stage it reached, and we,
 * suspended until it is gone, read them. It is safe because the child is our own
 * code, we do not run beside it, and its stack is its own. It also needs no copy of
 * the secrets.
 *
 * An exec's child cannot be waited for like that: other programs of the session run
 * beside it, under the same user id, and one that stops it would stop us with it. It
 * is a fork, which writes the same two numbers into a pipe; the pipe ends without
 * them once execve has succeeded.
 */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
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

/* What the job's child reports; the parent is suspended while it writes. */
static volatile struct failure failure;

/* Where an exec's child writes the same, -1 in the job's. */
static int report_to = -1;

static _Noreturn void give_up(enum stage stage, int error)
{
	struct failure told = { stage, error };

	failure.error = error;
	failure.stage = stage;
	if (report_to >= 0)
		(void)!write(report_to, &told, sizeof told);
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

/* attach_filter puts the program's filter on this thread alone; execve hands it on. */
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

/* child becomes the program.
 *
 * SECURITY: the program holds its stdio and no other descriptor.
 * A directory of the host behind a stray one is a way out of the sandbox.
 * Holds because: everything above 2 is closed, and an error there is fatal; the
 * working directory is entered afterwards, so that it cannot lead through
 * /proc/self/fd either. An exec's child keeps the pipe for its report, which execve
 * closes and which is no directory. Not covered: what the monitor passes as stdio.
 * Checked by: TestJobInheritsNothing, TestExecInheritsNothing. */
static int child(void *arg)
{
	const struct job *job = arg;
	unsigned first = CONTROL;

	if (report_to >= 0) {
		if (dup3(report_to, CONTROL, O_CLOEXEC) != CONTROL)
			give_up(STAGE_FORK, errno);
		report_to = CONTROL;
		first++;
	}
	if (setsid() < 0)
		give_up(STAGE_FORK, errno);
	for (int i = 0; i < 3; i++)
		if (dup2(job->stdio[i], i) != i)
			give_up(STAGE_FORK, errno);
	if (syscall(SYS_close_range, first, ~0u, 0) != 0)
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

static char stack[16 << 10] __attribute__((aligned(16)));

/* start_job returns the pid of the running job. */
pid_t start_job(struct job *job)
{
	pid_t pid = clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, job);

	if (pid < 0)
		fail(STAGE_FORK, errno);
	if (failure.stage != 0)
		fail(failure.stage, failure.error);
	return pid;
}

/* start_exec makes a child that becomes the exec's program, and returns its pid at
 * once; -1 with errno where none could be made. *report ends without a byte when the
 * program runs, or after a struct failure. */
pid_t start_exec(struct job *exec, int *report)
{
	int ends[2], error;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC) != 0)
		return -1;
	report_to = ends[1];
	pid = clone(child, stack + sizeof stack, SIGCHLD, exec);
	error = errno;
	report_to = -1;
	close(ends[1]);
	if (pid < 0)
		close(ends[0]);
	else
		*report = ends[0];
	errno = error;
	return pid;
}
