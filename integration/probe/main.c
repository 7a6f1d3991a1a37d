#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "probe.h"

static const struct {
	const char *name;
	command *run;
} commands[] = {
	{"posture", posture},   {"writable", writable}, {"syscalls", syscalls}, {"guards", guards}, {"strangers", strangers},
	{"masked", masked},     {"burn", burn},         {"touch", touch},       {"spread", spread}, {"children", children},
	{"bomb", bomb},         {"fill", fill},         {"shrug", shrug},       {"raise", raise_signal}, {"hold", hold},
	{"emit", emit},         {"slurp", slurp},       {"order", order},       {"nap", nap},       {"leave", leave},   {"secret", secret},
};

static int run_one(int argc, char **argv)
{
	if (argc > 0)
		for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
			if (!strcmp(argv[0], commands[i].name))
				return commands[i].run(argc - 1, argv + 1);
	fprintf(stderr, "probe: no such command: %s\n", argc > 0 ? argv[0] : "");
	return 2;
}

/* Several commands, with a + between them, run one after another, each below a line
 * "== name". */
int main(int argc, char **argv)
{
	int several = 0, status = 0;
	for (int i = 1; i < argc; i++)
		several |= !strcmp(argv[i], "+");
	for (int from = 1, to; !status && from < argc; from = to + 1) {
		for (to = from; to < argc && strcmp(argv[to], "+"); to++)
			;
		if (several) {
			printf("== %s\n", argv[from]);
			fflush(stdout);
		}
		status = run_one(to - from, argv + from);
		fflush(stdout);
	}
	return status;
}

long long number(const char *text)
{
	char *end;
	long long n = text ? strtoll(text, &end, 10) : 0;
	if (!text || *end || end == text) {
		fprintf(stderr, "probe: not a number: %s\n", text ? text : "(none)");
		exit(2);
	}
	return n;
}

void show(const char *key, const char *path)
{
	char *line = NULL;
	size_t size = 0;
	ssize_t n = -1;
	FILE *f = fopen(path, "r");
	if (f) {
		errno = 0;
		while ((n = getline(&line, &size, f)) > 0)
			printf("%s %.*s\n", key, (int)(line[n - 1] == '\n' ? n - 1 : n), line);
	}
	if (!f || errno)
		printf("%s error %d\n", key, errno);
	free(line);
	if (f)
		fclose(f);
}
