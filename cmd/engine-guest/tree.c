/*
 * Ways through the tree of files: from a path to an open directory and a name, and
 * down through everything that is to be removed.
 */
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Below the descriptors that a sandbox's program may have, and what its stack holds. */
#define DEPTH_MAX 512

static bool is_name(const char *name, size_t size)
{
	return size > 0 && size <= NAME_MAX && !(size == 1 && name[0] == '.') &&
	       !(size == 2 && name[0] == '.' && name[1] == '.');
}

/* enter opens a directory in dir, and closes dir. */
static int enter(int dir, const char *name, bool follow, bool make, int *entered)
{
	const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW);
	int error = 0;

	*entered = openat(dir, name, flags);
	if (*entered < 0 && errno == ENOENT && make) {
		/* The mode is set again, since making applies the umask. Who was faster
		 * may have it as he likes. */
		if (mkdirat(dir, name, 0755) == 0)
			(void)fchmodat(dir, name, 0755, 0);
		*entered = openat(dir, name, flags);
	}
	if (*entered < 0)
		error = errno;
	close(dir);
	return error;
}

/* resolve finds the directory and the last name of a path. base is -1 for an absolute
 * path; otherwise the directory in which a relative one begins, and then no symbolic
 * link on the way is followed: whoever walks a tree by names that he was told stays in
 * it. Directories on the way are made if that is asked for. */
int resolve(int base, const char *path, bool parents, struct place *place)
{
	bool follow = base < 0;
	int error = 0;

	if (follow) {
		place->dir = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
		path += strspn(path, "/");
	} else {
		place->dir = fcntl(base, F_DUPFD_CLOEXEC, 0);
	}
	if (place->dir < 0)
		return errno;
	for (;;) {
		size_t size = strcspn(path, "/");
		const char *rest = path + size + strspn(path + size, "/");
		bool itself = *rest == 0 && (*path == 0 || strcmp(path, ".") == 0);

		if (!itself && !is_name(path, size))
			error = size > NAME_MAX ? ENAMETOOLONG : EINVAL;
		else if (itself)
			size = 0;
		memcpy(place->name, size > 0 && error == 0 ? path : ".", size > 0 && error == 0 ? size : 1);
		place->name[size > 0 && error == 0 ? size : 1] = 0;
		if (error == 0 && *rest != 0)
			error = enter(place->dir, place->name, follow, parents, &place->dir);
		else if (error != 0)
			close(place->dir);
		if (error != 0 || *rest == 0)
			return error;
		path = rest;
	}
}

/*** Removing ***/

struct entry {
	uint64_t ino;
	int64_t next;
	uint16_t size;
	uint8_t type;
	char name[];
};

static int remove_below(int dir, const char *name, int depth);

/* remove_one removes what has this name, a symbolic link as such. */
static int remove_one(int dir, const char *name, int depth)
{
	if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR)
		return errno;
	return remove_below(dir, name, depth + 1);
}

/* empty removes what is in a directory. It reads it again from the start until nothing
 * is left, since what is removed moves the rest. */
static int empty(int dir, int depth)
{
	char buffer[2048] __attribute__((aligned(8)));

	for (;;) {
		bool removed = false;
		long n;

		if (lseek(dir, 0, SEEK_SET) < 0)
			return errno;
		while ((n = syscall(SYS_getdents64, dir, buffer, sizeof buffer)) > 0)
			for (long at = 0; at < n;) {
				const struct entry *entry = (const struct entry *)(buffer + at);
				int error;

				at += entry->size;
				if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0)
					continue;
				if ((error = remove_one(dir, entry->name, depth)) != 0)
					return error;
				removed = true;
			}
		if (n < 0)
			return errno;
		if (!removed)
			return 0;
	}
}

static int remove_below(int dir, const char *name, int depth)
{
	int fd, error;

	if (depth > DEPTH_MAX)
		return ELOOP;
	/* A link that took the directory's place meanwhile is not followed. */
	fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : errno;
	error = empty(fd, depth);
	close(fd);
	if (error == 0 && unlinkat(dir, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
		error = errno;
	return error;
}

/* remove_tree removes a file, a link as such, or a directory with all that is below.
 * It is an error if nothing is there. */
int remove_tree(const struct place *place)
{
	if (unlinkat(place->dir, place->name, 0) == 0)
		return 0;
	return errno == EISDIR ? remove_below(place->dir, place->name, 0) : errno;
}
