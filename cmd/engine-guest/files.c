/*
 * files: the sandbox's files, for whoever is at the other end of stdin and stdout.
 *
 * This comment is the protocol's reference; the Go side is engine/guest. Numbers are
 * little endian. First we say
 *
 *	u32 magic "EGF1" | u32 version 1 | u32 largest payload, 262144 | u32 0
 *
 * Then each request has exactly one answer, in the order of the requests, of which
 * any number may be on their way.
 *
 *	request  u32 size | u32 id | u8 op | u8 flags | u16 0 | u32 base | payload
 *	answer   u32 size | u32 id | u8 kind | u8[3] 0 | u32 value | payload
 *
 * size is that of the payload. An answer of kind 1 is an error, its value the errno.
 * One of kind 0 has what the table says. Kind 2 is no answer but news of a watch: its
 * id is 0, its value the watch (0xffffffff: news were lost), its payload u32 mask and
 * u32 cookie, as inotify(7) has them, and the name below what is watched, if any.
 *
 *	op            payload                          answer: value, payload
 *	 1 STAT       path                             stat
 *	 2 LIST       u64 cookie, u32 most, path       1 if there is more; u64 cookie of
 *	                                               it, entries: stat, u16 size, name
 *	 3 OPEN       path                             handle, stat
 *	 4 READ       u64 offset, u32 most             bytes; none at the end
 *	 5 CREATE     u32 mode, path                   handle
 *	 6 WRITE      bytes, appended
 *	 7 COMMIT     i64 seconds, u32 nanoseconds
 *	 8 CLOSE
 *	 9 MKDIR      u32 mode, path
 *	10 RENAME     u16 size of the first, two paths
 *	11 REMOVE     path
 *	12 SYMLINK    u16 size of the target, target, path
 *	13 LINK       u16 size of the first, existing path, path
 *	14 READLINK   path                             target
 *	15 CHMOD      u32 mode, path
 *	16 WATCH      path                             watch
 *	17 UNWATCH    u32 watch
 *
 *	stat: u32 mode | u32 uid | u32 gid | u32 nanoseconds | u64 size | i64 mtime
 *
 * base is a handle: for READ, WRITE, COMMIT and CLOSE the one they are about, for
 * others the directory in which the path begins, 0 for none. Without a base a path is
 * absolute and symbolic links on it lead where they lead. With one it is relative,
 * or "." for the directory itself, and no link on it is followed, the last included.
 * "." and ".." are no names anywhere else.
 *
 * Flags: 1 the last name is not followed (STAT, OPEN, WATCH); 2 it must be a directory
 * (OPEN); 4 directories that are missing are made, 0755 (CREATE, MKDIR, SYMLINK,
 * LINK), and one that is there already is fine (MKDIR); 8 nothing may be there yet
 * (CREATE, RENAME); 16 all that is below too (REMOVE).
 *
 * OPEN is for directories and regular files. A file that CREATE makes has another
 * name until COMMIT, which puts it in its place at once, whatever was there short of
 * a directory, and closes it; its mode is the one asked for, or with 0xffffffff that
 * of the file it replaces, or 0644; nanoseconds of 0xffffffff leave the time alone.
 * CLOSE instead of COMMIT, or the end of stdin, leaves nothing of it. A link at the end
 * of a path is replaced, not followed.
 *
 * A request that is not of this form ends us with status 125.
 */
#define _GNU_SOURCE
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HELLO_MAGIC 0x31464745u /* "EGF1" */
#define VERSION     1u
#define PAYLOAD_MAX (256u << 10)
#define HANDLES     64u

enum op {
	OP_STAT = 1, OP_LIST, OP_OPEN, OP_READ, OP_CREATE, OP_WRITE, OP_COMMIT, OP_CLOSE, OP_MKDIR,
	OP_RENAME, OP_REMOVE, OP_SYMLINK, OP_LINK, OP_READLINK, OP_CHMOD, OP_WATCH, OP_UNWATCH,
};

enum kind { KIND_DONE = 0, KIND_ERROR = 1, KIND_EVENT = 2 };

struct answer {
	uint32_t size, id;
	uint8_t kind, zero[3];
	uint32_t value;
};
_Static_assert(sizeof(struct answer) == 16, "an answer's header has 16 bytes");

struct stat_wire {
	uint32_t mode, uid, gid, nanoseconds;
	uint64_t size;
	int64_t mtime;
};
_Static_assert(sizeof(struct stat_wire) == 32, "a stat has 32 bytes");

static struct handle handles[HANDLES];
struct request request;
static uint8_t in[PAYLOAD_MAX + 1], out[PAYLOAD_MAX];
static size_t in_at;     /* how much of in is parsed */
static size_t out_size;  /* the answer's payload */
static uint32_t value;   /* and value */

_Noreturn void malformed(void)
{
	fail("understand a request", EPROTO);
}

/*** Parts of a request ***/

const void *take(size_t size)
{
	const uint8_t *start = in + in_at;

	if (size > request.size - in_at)
		malformed();
	in_at += size;
	return start;
}

uint16_t take16(void)
{
	uint16_t n;

	memcpy(&n, take(sizeof n), sizeof n);
	return n;
}

