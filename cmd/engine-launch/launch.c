/*
 * engine-launch: turns itself into the first process of a sandbox.
 *
 * Theory of operation
 *
 * The monitor clones us into namespaces of our own (user, mount, pid, ipc, uts) and
 * into the run's cgroup, with the sandbox's network namespace, and maps our user ids.
 * We are root in that user namespace and nowhere else. On descriptor 3 comes a plan,
 * a list of steps that the monitor has worked out of the bundle's spec. We read all of
 * it, do one step after the other, and execute engine-init, the last step. Descriptor
 * 4 is engine-init's socket, and 5 is where we say what went wrong; that it closes
 * without a word, by the execve, is success.
 *
 *	monitor               engine-launch (pid 1)
 *	   |---- plan, fd 3 ---->|  all of it, then end of file
 *	   |                     |- pivot into the root, steps, let go of the old root
 *	   |                     |- drop every capability
 *	   |<--- end, fd 5 ------|- execve engine-init
 *
 * There is no untrusted code in the sandbox before that execve, and no byte of ours
 * after it. What a step names below the new root may be the image's, though: it is
 * looked up there alone, and never through a link of /proc.
 *
 * SECURITY: a path of the new root never leads out of it, and a step that fails ends the sandbox.
 * A mount that went elsewhere would show or change a file of the host; one that is missing
 * leaves what it was to hide (CVE-2019-16884, CVE-2025-31133, CVE-2025-52881).
 * Holds because: targets are opened by openat2 with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS,
 * and mounted on by that descriptor; a value for /proc is written only to a file of procfs; what
 * masks a file is the null device that was checked to be it.
 * Not covered: the sources, which the monitor vouches for. Checked by: TestPosture, TestHostileImages.
 *
 * The plan: steps of one letter and as many strings as the letter takes, NUL after
 * each; numbers are decimal. No memory is allocated besides the plan.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { PLAN = 3, SOCKET = 4, REPORT = 5 };

#define PLAN_MAX    (1u << 20)
#define STRINGS_MAX 1024 /* of argv, and of envp */
#define STATUS      125

/* The kernel's, where libc has none. */
#define OPEN_TREE_CLONE_      1
#define MOVE_MOUNT_F_EMPTY_   0x04
#define MOVE_MOUNT_T_EMPTY_   0x40
#define KEYCTL_JOIN_SESSION_  1
#define CAP_VERSION_3         0x20080522
#define CLONE_NEWTIME_        0x80
#define ATTR_RDONLY           0x01
#define ATTR_NOSUID           0x02
#define ATTR_NODEV            0x04
#define ATTR_NOEXEC           0x08

#define PROC_MAGIC            0x9fa0
#define RESOLVE_NO_MAGICLINKS 0x02
#define RESOLVE_IN_ROOT       0x10

struct open_how { uint64_t flags, mode, resolve; };
struct mount_attr_ { uint64_t set, clear, propagation, userns; };

static char plan[PLAN_MAX + 1];
static char *at = plan, *end;
static int old_root = -1, null_device = -1;

/*** Failing ***/

static void say(const char *text)
{
	(void)!write(REPORT, text, strlen(text));
}

/* fail reports what could not be done, to what, and errno as a number. */
static _Noreturn void fail(const char *verb, const char *object)
{
	char digits[16], *p = digits + sizeof digits - 1;
	int e = errno;

	*p = 0;
	do
		*--p = (char)('0' + e % 10);
	while ((e /= 10) > 0);
	say(p);
	say(" cannot ");
	say(verb);
	say(" ");
	say(object);
	_exit(STATUS);
}

static _Noreturn void malformed(void)
{
	errno = EPROTO;
	fail("read", "plan");
}

/*** The plan ***/

static void read_plan(void)
{
	size_t size = 0;
	ssize_t n;

	while ((n = read(PLAN, plan + size, PLAN_MAX - size)) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			fail("read", "plan");
		size += (size_t)n;
		if (size == PLAN_MAX)
			malformed();
	}
	end = plan + size;
	if (size == 0 || end[-1] != 0)
		malformed();
}

/* text is the next string of the plan. */
static char *text(void)
{
	char *s = at;

	if (at == end)
		malformed();
	at += strlen(at) + 1;
	return s;
}

static uint64_t number(void)
{
	char *s = text(), *rest;
	uint64_t n;

	errno = 0;
	n = strtoull(s, &rest, 10);
	if (errno != 0 || *s < '0' || *s > '9' || *rest != 0)
		malformed();
	return n;
}

/*** Files below the root ***/

