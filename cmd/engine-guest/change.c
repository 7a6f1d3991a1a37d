/*
 * The requests that change files, as files.c describes them.
 */
#define _GNU_SOURCE
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MODE_KEEP 0xffffffffu
#define TIME_KEEP 0xffffffffu
#define NOREPLACE 1 /* renameat2's */

/* name_temp gives the file another name that nobody else chooses by chance. */
static void name_temp(char temp[32])
{
	static uint64_t count;
	uint64_t number = (uint64_t)getpid() << 32 | (uint32_t)count++;
	char *at = stpcpy(temp, ".engine-write-");

	for (int shift = 60; shift >= 0; shift -= 4)
		*at++ = "0123456789abcdef"[number >> shift & 15];
	*at = 0;
}

int op_create(void)
{
	struct handle *handle = new_handle();
	uint32_t mode = take32();
	struct place place;
	struct stat st;
	int error;

	take_path(path);
	if (handle == NULL)
		return EMFILE;
	if ((error = find(path, request.flags & PARENTS, &place)) != 0)
		return error;
	/* Asked for again when it is complete; what is known now saves sending it. */
	if (fstatat(place.dir, place.name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
		if (request.flags & EXCLUSIVE)
			error = EEXIST;
		else if (S_ISDIR(st.st_mode))
			error = EISDIR;
		else if (mode == MODE_KEEP && S_ISREG(st.st_mode))
			mode = st.st_mode & 0777;
	}
	for (int tries = 0; error == 0 && handle->fd == 0; tries++) {
		int fd;

		name_temp(handle->temp);
		fd = openat(place.dir, handle->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (fd >= 0)
			handle->fd = fd;
		else if (errno != EEXIST || tries == 100)
			error = errno;
	}
	if (error != 0) {
		handle->temp[0] = 0;
		close(place.dir);
		return error;
	}
	handle->place = place;
	handle->mode = mode == MODE_KEEP ? 0644 : mode & 0777;
	handle->exclusive = request.flags & EXCLUSIVE;
	return 0;
}

/* written is the file that is being made, NULL if the request names none. */
static struct handle *written(void)
{
	struct handle *handle = base_handle();

	return handle != NULL && handle->temp[0] != 0 ? handle : NULL;
}

int op_write(void)
{
	struct handle *handle = written();
	size_t size = request.size;
	const void *bytes = take(size);

	if (handle == NULL)
		return EBADF;
	return write_all(handle->fd, bytes, size) ? 0 : errno;
}

int op_commit(void)
{
	struct handle *handle = written();
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_nsec = UTIME_OMIT } };
	uint32_t nanoseconds;
	struct place *at;
	int error, fd;

	times[1].tv_sec = (time_t)take64();
	if ((nanoseconds = take32()) != TIME_KEEP)
		times[1].tv_nsec = (long)(nanoseconds % 1000000000);
	if (handle == NULL)
		return EBADF;
	at = &handle->place;
	fd = handle->fd;
	error = result(fchmod(fd, handle->mode));
	if (error == 0 && nanoseconds != TIME_KEEP)
		error = result(futimens(fd, times));
	if (close(fd) != 0 && error == 0)
		error = errno;
	handle->fd = -1;
	if (error == 0 && handle->exclusive)
		error = result(linkat(at->dir, handle->temp, at->dir, at->name, 0));
	else if (error == 0 && (error = result(renameat(at->dir, handle->temp, at->dir, at->name))) == 0)
		handle->temp[0] = 0;
	if (handle->temp[0] == 0)
		close(at->dir);
	drop(handle);
	return error;
}

int op_close(void)
{
	struct handle *handle = base_handle();

	if (handle == NULL)
		return EBADF;
	drop(handle);
	return 0;
}

int op_mkdir(void)
{
	uint32_t mode = take32();
	struct place place;
	struct stat st;
	int error;

	take_path(path);
	if ((error = find(path, request.flags & PARENTS, &place)) != 0)
		return error;
	/* The mode is set again, since making applies the umask. */
	if (mkdirat(place.dir, place.name, 0700) == 0)
		error = result(fchmodat(place.dir, place.name, mode & 01777, 0));
	else if ((error = errno) == EEXIST && request.flags & PARENTS &&
		 fstatat(place.dir, place.name, &st, nofollow()) == 0 && S_ISDIR(st.st_mode))
		error = 0;
	close(place.dir);
	return error;
}

/* find_both takes two paths of a request, of what is there and of what is to be. */
static int find_both(bool parents, struct place *from, struct place *to)
{
	int error;

	take_text(other, take16());
	take_path(path);
	if ((other[0] == '/') != (request.base == 0))
		malformed();
	if ((error = find(other, false, from)) != 0)
		return error;
	if ((error = find(path, parents, to)) != 0)
		close(from->dir);
	return error;
}

int op_rename(void)
{
	struct place from, to;
	int error = find_both(false, &from, &to);

	if (error != 0)
		return error;
	error = result((int)syscall(SYS_renameat2, from.dir, from.name, to.dir, to.name,
				    request.flags & EXCLUSIVE ? NOREPLACE : 0));
	close(to.dir);
	close(from.dir);
	return error;
}

int op_remove(void)
{
	struct place place;
	int error;

	take_path(path);
	if ((error = find(path, false, &place)) != 0)
		return error;
	if (request.flags & RECURSIVE)
		error = remove_tree(&place);
	else if ((error = result(unlinkat(place.dir, place.name, 0))) == EISDIR)
		error = result(unlinkat(place.dir, place.name, AT_REMOVEDIR));
	close(place.dir);
	return error;
}

int op_symlink(void)
{
	struct place place;
	int error;

	take_text(other, take16());
	take_path(path);
	if ((error = find(path, request.flags & PARENTS, &place)) != 0)
		return error;
	error = result(symlinkat(other, place.dir, place.name));
	close(place.dir);
	return error;
}

int op_link(void)
{
	struct place from, to;
	int error = find_both(request.flags & PARENTS, &from, &to);

	if (error != 0)
		return error;
	error = result(linkat(from.dir, from.name, to.dir, to.name, 0));
	close(to.dir);
	close(from.dir);
	return error;
}

int op_chmod(void)
{
	uint32_t mode = take32();
	struct place place;
	struct stat st;
	int error;

	take_path(path);
	if ((error = find(path, false, &place)) != 0)
		return error;
	/* fchmodat follows. A link has no mode of its own. */
	if (nofollow() && fstatat(place.dir, place.name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode))
		error = EOPNOTSUPP;
	if (error == 0)
		error = result(fchmodat(place.dir, place.name, mode & 07777, 0));
	close(place.dir);
	return error;
}
