#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "probe.h"

extern char **environ;

static void identity(void)
{
	gid_t groups[64];
	int n = getgroups(64, groups);
	struct utsname u;
	uname(&u);
	mode_t mask = umask(0);
	umask(mask);
	printf("uid %d %d\ngid %d %d\ngroups %d\n", (int)getuid(), (int)geteuid(), (int)getgid(), (int)getegid(), n);
	for (int i = 0; i < n; i++)
		printf("group %d\n", (int)groups[i]);
	printf("hostname %s\ndomainname %s\numask %04o\n", u.nodename, u.domainname, (unsigned)mask);
	printf("pid %d\nppid %d\nsid %d\n", (int)getpid(), (int)getppid(), (int)getsid(0));
	for (char **e = environ; *e; e++)
		printf("env %s\n", *e);
	char cwd[4096];
	printf("cwd %s\n", getcwd(cwd, sizeof cwd) ? cwd : "?");
	printf("signals");
	for (int s = 1; s < 32; s++) {
		struct sigaction old;
		if (s != SIGKILL && s != SIGSTOP && !sigaction(s, NULL, &old) && old.sa_handler != SIG_DFL)
			printf(" ignored:%d", s);
	}
	sigset_t set;
	sigprocmask(SIG_SETMASK, NULL, &set);
	for (int s = 1; s < 32; s++)
		if (sigismember(&set, s) == 1)
			printf(" blocked:%d", s);
	puts("");
}

static void descriptors(void)
{
	for (int fd = 0; fd < 4096; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			printf("fd %d%s\n", fd, fcntl(fd, F_GETFL) & O_NONBLOCK ? " nonblocking" : "");
}

static void namespaces(void)
{
	static const char *kinds[] = {"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		char path[64], link[128] = "";
		snprintf(path, sizeof path, "/proc/self/ns/%s", kinds[i]);
		if (readlink(path, link, sizeof link - 1) > 0)
			printf("ns %s\n", link);
	}
	show("uidmap", "/proc/self/uid_map");
	show("cgroup", "/proc/self/cgroup");
}

static void machine(void)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	if (!sched_getaffinity(0, sizeof set, &set))
		printf("affinity %d\n", CPU_COUNT(&set));
	struct sysinfo si;
	if (!sysinfo(&si))
		printf("sysinfo %llu\n", (unsigned long long)si.totalram * si.mem_unit);
	show("meminfo", "/proc/meminfo");
	show("cpuinfo", "/proc/cpuinfo");
	show("stat", "/proc/stat");
	show("cgroupfile memory.max", "/sys/fs/cgroup/memory.max");
	show("cgroupfile cpu.max", "/sys/fs/cgroup/cpu.max");
	show("cgroupfile pids.max", "/sys/fs/cgroup/pids.max");
}

static void limits(void)
{
	static const struct {
		const char *name;
		int which;
	} all[] = {
		{"core", RLIMIT_CORE},         {"nofile", RLIMIT_NOFILE}, {"memlock", RLIMIT_MEMLOCK}, {"stack", RLIMIT_STACK},
		{"msgqueue", RLIMIT_MSGQUEUE}, {"nice", RLIMIT_NICE},     {"rtprio", RLIMIT_RTPRIO},   {"sigpending", RLIMIT_SIGPENDING},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		struct rlimit r;
		if (!getrlimit(all[i].which, &r))
			printf("rlimit %s %lld %lld\n", all[i].name, (long long)r.rlim_cur, (long long)r.rlim_max);
	}
	static const char *dirs[] = {"/tmp", "/workload", "/dev/shm", "/dev", "/"};
	for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
		struct statvfs v;
		if (!statvfs(dirs[i], &v))
			printf("size %s %llu files %llu\n", dirs[i], (unsigned long long)v.f_blocks * v.f_frsize, (unsigned long long)v.f_files);
	}
}

static void network(void)
{
	struct if_nameindex *list = if_nameindex();
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	for (struct if_nameindex *i = list; i && i->if_name; i++) {
		struct ifreq r = {0};
		strncpy(r.ifr_name, i->if_name, sizeof r.ifr_name - 1);
		printf("link %s %s\n", i->if_name, !ioctl(s, SIOCGIFFLAGS, &r) && r.ifr_flags & IFF_UP ? "up" : "down");
	}
	if (!list)
		printf("link error %d\n", errno);
}

int posture(int argc, char **argv)
{
	(void)argc, (void)argv;
	descriptors();
	identity();
	show("status", "/proc/self/status");
	show("oom", "/proc/self/oom_score_adj");
	show("mount", "/proc/self/mountinfo");
	namespaces();
	machine();
	limits();
	network();
	show("passwd", "/etc/passwd");
	show("resolv", "/etc/resolv.conf");
	return 0;
}

/* try_directory reports a directory in which something can be made. */
static void try_directory(const char *path)
{
	char name[4200];
	snprintf(name, sizeof name, "%s/.probe", !strcmp(path, "/") ? "" : path);
	int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd >= 0) {
		printf("creatable %s\n", path);
		close(fd);
		unlink(name);
	}
	if (!mkdir(name, 0700)) {
		printf("mkdirable %s\n", path);
		rmdir(name);
	}
}

/* try_file reports a file that can be opened for writing, or that has set-id bits. */
static void try_file(const char *path, const struct stat *st)
{
	int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
	if (fd >= 0) {
		printf("%s %s\n", S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode) ? "device" : "writable", path);
		close(fd);
	}
	if (S_ISREG(st->st_mode) && st->st_mode & (S_ISUID | S_ISGID))
		printf("setid %s\n", path);
}

/* is_process leaves out the processes: what a program may do to itself is not at stake. */
static int is_process(const char *path)
{
	if (strncmp(path, "/proc/", 6))
		return 0;
	const char *name = path + 6;
	return (*name >= '0' && *name <= '9') || !strcmp(name, "self") || !strcmp(name, "thread-self");
}

static void walk(const char *path, int level)
{
	struct stat st;
	if (level > 40 || is_process(path) || lstat(path, &st) || S_ISLNK(st.st_mode))
		return;
	if (!S_ISDIR(st.st_mode)) {
		try_file(path, &st);
		return;
	}
	try_directory(path);
	DIR *d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));) {
		char next[4096];
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") &&
		    (size_t)snprintf(next, sizeof next, "%s/%s", !strcmp(path, "/") ? "" : path, e->d_name) < sizeof next)
			walk(next, level + 1);
	}
	if (d)
		closedir(d);
}

int writable(int argc, char **argv)
{
	walk(argc > 0 ? argv[0] : "/", 0);
	return 0;
}

/* masked says of each path whether a byte or an entry of it can be read. */
int masked(int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		char buf[64];
		int entries = 0;
		int fd = open(argv[i], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
		if (fd < 0) {
			printf("%s error %d\n", argv[i], errno);
			continue;
		}
		struct stat st;
		if (!fstat(fd, &st) && S_ISDIR(st.st_mode)) {
			DIR *d = fdopendir(fd);
			for (struct dirent *e; d && (e = readdir(d));)
				entries += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
			printf("%s entries %d\n", argv[i], entries);
			closedir(d);
			continue;
		}
		ssize_t n = read(fd, buf, sizeof buf);
		if (n < 0)
			printf("%s error %d\n", argv[i], errno);
		else
			printf("%s bytes %zd\n", argv[i], n);
		close(fd);
	}
	return 0;
}
