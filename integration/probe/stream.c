#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "probe.h"

static int put(int fd, const char *data, size_t size)
{
	while (size > 0) {
		ssize_t n = write(fd, data, size);
		if (n <= 0)
			return -1;
		data += n;
		size -= (size_t)n;
	}
	return 0;
}

/* fnv is a checksum that a slow machine can afford. */
static unsigned long long fnv(unsigned long long h, const char *data, size_t size)
{
	for (size_t i = 0; i < size; i++)
		h = (h ^ (unsigned char)data[i]) * 0x100000001b3ULL;
	return h;
}

/* emit BYTES [TEXT] writes that much to stdout: every byte value in a pattern that
 * does not repeat with any power of two, or TEXT over and over. It stops where its
 * reader does. */
int emit(int argc, char **argv)
{
	static char block[251 * 256];
	long long left = number(argc > 0 ? argv[0] : NULL);
	size_t size = sizeof block;
	for (size_t i = 0; i < size; i++)
		block[i] = (char)(i % 251 + i / 251);
	if (argc > 1)
		for (size_t i = 0, n = strlen(argv[1]); (size = i) + n <= sizeof block; i += n)
			memcpy(block + i, argv[1], n);
	while (left > 0) {
		size_t n = left < (long long)size ? (size_t)left : size;
		if (put(1, block, n))
			return 3;
		left -= (long long)n;
	}
	return 0;
}

static void sum(int fd)
{
	static char buf[65536];
	unsigned long long h = 0xcbf29ce484222325ULL;
	long long total = 0;
	ssize_t n;
	while ((n = read(fd, buf, sizeof buf)) > 0) {
		h = fnv(h, buf, (size_t)n);
		total += n;
	}
	printf("read %lld fnv %016llx end %zd\n", total, h, n);
}

/* slurp reads stdin to its end and says how much there was, with its checksum. */
int slurp(int argc, char **argv)
{
	(void)argc, (void)argv;
	sum(0);
	return 0;
}

/* secret NAME... describes variables, or the files that they name, without their
 * contents. */
int secret(int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		const char *value = getenv(argv[i]);
		struct stat st;
		if (!value) {
			printf("%s unset\n", argv[i]);
			continue;
		}
		int fd = *value == '/' ? open(value, O_RDONLY) : -1;
		if (fd < 0) {
			printf("%s variable %zu fnv %016llx\n", argv[i], strlen(value), fnv(0xcbf29ce484222325ULL, value, strlen(value)));
			continue;
		}
		fstat(fd, &st);
		printf("%s file %s mode %04o uid %d ", argv[i], value, (unsigned)st.st_mode & 07777, (int)st.st_uid);
		sum(fd);
		close(fd);
	}
	return 0;
}

/* order N MS writes N numbered lines, to stdout and stderr in turn, so far apart. */
int order(int argc, char **argv)
{
	long long n = number(argc > 0 ? argv[0] : NULL);
	useconds_t gap = (useconds_t)number(argc > 1 ? argv[1] : NULL) * 1000;
	for (long long i = 0; i < n; i++) {
		char line[32];
		int size = snprintf(line, sizeof line, "line %lld\n", i);
		if (put(i % 2 ? 2 : 1, line, (size_t)size))
			return 3;
		usleep(gap);
	}
	return 0;
}
