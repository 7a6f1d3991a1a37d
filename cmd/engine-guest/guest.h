/*
 * What the parts of engine-guest share. The other end of both protocols is the Go
 * package engine/guest; they are described at the heads of pty.c and files.c.
 */
#ifndef ENGINE_GUEST_H
#define ENGINE_GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* Our own exit status when it is not the program's. */
enum {
	EXIT_ENGINE = 125, /* what comes in is not the protocol, or the terminal cannot be made */
	EXIT_NOT_EXECUTABLE = 126,
	EXIT_NOT_FOUND = 127,
};

/* guest.c */
_Noreturn void fail(const char *what, int error);
void complain(const char *what, const char *object, int error);
bool write_all(int fd, const void *data, size_t size);
bool read_all(int fd, void *data, size_t size);

/* pty.c */
_Noreturn void pty(char **argv);

/* files.c */
_Noreturn void files(void);
void send_event(uint32_t watch, const void *payload, size_t size);

/* A place in the tree: a name in an open directory. */
struct place {
	int dir; /* to be closed */
	char name[256];
};

/* tree.c: each returns 0 or an errno. */
int resolve(int base, const char *path, bool parents, struct place *place);
int remove_tree(const struct place *place);

/* watch.c */
int watch_descriptor(void);
int watch_add(const char *path, bool nofollow, uint32_t *watch);
int watch_remove(uint32_t watch);
void watch_read(void);

#endif