uint32_t take32(void)
{
	uint32_t n;

	memcpy(&n, take(sizeof n), sizeof n);
	return n;
}

uint64_t take64(void)
{
	uint64_t n;

	memcpy(&n, take(sizeof n), sizeof n);
	return n;
}

/* take_text copies size bytes as a string. */
void take_text(char text[PATH_MAX], size_t size)
{
	const char *bytes = take(size);

	if (size == 0 || size >= PATH_MAX || memchr(bytes, 0, size) != NULL)
		malformed();
	memcpy(text, bytes, size);
	text[size] = 0;
}

char path[PATH_MAX], other[PATH_MAX];

/* take_path takes the rest of the request as a path, absolute where there is no base. */
void take_path(char text[PATH_MAX])
{
	take_text(text, request.size - in_at);
	if ((text[0] == '/') != (request.base == 0))
		malformed();
}

/*** Handles ***/

/* base_handle is the request's, NULL if there is none of that number. */
struct handle *base_handle(void)
{
	if (request.base == 0 || request.base > HANDLES || handles[request.base - 1].fd == 0)
		return NULL;
	return &handles[request.base - 1];
}

/* new_handle returns a free one, whose number is then the answer's value, or NULL. */
struct handle *new_handle(void)
{
	for (uint32_t i = 0; i < HANDLES; i++)
		if (handles[i].fd == 0) {
			memset(&handles[i], 0, sizeof handles[i]);
			value = i + 1;
			return &handles[i];
		}
	return NULL;
}

void drop(struct handle *handle)
{
	if (handle->fd > 0)
		close(handle->fd);
	handle->fd = 0;
	if (handle->temp[0] != 0) {
		(void)unlinkat(handle->place.dir, handle->temp, 0);
		close(handle->place.dir);
		handle->temp[0] = 0;
	}
}

int find(const char *text, bool parents, struct place *place)
{
	const struct handle *base = base_handle();

	if (request.base != 0 && base == NULL)
		return EBADF;
	return resolve(base == NULL ? -1 : base->fd, text, parents, place);
}

/* follow is AT_SYMLINK_NOFOLLOW where the last name must not be followed. */
int nofollow(void)
{
	return request.base != 0 || request.flags & NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0;
}

int result(int returned)
{
	return returned < 0 ? errno : 0;
}

/*** Looking ***/

static void put_stat(const struct stat *st)
{
	struct stat_wire wire = {
		st->st_mode, st->st_uid, st->st_gid, (uint32_t)st->st_mtim.tv_nsec,
		(uint64_t)st->st_size, st->st_mtim.tv_sec,
	};

	memcpy(out + out_size, &wire, sizeof wire);
	out_size += sizeof wire;
}

static int op_stat(void)
{
	struct place place;
	struct stat st;
	int error;

	take_path(path);
	if ((error = find(path, false, &place)) != 0)
		return error;
	error = result(fstatat(place.dir, place.name, &st, nofollow()));
	close(place.dir);
	if (error == 0)
		put_stat(&st);
	return error;
}

static int open_directory(void)
{
	struct place place;
	int error, fd;

	take_path(path);
	if ((error = find(path, false, &place)) != 0)
		return -error;
	fd = openat(place.dir, place.name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (nofollow() ? O_NOFOLLOW : 0));
	error = errno;
	close(place.dir);
	return fd < 0 ? -error : fd;
}

/* A directory's entry, as getdents64 gives it. */
struct entry {
	uint64_t ino;
	int64_t next;
	uint16_t size;
	uint8_t type;
	char name[];
};

/* put_entry adds an entry to the answer, if it is still there. */
static void put_entry(int dir, const char *name)
{
	uint16_t size = (uint16_t)strlen(name);
	struct stat st;

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
		return;
	put_stat(&st);
	memcpy(out + out_size, &size, sizeof size);
	memcpy(out + out_size + sizeof size, name, size);
	out_size += sizeof size + size;
}

/* list_page fills the answer from *cookie on, and moves that. It returns -1 for an
 * error, 1 if there is more. */
static int list_page(int dir, uint64_t *cookie, uint32_t most)
{
	static char buffer[16 << 10] __attribute__((aligned(8)));
	const size_t largest = sizeof(struct stat_wire) + sizeof(uint16_t) + NAME_MAX;

	if (lseek(dir, (off_t)*cookie, SEEK_SET) < 0)
		return -1;
	for (uint32_t listed = 0;;) {
		long n = syscall(SYS_getdents64, dir, buffer, sizeof buffer);

		if (n <= 0)
			return (int)n;
		for (long at = 0; at < n;) {
			const struct entry *entry = (const struct entry *)(buffer + at);

			if (listed == most || out_size + largest > sizeof out)
				return 1;
			at += entry->size;
			*cookie = (uint64_t)entry->next;
			if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0)
				continue;
			put_entry(dir, entry->name);
			listed++;
		}
	}
}

static int op_list(void)
{
	uint64_t cookie = take64();
	uint32_t most = take32();
	int dir = open_directory(), more, error;

	if (dir < 0)
		return -dir;
	out_size = sizeof cookie;
	more = list_page(dir, &cookie, most);
	error = more < 0 ? errno : 0;
	close(dir);
	value = more > 0;
	memcpy(out, &cookie, sizeof cookie);
	return error;
}