/* find_below opens path as one who has dir for a root would, or returns -1. */
static int find_below(int dir, const char *path, uint64_t flags, uint64_t mode)
{
	struct open_how how = {
		.flags = flags | O_CLOEXEC, .mode = mode,
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
	};

	return (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
}

/* find opens path below the new root, where we are between steps. */
static int find(const char *path, uint64_t flags, uint64_t mode)
{
	return find_below(AT_FDCWD, path, flags, mode);
}

static int must_find(const char *path)
{
	int fd = find(path, O_PATH, 0);

	if (fd < 0)
		fail("find", path);
	return fd;
}

/* attach puts a detached mount on the open place. */
static void attach(int tree, int place, const char *path)
{
	if (syscall(SYS_move_mount, tree, "", place, "", MOVE_MOUNT_F_EMPTY_ | MOVE_MOUNT_T_EMPTY_) != 0)
		fail("mount on", path);
	close(tree);
	close(place);
}

static void set_attributes(int dir, const char *path, unsigned flags, uint64_t set)
{
	struct mount_attr_ attr = { .set = set };

	if (syscall(SYS_mount_setattr, dir, path, flags, &attr, sizeof attr) != 0)
		fail("set attributes of", path);
}

/* clone_of is a detached mount of an open place. */
static int clone_of(int place, const char *path)
{
	int tree = (int)syscall(SYS_open_tree, place, "", OPEN_TREE_CLONE_ | O_CLOEXEC | AT_EMPTY_PATH);

	if (tree < 0)
		fail("clone", path);
	return tree;
}

/*** Steps ***/

/* enter makes the directory the root. The old one stays below it, by descriptor,
 * until leave: the kernel shows a new procfs only to who sees a whole one. */
static void enter(const char *root)
{
	if (mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
		fail("make private", "mounts");
	if (mount(root, root, NULL, MS_BIND, NULL) != 0)
		fail("bind", root);
	old_root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (old_root < 0)
		fail("open", "old root");
	if (chdir(root) != 0)
		fail("enter", root);
	if (syscall(SYS_pivot_root, ".", ".") != 0)
		fail("pivot into", root);
	/* The new root lies below the old one, and is both our root and where we are. */
}

static void leave(void)
{
	if (fchdir(old_root) != 0 || umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
		fail("leave", "old root");
	close(old_root);
	old_root = -1;
}

/* mount_new mounts a file system of its own, with the flags of mount(2), by way of
 * the open place: "." is where we are, whatever its name has come to mean. */
static void mount_new(void)
{
	const char *type = text(), *path = text();
	unsigned long flags = number();
	const char *data = text();
	int place = must_find(path);

	if (fchdir(place) != 0)
		fail("enter", path);
	if (mount(type, ".", type, flags, data) != 0)
		fail("mount on", path);
	close(place);
	if (chdir("/") != 0)
		fail("enter", "root");
}

/* bind shows a file or directory of the old root. */
static void bind(void)
{
	const char *source = text(), *path = text();
	uint64_t set = number();
	int from, tree, place = must_find(path);

	from = find_below(old_root, source, O_PATH, 0);
	if (from < 0)
		fail("find", source);
	tree = clone_of(from, source);
	close(from);
	if (set != 0)
		set_attributes(tree, "", AT_EMPTY_PATH, set);
	attach(tree, place, path);
}

static void make_file(void)
{
	const char *path = text();
	int fd = find(path, O_WRONLY | O_CREAT | O_EXCL, 0666);

	if (fd < 0)
		fail("make", path);
	close(fd);
}

static void make_link(void)
{
	const char *target = text(), *path = text();

	if (symlink(target, path) != 0)
		fail("make", path);
}

static void make_directory(void)
{
	const char *path = text();

	if (mkdir(path, 0755) != 0)
		fail("make", path);
}

/* write_value sets a file of the kernel's. */
static void write_value(void)
{
	const char *path = text(), *value = text();
	size_t size = strlen(value);
	struct statfs fs;
	int fd = find(path, O_WRONLY, 0);

	if (fd < 0 || fstatfs(fd, &fs) != 0)
		fail("open", path);
	errno = EXDEV;
	if (fs.f_type != PROC_MAGIC || write(fd, value, size) != (ssize_t)size)
		fail("write", path);
	close(fd);
}

/* mask hides a file behind the null device, a directory behind an empty one. What is
 * not there needs no mask. */
static void mask(void)
{
	const char *path = text();
	int fd = find(path, O_PATH, 0);
	struct stat st;

	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
		return;
	if (fd < 0 || fstat(fd, &st) != 0)
		fail("find", path);
	if (!S_ISDIR(st.st_mode)) {
		attach(clone_of(null_device, "/dev/null"), fd, path);
		return;
	}
	if (fchdir(fd) != 0 || mount("tmpfs", ".", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "nr_blocks=1,nr_inodes=1") != 0 || chdir("/") != 0)
		fail("mask", path);
	close(fd);
}

/* protect makes a directory read-only by a mount of its own. It comes after the
 * values are written, one of which forbids mount namespaces, and with them the
 * detached mounts of the other steps. */
static void protect(void)
{
	const char *path = text();
	int fd = find(path, O_PATH, 0);

	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
		return;
	if (fd < 0)
		fail("find", path);
	if (fchdir(fd) != 0 || mount(".", ".", NULL, MS_BIND, NULL) != 0 || chdir("/") != 0)
		fail("bind", path);
	close(fd);
	fd = must_find(path); /* what is mounted there now */
	set_attributes(fd, "", AT_EMPTY_PATH, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC);
	close(fd);
}

/* take_null keeps the null device for masks and for our descriptors 0 to 2. */
static void take_null(void)
{
	struct stat st;

	null_device = must_find("/dev/null");
	if (fstat(null_device, &st) != 0 || !S_ISCHR(st.st_mode) || st.st_rdev != makedev(1, 3)) {
		errno = ENODEV;
		fail("use", "/dev/null");
	}
}

static void limit(void)
{
	int resource = (int)number();
	struct rlimit l;

	l.rlim_cur = number();
	l.rlim_max = number();
	if (setrlimit(resource, &l) != 0)
		fail("set", "resource limit");
}

/* become gives up every right, for good. */
static void become(void)
{
	struct { uint32_t version; int pid; } header = { CAP_VERSION_3, 0 };
	struct { uint32_t effective, permitted, inheritable; } none[2] = { { 0, 0, 0 }, { 0, 0, 0 } };
	uid_t uid = (uid_t)number();
	gid_t gid = (gid_t)number();

	umask((mode_t)number());
	if (uid == 0 || gid == 0)
		malformed();
	for (int cap = 0; cap < 64; cap++)
		if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0 && errno != EINVAL)
			fail("drop", "capability");
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0)
		fail("clear", "ambient capabilities");
	if (syscall(SYS_setgroups, 0, NULL) != 0 || syscall(SYS_setresgid, gid, gid, gid) != 0 || syscall(SYS_setresuid, uid, uid, uid) != 0)
		fail("become", "user");
	if (syscall(SYS_capset, &header, none) != 0)
		fail("drop", "capabilities");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		fail("forbid", "new privileges");
}

/* strings collects the strings up to an empty one. */
static void strings(char **list)
{
	int n = 0;

	while (*(list[n] = text()) != 0)
		if (++n == STRINGS_MAX)
			malformed();
	list[n] = NULL;
}

/* start becomes engine-init, with the socket as its descriptor 3 and no other but
 * the null device. The report is closed by the execve. */
static _Noreturn void start(void)
{
	static char *argv[STRINGS_MAX + 1], *envp[STRINGS_MAX + 1];
	const char *cwd = text();
	int null;

	strings(argv);
	strings(envp);
	if (at != end || argv[0] == NULL)
		malformed();
	if (chdir(cwd) != 0)
		fail("enter", cwd);
	null = open("/dev/null", O_RDWR);
	if (null < 0)
		fail("open", "/dev/null");
	for (int fd = 0; fd < 3; fd++)
		if (dup2(null, fd) < 0)
			fail("open", "/dev/null");
	if (dup2(SOCKET, 3) < 0 || fcntl(REPORT, F_SETFD, FD_CLOEXEC) != 0)
		fail("keep", "socket");
	close(SOCKET);
	if (syscall(SYS_close_range, REPORT + 1, ~0u, 0) != 0)
		fail("close", "descriptors");
	execve(argv[0], argv, envp);
	fail("execute", argv[0]);
}

static void step(char letter)
{
	switch (letter) {
	case 'h': { const char *s = text(); if (sethostname(s, strlen(s)) != 0) fail("set", "host name"); return; }
	case 'd': { const char *s = text(); if (setdomainname(s, strlen(s)) != 0) fail("set", "domain name"); return; }
	case 'p': enter(text()); return;
	case 'm': mount_new(); return;
	case 'b': bind(); return;
	case 'f': make_file(); return;
	case 'l': make_link(); return;
	case 'k': make_directory(); return;
	case 'n': take_null(); return;
	case 'w': write_value(); return;
	case 'x': mask(); return;
	case 'o': protect(); return;
	case 'a': { const char *s = text(); set_attributes(AT_FDCWD, s, 0, number()); return; }
	case 'q': leave(); return;
	case 'r': limit(); return;
	case 'u': become(); return;
	case 'e': start();
	default: malformed();
	}
}

int main(void)
{
	read_plan();
	/* The cgroup namespace begins where we are now, which clone(2) would have taken
	 * from our parent; the time namespace with the next execve. */
	if (unshare(CLONE_NEWCGROUP) != 0)
		fail("make", "cgroup namespace");
	if (unshare(CLONE_NEWTIME_) != 0 && errno != EINVAL)
		fail("make", "time namespace");
	if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_, "engine", 0, 0, 0) < 0 && errno != ENOSYS)
		fail("make", "session keyring");
	if (setsid() < 0 && errno != EPERM)
		fail("make", "session");
	for (;;) {
		char *letter = text();

		if (letter[0] == 0 || letter[1] != 0)
			malformed();
		step(letter[0]);
	}
}
