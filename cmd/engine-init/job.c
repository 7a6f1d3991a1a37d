/*
 * The job as it comes from the monitor: received whole, checked whole.
 *
 * A header of 64 bytes, the job's three descriptors on its first byte, then a
 * payload:
 *
 *	cwd NUL | argv, NUL each | envp, NUL each | filter, 8 bytes each |
 *	cpu mask | files, each: path NUL, u32 mode, u32 length, bytes
 *
 * The header counts the parts, and the parts must fill the payload exactly. The
 * mode of a file holds its permissions; its highest bit asks for the directories
 * on its path that are missing. A path is absolute, of two names at least, none
 * of them empty, "." or "..". Anything else is refused before the first side effect.
 */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define HEADER_MAGIC 0x454e4731u /* "ENG1" */
#define VERSION      2u

#define PAYLOAD_MAX  (40u << 20)
#define STRINGS_MAX  65536u /* of argv and of envp */
#define FILTERS_MAX  4096u  /* the kernel's BPF_MAXINSNS */
#define CPUS_MAX     1024u  /* bytes, 8192 CPUs */
#define FILES_MAX    8192u
#define DEADLINE_MAX ((uint64_t)1 << 41) /* milliseconds, 69 years: fits as nanoseconds */

#define FILTER_SIZE  8u     /* struct sock_filter */
#define MODE_PARENTS (1u << 31)
#define TMPFS_MAGIC  0x01021994

struct header {
	uint32_t magic, version;
	uint32_t payload;
	uint32_t argc, envc;
	uint32_t filters;
	uint32_t flags; /* none is defined */
	uint32_t files;
	uint64_t deadline; /* milliseconds from receipt; 0: none */
	uint32_t cpus;     /* bytes */
	uint8_t zero[20];
};
_Static_assert(sizeof(struct header) == 64, "the header has 64 bytes");

static _Noreturn void malformed(void)
{
	fail(STAGE_PROTOCOL, EPROTO);
}

/*** Receiving ***/

/* receive fills buffer from the control socket. The monitor's death ends us here
 * as it does everywhere. */
static void receive(void *buffer, size_t size)
{
	for (char *p = buffer; size > 0;) {
		ssize_t n = recv(CONTROL, p, size, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			_exit(EXIT_ENGINE);
		p += n;
		size -= (size_t)n;
	}
}

/* receive_header reads the header and the descriptors that come with its first
 * byte. They are moved above CONTROL, so that the job's side may put them in
 * place in any order. */
static void receive_header(struct header *header, int stdio[3])
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(3 * sizeof(int))];
	} control;
	struct iovec iov = { header, sizeof *header };
	struct msghdr message = {
		.msg_iov = &iov, .msg_iovlen = 1,
		.msg_control = &control, .msg_controllen = sizeof control,
	};
	struct cmsghdr *rights;
	ssize_t n;

	do
		n = recvmsg(CONTROL, &message, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		_exit(EXIT_ENGINE);
	rights = CMSG_FIRSTHDR(&message);
	if (message.msg_flags & MSG_CTRUNC || rights == NULL ||
	    rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS ||
	    rights->cmsg_len != CMSG_LEN(3 * sizeof(int)))
		malformed();
	memcpy(stdio, CMSG_DATA(rights), 3 * sizeof(int));
	for (int i = 0; i < 3; i++)
		if (stdio[i] < CONTROL) {
			int moved = fcntl(stdio[i], F_DUPFD_CLOEXEC, CONTROL + 1);

			if (moved < 0)
				fail(STAGE_PROTOCOL, errno);
			close(stdio[i]);
			stdio[i] = moved;
		}
	receive((char *)header + n, sizeof *header - (size_t)n);
}

static bool acceptable(const struct header *h)
{
	static const uint8_t zero[sizeof h->zero];

	return h->magic == HEADER_MAGIC && h->version == VERSION && h->flags == 0 &&
	       memcmp(h->zero, zero, sizeof zero) == 0 &&
	       h->payload <= PAYLOAD_MAX && h->argc >= 1 && h->argc <= STRINGS_MAX &&
	       h->envc <= STRINGS_MAX && h->filters <= FILTERS_MAX &&
	       h->files <= FILES_MAX && h->cpus <= CPUS_MAX && h->deadline <= DEADLINE_MAX;
}

/*** Checking ***/

/* What is left of the payload. */
struct cursor {
	char *at;
	size_t left;
};

/* take returns the next size bytes. */
static char *take(struct cursor *c, size_t size)
{
	char *start = c->at;

	if (size > c->left)
		malformed();
	c->at += size;
	c->left -= size;
	return start;
}

/* take_string returns the next string, which is complete with its NUL. */
static char *take_string(struct cursor *c)
{
	const char *end = memchr(c->at, 0, c->left);

	if (end == NULL)
		malformed();
	return take(c, (size_t)(end - c->at) + 1);
}

/* A file of the job, in the payload. */
struct file {
	char *path;
	uint32_t mode;
	uint32_t size;
	const char *data;
};

/* A path is cut into its names in place, so that none is longer than the kernel's. */
static bool acceptable_path(const char *path)
{
	unsigned names = 0;

	for (size_t length; *path == '/'; path += length, names++) {
		length = strcspn(++path, "/");
		if (length == 0 || length > NAME_MAX || (length == 1 && path[0] == '.') ||
		    (length == 2 && path[0] == '.' && path[1] == '.'))
			return false;
	}
	return *path == 0 && names >= 2;
}

