/*
 * What the monitor sends: received whole, checked whole.
 *
 * A header of 64 bytes, the program's three descriptors on its first byte, then a
 * payload:
 *
 *	cwd NUL | argv, NUL each | envp, NUL each | filter, 8 bytes each |
 *	cpu mask | files, each: path NUL, u32 mode, u32 length, bytes
 *
 * A session comes without descriptors and arguments, an exec without filter, mask and
 * files; a signal and a deadline are a header alone.
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
#define VERSION      3u

#define PAYLOAD_MAX  (40u << 20)
#define STRINGS_MAX  65536u /* of argv and of envp */
#define EXEC_ENV_MAX 4096u  /* of an exec, each compared with all of the session's */
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
	uint32_t kind;     /* enum message_kind */
	uint32_t files;
	uint64_t deadline; /* milliseconds from receipt; 0: none */
	uint32_t cpus;     /* bytes */
	uint32_t id, arg;  /* see enum message_kind */
	uint8_t zero[12];
};
_Static_assert(sizeof(struct header) == 64, "the header has 64 bytes");

/* A message on its way in. */
struct incoming {
	struct header header;
	size_t have;  /* bytes of the header */
	bool rights;  /* three descriptors came with it */
	int stdio[3];
	char *memory; /* tables of strings, then the payload; NULL: it is thrown away */
	size_t memory_size;
	size_t tables;
	size_t filled; /* bytes of the payload */
};

static _Noreturn void malformed(void)
{
	fail(STAGE_PROTOCOL, EPROTO);
}

/*** Receiving ***/

/* received judges what a call for the control socket's data returned: whether there
 * was some, or not yet. The monitor's death ends us here as it does everywhere. */
static bool received(ssize_t n, int flags)
{
	if (n > 0)
		return true;
	if (n < 0 && (errno == EINTR || (errno == EAGAIN && flags & MSG_DONTWAIT)))
		return false;
	_exit(EXIT_ENGINE);
}

/* take_rights notes the descriptors that came with a header's first byte. They are
 * moved above CONTROL, so that the program's side may put them in place in any order. */
static void take_rights(struct incoming *in, struct msghdr *message)
{
	struct cmsghdr *rights = CMSG_FIRSTHDR(message);

	if (message->msg_flags & MSG_CTRUNC)
		malformed();
	if (rights == NULL)
		return;
	if (rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS ||
	    rights->cmsg_len != CMSG_LEN(sizeof in->stdio))
		malformed();
	memcpy(in->stdio, CMSG_DATA(rights), sizeof in->stdio);
	in->rights = true;
	for (int i = 0; i < 3; i++)
		if (in->stdio[i] < CONTROL) {
			int moved = fcntl(in->stdio[i], F_DUPFD_CLOEXEC, CONTROL + 1);

			if (moved < 0)
				fail(STAGE_PROTOCOL, errno);
			close(in->stdio[i]);
			in->stdio[i] = moved;
		}
}

/* receive_header reads some of the header. */
static bool receive_header(struct incoming *in, int flags)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(3 * sizeof(int))];
	} control;
	struct iovec iov = { (char *)&in->header + in->have, sizeof in->header - in->have };
	struct msghdr message = {
		.msg_iov = &iov, .msg_iovlen = 1,
		.msg_control = &control, .msg_controllen = sizeof control,
	};
	ssize_t n = recvmsg(CONTROL, &message, flags | MSG_CMSG_CLOEXEC);

	if (!received(n, flags))
		return false;
	if (in->have == 0)
		take_rights(in, &message);
	in->have += (size_t)n;
	return true;
}

/* receive_payload reads some of the payload. */
static bool receive_payload(struct incoming *in, int flags)
{
	static char nowhere[4096];
	size_t left = in->header.payload - in->filled;
	ssize_t n;

	if (in->memory != NULL)
		n = recv(CONTROL, in->memory + in->tables + in->filled, left, flags);
	else
		n = recv(CONTROL, nowhere, left < sizeof nowhere ? left : sizeof nowhere, flags);
	if (!received(n, flags))
		return false;
	in->filled += (size_t)n;
	return true;
}

/* fits reports whether a message of this kind may have these parts. */
static bool fits(const struct header *h, bool rights)
{
	bool parts = h->filters > 0 || h->cpus > 0 || h->files > 0;
	bool alone = !rights && !parts && h->payload == 0 && h->argc == 0 && h->envc == 0;

	switch (h->kind) {
	case MESSAGE_JOB:
		return rights && h->argc >= 1 && h->id == 0 && h->arg == 0;
	case MESSAGE_SESSION:
		return !rights && h->argc == 0 && h->id == 0 && h->arg == 0;
	case MESSAGE_EXEC:
		return rights && h->argc >= 1 && h->envc <= EXEC_ENV_MAX && !parts && h->id > 0 && h->arg == 0;
	case MESSAGE_SIGNAL:
		return alone && h->id > 0 && h->arg >= 1 && h->arg <= SIGNAL_MAX && h->deadline == 0;
	case MESSAGE_DEADLINE:
		return alone && h->id == 0 && h->arg == 0;
	default:
		return false;
	}
}