static int op_open(void)
{
	struct handle *handle = new_handle();
	struct place place;
	struct stat st;
	int error, fd, flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

	take_path(path);
	if (handle == NULL)
		return EMFILE;
	if ((error = find(path, false, &place)) != 0)
		return error;
	if (nofollow())
		flags |= O_NOFOLLOW;
	if (request.flags & DIRECTORY)
		flags |= O_DIRECTORY;
	fd = openat(place.dir, place.name, flags);
	error = result(fd);
	close(place.dir);
	if (error != 0)
		return error;
	if (fstat(fd, &st) != 0)
		error = errno;
	else if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
		error = EINVAL; /* a pipe or device may have no end, or block */
	if (error != 0) {
		close(fd);
		return error;
	}
	handle->fd = fd;
	put_stat(&st);
	return 0;
}

static int op_read(void)
{
	const struct handle *handle = base_handle();
	uint64_t offset = take64();
	uint32_t most = take32();
	ssize_t n;

	if (handle == NULL)
		return EBADF;
	n = pread(handle->fd, out, most < sizeof out ? most : sizeof out, (off_t)offset);
	if (n > 0)
		out_size = (size_t)n;
	return n < 0 ? errno : 0;
}

static int op_readlink(void)
{
	struct place place;
	ssize_t n;
	int error;

	take_path(path);
	if ((error = find(path, false, &place)) != 0)
		return error;
	n = readlinkat(place.dir, place.name, (char *)out, PATH_MAX);
	error = n < 0 ? errno : 0;
	close(place.dir);
	out_size = n > 0 ? (size_t)n : 0;
	return error;
}

/*** Watching ***/

static int op_watch(void)
{
	take_path(path);
	if (request.base != 0)
		malformed();
	return watch_add(path, request.flags & NOFOLLOW, &value);
}

static int op_unwatch(void)
{
	return watch_remove(take32());
}

/*** Requests ***/

static int (*const ops[])(void) = {
	[OP_STAT] = op_stat, [OP_LIST] = op_list, [OP_OPEN] = op_open, [OP_READ] = op_read,
	[OP_CREATE] = op_create, [OP_WRITE] = op_write, [OP_COMMIT] = op_commit, [OP_CLOSE] = op_close,
	[OP_MKDIR] = op_mkdir, [OP_RENAME] = op_rename, [OP_REMOVE] = op_remove,
	[OP_SYMLINK] = op_symlink, [OP_LINK] = op_link, [OP_READLINK] = op_readlink,
	[OP_CHMOD] = op_chmod, [OP_WATCH] = op_watch, [OP_UNWATCH] = op_unwatch,
};

/* leave removes what was not completed. */
static _Noreturn void leave(void)
{
	for (uint32_t i = 0; i < HANDLES; i++)
		if (handles[i].fd != 0)
			drop(&handles[i]);
	_exit(0);
}

static void send(enum kind kind, uint32_t id, uint32_t with, const void *payload, size_t size)
{
	struct answer header = { .size = (uint32_t)size, .id = id, .kind = (uint8_t)kind, .value = with };

	if (!write_all(1, &header, sizeof header) || !write_all(1, payload, size))
		leave();
}

void send_event(uint32_t watch, const void *payload, size_t size)
{
	send(KIND_EVENT, 0, watch, payload, size);
}

static void serve_one(void)
{
	int error;

	if (!read_all(0, &request, sizeof request))
		leave();
	if (request.size > PAYLOAD_MAX || request.zero != 0 || request.flags >= RECURSIVE << 1 ||
	    request.op == 0 || request.op >= sizeof ops / sizeof ops[0])
		malformed();
	if (!read_all(0, in, request.size))
		leave();
	in_at = out_size = 0;
	value = 0;
	error = ops[request.op]();
	if (in_at != request.size)
		malformed();
	if (error != 0)
		send(KIND_ERROR, request.id, (uint32_t)error, NULL, 0);
	else
		send(KIND_DONE, request.id, value, out, out_size);
}

_Noreturn void files(void)
{
	const uint32_t hello[4] = { HELLO_MAGIC, VERSION, PAYLOAD_MAX, 0 };

	(void)signal(SIGPIPE, SIG_IGN);
	/* Other programs of the sandbox cannot write our memory, and so our answers, through
	 * /proc any more. It makes forging harder, and is nothing to rely on: one that is
	 * quick enough opened it before. */
	(void)prctl(PR_SET_DUMPABLE, 0);
	if (!write_all(1, hello, sizeof hello))
		leave();
	for (;;) {
		struct pollfd poll_for[] = {
			{ .fd = 0, .events = POLLIN },
			{ .fd = watch_descriptor(), .events = POLLIN },
		};

		if (poll(poll_for, 2, -1) < 0) {
			if (errno == EINTR)
				continue;
			fail("wait", errno);
		}
		if (poll_for[1].revents)
			watch_read();
		if (poll_for[0].revents)
			serve_one();
	}
}
