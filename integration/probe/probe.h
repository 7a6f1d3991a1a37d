/* probe is the program that the black-box tests run inside sandboxes. Each
 * command does one thing to its surroundings and reports it as "key value"
 * lines on stdout, one a line, so that the tests can hold it against the promise. */
#ifndef PROBE_H
#define PROBE_H

#include <stddef.h>

/* A command gets what follows its name, and returns the exit status. */
typedef int command(int argc, char **argv);

command posture, writable, syscalls, guards, strangers, masked;
command burn, touch, spread, children, bomb, fill, shrug, raise_signal, hold, emit, slurp, order, nap, leave, secret;

/* number reads a decimal argument, or ends the program. */
long long number(const char *text);

/* show copies a whole file to stdout, each line with "key " in front; a file that
 * cannot be read is reported with its errno. */
void show(const char *key, const char *path);

#endif
