/*
 * engine-guest: the engine's helper inside a sandbox.
 *
 * Two commands that the engine starts as it starts any other program, with the
 * sandbox's own user and no right beside it, in images that may hold neither a
 * shell nor a libc:
 *
 *	pty     gives a program a terminal, whose keys and size come framed (pty.c)
 *	files   reads, writes and watches files, asked over stdin (files.c)
 *
 * Whatever reads what we say must not believe it: the programs of the sandbox have
 * our user id, and can do to us all that they can do to each other.
 */
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static void say(const char *text)
{
	(void)!write(2, text, strlen(text));
}

/* complain says on stderr what went wrong; there is nobody to tell if that fails. */
void complain(const char *what, const char *object, int error)
{
	say("engine-guest: cannot ");
	say(what);
	say(object);
	say(": ");
	say(strerror(error));
	say("\n");
}

_Noreturn void fail(const char *what, int error)
{
	complain(what, "", error);
	_exit(EXIT_ENGINE);
}

bool write_all(int fd, const void *data, size_t size)
{
	for (const char *at = data; size > 0;) {
		ssize_t n = write(fd, at, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		at += n;
		size -= (size_t)n;
	}
	return true;
}

/* read_all fills data, or returns false at the end of what comes. */
bool read_all(int fd, void *data, size_t size)
{
	for (char *at = data; size > 0;) {
		ssize_t n = read(fd, at, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		at += n;
		size -= (size_t)n;
	}
	return true;
}

int main(int argc, char **argv)
{
	if (argc >= 3 && strcmp(argv[1], "pty") == 0)
		pty(argv + 2);
	if (argc == 2 && strcmp(argv[1], "files") == 0)
		files();
	say("usage: guest pty [ROWSxCOLUMNS] -- COMMAND [ARG...] | guest files\n");
	return EXIT_ENGINE;
}