static bool acceptable(const struct header *h, bool rights)
{
	static const uint8_t zero[sizeof h->zero];

	return h->magic == HEADER_MAGIC && h->version == VERSION &&
	       memcmp(h->zero, zero, sizeof zero) == 0 &&
	       h->payload <= PAYLOAD_MAX && h->argc <= STRINGS_MAX &&
	       h->envc <= STRINGS_MAX && h->filters <= FILTERS_MAX &&
	       h->files <= FILES_MAX && h->cpus <= CPUS_MAX && h->deadline <= DEADLINE_MAX &&
	       fits(h, rights);
}

/* make_room maps memory for the payload, with tables for the strings in it and for as
 * many more. There may be none: an exec is refused for that, everything else fails. */
static void make_room(struct incoming *in, uint32_t more)
{
	in->tables = ((size_t)in->header.argc + in->header.envc + more + 2) * sizeof(char *);
	in->memory_size = in->tables + in->header.payload;
	in->memory = mmap(NULL, in->memory_size, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (in->memory == MAP_FAILED) {
		if (in->header.kind != MESSAGE_EXEC)
			fail(STAGE_PROTOCOL, errno);
		in->memory = NULL;
		return;
	}
	/* Not swapped out, where RLIMIT_MEMLOCK has room for it. The sandbox is
	 * denied swap by its cgroup as well, so failing here is no loss. */
	(void)mlock(in->memory, in->memory_size);
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
static void check(struct job *job, const struct incoming *in)
{
	const struct header *h = &in->header;
	char **tables = (void *)in->memory;
	struct cursor c = { in->memory + in->tables, h->payload };

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

/* finish_message hands over a message that is there to its last byte. */
static void finish_message(struct incoming *in, struct message *message)
{
	struct job *job = &message->job;

	memset(message, 0, sizeof *message);
	message->kind = in->header.kind;
	message->id = in->header.id;
	message->arg = in->header.arg;
	for (int i = 0; i < 3; i++)
		job->stdio[i] = in->rights ? in->stdio[i] : -1;
	job->memory = in->memory;
	job->memory_size = in->memory_size;
	if (in->memory != NULL)
		check(job, in);
	job->deadline = in->header.deadline ? now() + (int64_t)in->header.deadline * 1000000 : 0;
	memset(in, 0, sizeof *in);
}

/* receive_first waits for the job or the session. It returns only with a complete one. */
void receive_first(struct message *message)
{
	struct incoming in = { 0 };

	while (in.have < sizeof in.header)
		receive_header(&in, 0);
	if (in.header.kind > MESSAGE_SESSION || !acceptable(&in.header, in.rights))
		malformed();
	make_room(&in, 0);
	while (in.filled < in.header.payload)
		receive_payload(&in, 0);
	finish_message(&in, message);
}

/* receive_later takes in what there is of a session's next message, without waiting
 * for any: a monitor that stops halfway holds up no deadline. It returns true once the
 * message is complete. An exec's tables have room for the session's environment. */
bool receive_later(struct message *message, uint32_t session_env)
{
	static struct incoming in;

	while (in.have < sizeof in.header) {
		if (!receive_header(&in, MSG_DONTWAIT))
			return false;
		if (in.have < sizeof in.header)
			continue;
		if (in.header.kind <= MESSAGE_SESSION || !acceptable(&in.header, in.rights))
			malformed();
		if (in.header.kind == MESSAGE_EXEC)
			make_room(&in, session_env);
	}
	while (in.filled < in.header.payload)
		if (!receive_payload(&in, MSG_DONTWAIT))
			return false;
	finish_message(&in, message);
	return true;
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

/* forget_files wipes the files of a session, which end its mapping, and gives their
 * memory back. */
void forget_files(struct job *job)
{
	uintptr_t end = (uintptr_t)job->memory + job->memory_size;
	uintptr_t page = ((uintptr_t)job->files + 4095) & ~(uintptr_t)4095;

	explicit_bzero(job->files, end - (uintptr_t)job->files);
	if (page < end) {
		(void)munlock((void *)page, end - page);
		(void)madvise((void *)page, end - page, MADV_DONTNEED);
	}
	job->files = NULL;
	job->file_count = 0;
}

/* forget_job wipes the job, secrets included, and lets go of its stdio, of which
 * a copy here would keep its readers from seeing the end. */
void forget_job(struct job *job)
{
	for (int i = 0; i < 3; i++)
		close(job->stdio[i]);
	if (job->memory != NULL) {
		explicit_bzero(job->memory, job->memory_size);
		munmap(job->memory, job->memory_size);
	}
	explicit_bzero(job, sizeof *job);
}
