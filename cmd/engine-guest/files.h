/*
 * What the parts of the protocol of files.c share.
 */
#ifndef ENGINE_GUEST_FILES_H
#define ENGINE_GUEST_FILES_H

#include "guest.h"

#include <limits.h>

enum { NOFOLLOW = 1, DIRECTORY = 2, PARENTS = 4, EXCLUSIVE = 8, RECURSIVE = 16 };

struct request {
	uint32_t size, id;
	uint8_t op, flags;
	uint16_t zero;
	uint32_t base;
};
_Static_assert(sizeof(struct request) == 16, "a request's header has 16 bytes");

/* A handle is free while its descriptor is 0. One with a temp is a file being made. */
struct handle {
	int fd;
	struct place place;
	char temp[32];
	uint32_t mode;
	bool exclusive;
};

/* The request that is being answered, and two places for its paths. */
extern struct request request;
extern char path[PATH_MAX], other[PATH_MAX];

/* files.c: parts of the request */
_Noreturn void malformed(void);
const void *take(size_t size);
uint16_t take16(void);
uint32_t take32(void);
uint64_t take64(void);
void take_text(char text[PATH_MAX], size_t size);
void take_path(char text[PATH_MAX]);

/* files.c: handles and places; an int is 0 or an errno */
struct handle *base_handle(void);
struct handle *new_handle(void);
void drop(struct handle *handle);
int find(const char *text, bool parents, struct place *place);
int nofollow(void);
int result(int returned);

/* change.c: each answers one request, with 0 or an errno */
int op_create(void);
int op_write(void);
int op_commit(void);
int op_close(void);
int op_mkdir(void);
int op_rename(void);
int op_remove(void);
int op_symlink(void);
int op_link(void);
int op_chmod(void);

#endif
