#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "probe.h"

static double cpu_seconds(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* burn MS computes until it has used that much CPU time, and prints what it used. */
int burn(int argc, char **argv)
{
	double until = (double)number(argc > 0 ? argv[0] : NULL) / 1000;
	volatile unsigned x = 1;
	while (cpu_seconds() < until)
		for (int i = 0; i < 200000; i++)
			x = x * 1664525 + 1013904223;
	printf("cpu %.6f\n", cpu_seconds());
	return 0;
}

/* touch BYTES writes to every page of that much memory, and holds it for a moment. */
int touch(int argc, char **argv)
{
	size_t size = (size_t)number(argc > 0 ? argv[0] : NULL);
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) {
		printf("mmap error %d\n", errno);
		return 1;
	}
	for (size_t i = 0; i < size; i += 4096)
		p[i] = 1;
	printf("touched %zu\n", size);
	fflush(stdout);
	usleep(200000);
	return 0;
}

/* spread N BYTES lets N processes touch memory together. */
int spread(int argc, char **argv)
{
	long long n = number(argc > 0 ? argv[0] : NULL);
	for (long long i = 0; i < n; i++)
		if (!fork()) {
			touch(1, argv + 1);
			pause();
		}
	while (wait(NULL) > 0)
		;
	return 0;
}

/* children N starts up to N processes that live on together, then says how many it
 * got, and why no more. */
int children(int argc, char **argv)
{
	long long want = number(argc > 0 ? argv[0] : NULL), got = 0;
	int why = 0;
	for (; got < want; got++) {
		pid_t pid = fork();
		if (pid < 0) {
			why = errno;
			break;
		}
		if (!pid) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				pause();
		}
	}
	printf("children %lld errno %d\n", got, why);
	return 0;
}

/* bomb forks for ever, in every process, each in a session of its own and deaf to
 * what a program can be deaf to. */
int bomb(int argc, char **argv)
{
	(void)argc, (void)argv;
	puts("bombing");
	fflush(stdout);
	for (int s = 1; s < 32; s++)
		signal(s, SIG_IGN);
	for (;;)
		if (!fork())
			setsid();
}

/* fill PATH... writes into one file after another until each can hold no more. */
int fill(int argc, char **argv)
{
	static char block[65536];
	memset(block, 'x', sizeof block);
	for (int i = 0; i < argc; i++) {
		long long total = 0;
		int fd = open(argv[i], O_WRONLY | O_CREAT | O_APPEND, 0600);
		ssize_t n = 0;
		while (fd >= 0 && (n = write(fd, block, sizeof block)) > 0)
			total += n;
		printf("filled %s %lld errno %d\n", argv[i], total, errno);
		fflush(stdout);
		if (fd >= 0)
			close(fd);
	}
	return 0;
}

/* shrug MS... ends only by force: its grandchildren, in sessions of their own, hold
 * the output open and ignore every signal, and so does it. With "leave" the program
 * itself exits at once. */
int shrug(int argc, char **argv)
{
	for (int s = 1; s < 32; s++)
		signal(s, SIG_IGN);
	for (int i = 0; i < 3; i++)
		if (!fork()) {
			setsid();
			if (fork())
				_exit(0);
			prctl(PR_SET_NAME, "grandchild");
			for (;;)
				pause();
		}
	puts("here");
	fflush(stdout);
	if (argc > 0 && !strcmp(argv[0], "leave"))
		return 0;
	for (;;)
		pause();
}

/* raise N sends itself signal N. */
int raise_signal(int argc, char **argv)
{
	int s = (int)number(argc > 0 ? argv[0] : NULL);
	if (s == SIGSEGV) {
		volatile char *volatile nowhere = NULL;
		*nowhere = 1;
	}
	kill(getpid(), s);
	pause();
	return 0;
}

/* hold prints a word and waits for ever. */
int hold(int argc, char **argv)
{
	puts(argc > 0 ? argv[0] : "ready");
	fflush(stdout);
	for (;;)
		pause();
}

/* nap MS waits. */
int nap(int argc, char **argv)
{
	long long ms = number(argc > 0 ? argv[0] : NULL);
	struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
	nanosleep(&t, NULL);
	return 0;
}

/* leave N exits with that status. */
int leave(int argc, char **argv)
{
	return (int)number(argc > 0 ? argv[0] : NULL);
}
