/*
 * Watches: what happens in directories, as inotify tells it. The kernel's queue is the
 * only one: while nobody takes what we say, it fills up, and then says so.
 */
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#define WATCHED (IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MODIFY | IN_CLOSE_WRITE | IN_ATTRIB | \
		 IN_MOVED_FROM | IN_MOVED_TO | IN_MOVE_SELF)

static int inotify; /* 0: none yet */

/* watch_descriptor is readable when there are news; -1 while nothing is watched. */
int watch_descriptor(void)
{
	return inotify > 0 ? inotify : -1;
}

int watch_add(const char *path, bool nofollow, uint32_t *watch)
{
	int wd;

	if (inotify == 0) {
		int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

		if (fd < 0)
			return errno;
		inotify = fd;
	}
	wd = inotify_add_watch(inotify, path, WATCHED | (nofollow ? IN_DONT_FOLLOW : 0));
	if (wd < 0)
		return errno;
	*watch = (uint32_t)wd;
	return 0;
}

int watch_remove(uint32_t watch)
{
	if (inotify == 0)
		return EINVAL;
	return inotify_rm_watch(inotify, (int)watch) == 0 ? 0 : errno;
}

/* watch_read passes on what the kernel has, one buffer at most: requests have their turn
 * however much happens. */
void watch_read(void)
{
	static char buffer[16 << 10] __attribute__((aligned(8)));
	ssize_t n = read(inotify, buffer, sizeof buffer);

	for (ssize_t at = 0; at < n;) {
		const struct inotify_event *event = (const struct inotify_event *)(buffer + at);
		size_t name = event->len > 0 ? strnlen(event->name, event->len) : 0;
		char news[8 + NAME_MAX];

		memcpy(news, &event->mask, 4);
		memcpy(news + 4, &event->cookie, 4);
		if (name > NAME_MAX)
			name = NAME_MAX;
		memcpy(news + 8, event->name, name);
		send_event(event->mask & IN_Q_OVERFLOW ? UINT32_MAX : (uint32_t)event->wd, news, 8 + name);
		at += (ssize_t)(sizeof *event + event->len);
	}
}