static struct file take_file(struct cursor *c)
{
	struct file file;

	file.path = take_string(c);
	memcpy(&file.mode, take(c, sizeof file.mode), sizeof file.mode);
	memcpy(&file.size, take(c, sizeof file.size), sizeof file.size);
	file.data = take(c, file.size);
	return file;
}

/* check splits the payload into the job's parts. */
static void check(struct job *job, const struct header *h, char **tables, char *payload)
{
	struct cursor c = { payload, h->payload };

	job->cwd = take_string(&c);
	if (job->cwd[0] != '/')
		malformed();
	job->argv = tables;
	for (uint32_t i = 0; i < h->argc; i++)
		*tables++ = take_string(&c);
	*tables++ = NULL;
	job->envp = tables;
	for (uint32_t i = 0; i < h->envc; i++)
		*tables++ = take_string(&c);
	*tables = NULL;
	job->filters = h->filters;
	job->filter = take(&c, (size_t)h->filters * FILTER_SIZE);
	job->cpus_size = h->cpus;
	job->cpus = take(&c, h->cpus);
	job->file_count = h->files;
	job->files = c.at;
	for (uint32_t i = 0; i < h->files; i++) {
		struct file file = take_file(&c);

		if (!acceptable_path(file.path) || file.mode & ~(MODE_PARENTS | 0777))
			malformed();
	}
	if (c.left != 0)
		malformed();
}

/* receive_job waits for the job. It returns only with a complete one. */
void receive_job(struct job *job)
{
	struct header h;
	size_t tables;

	receive_header(&h, job->stdio);
	if (!acceptable(&h))
		malformed();
	tables = ((size_t)h.argc + h.envc + 2) * sizeof(char *);
	job->memory_size = tables + h.payload;
	job->memory = mmap(NULL, job->memory_size, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (job->memory == MAP_FAILED)
		fail(STAGE_PROTOCOL, errno);
	/* Not swapped out, where RLIMIT_MEMLOCK has room for it. The sandbox is
	 * denied swap by its cgroup as well, so failing here is no loss. */
	(void)mlock(job->memory, job->memory_size);
	receive((char *)job->memory + tables, h.payload);
	check(job, &h, job->memory, (char *)job->memory + tables);
	job->deadline = h.deadline ? now() + (int64_t)h.deadline * 1000000 : 0;
}

/*** Files ***/

/* enter opens the directory name in dir, and closes dir. One that is missing is made
 * if that is asked for and dir is on a tmpfs. */
static int enter(int dir, const char *name, bool make)
{
	struct statfs fs;
	int next = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (next < 0 && errno == ENOENT && make) {
		if (fstatfs(dir, &fs) != 0)
			fail(STAGE_FILES, errno);
		if (fs.f_type != TMPFS_MAGIC)
			fail(STAGE_FILES, EXDEV);
		/* The mode is set again, since making applies the umask. */
		if (mkdirat(dir, name, 0755) != 0 || fchmodat(dir, name, 0755, 0) != 0)
			fail(STAGE_FILES, errno);
		next = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	}
	if (next < 0)
		fail(STAGE_FILES, errno);
	close(dir);
	return next;
}

/* open_parent opens the directory of an acceptable path, which it cuts into names;
 * *name is the last.
 *
 * SECURITY: a file of the job is in memory, and a secret is readable by the job's
 * user alone. A file system of the host would keep it after the run.
 * Holds because: the directory must be on a tmpfs, no part of the path may be a
 * symbolic link, the file must be new, and a secret has its mode from its making on.
 * Not covered: swap, which the cgroup denies. Checked by: TestSecretFiles. */
static int open_parent(char *path, bool make, char **name)
{
	struct statfs fs;
	int dir = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (dir < 0)
		fail(STAGE_FILES, errno);
	for (char *slash; (slash = strchr(++path, '/')) != NULL; path = slash) {
		*slash = 0;
		dir = enter(dir, path, make);
	}
	*name = path;
	if (fstatfs(dir, &fs) != 0)
		fail(STAGE_FILES, errno);
	if (fs.f_type != TMPFS_MAGIC)
		fail(STAGE_FILES, EXDEV);
	return dir;
}

static void write_file(const struct file *file)
{
	mode_t mode = file->mode & 0777;
	char *name;
	int dir = open_parent(file->path, file->mode & MODE_PARENTS, &name);
	int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
	const char *data = file->data;

	if (fd < 0)
		fail(STAGE_FILES, errno);
	for (size_t left = file->size; left > 0;) {
		ssize_t n = write(fd, data, left);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			fail(STAGE_FILES, n < 0 ? errno : EIO);
		data += n;
		left -= (size_t)n;
	}
	/* Again, since making applied the umask. */
	if (fchmod(fd, mode) != 0 || close(fd) != 0)
		fail(STAGE_FILES, errno);
	close(dir);
}

void write_files(const struct job *job)
{
	char *end = (char *)job->memory + job->memory_size;
	struct cursor c = { job->files, (size_t)(end - job->files) };

	for (uint32_t i = 0; i < job->file_count; i++) {
		struct file file = take_file(&c);

		write_file(&file);
	}
}

/* forget_job wipes the job, secrets included, and lets go of its stdio, of which
 * a copy here would keep its readers from seeing the end. */
void forget_job(struct job *job)
{
	for (int i = 0; i < 3; i++)
		close(job->stdio[i]);
	explicit_bzero(job->memory, job->memory_size);
	munmap(job->memory, job->memory_size);
	explicit_bzero(job, sizeof *job);
}
