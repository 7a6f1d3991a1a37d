/*
 * pty: a program on a terminal of its own.
 *
 *	guest pty [ROWSxCOLUMNS] -- COMMAND [ARG...]
 *
 * stdin is a sequence of frames: a type of one byte, the length of what follows as
 * u32, little endian, then as many bytes.
 *
 *	D  up to 65536 bytes   keys: written to the terminal
 *	R  u16 rows, u16 cols  the window has another size: the programs get SIGWINCH
 *	E  nothing             no more keys come; nothing may follow. The end of stdin
 *	                       means the same
 *
 * What the terminal shows goes to stdout as it comes. Anything else in a frame ends
 * us with status 125, and the program with its terminal.
 *
 * The end of the keys is what a person does who has no more to type: the terminal's
 * end-of-file character, once at the start of a line, twice within one, where the
 * first only sends what was typed so far. A hang-up instead would take away the
 * terminal from a program that has not answered yet.
 *
 * We are the leader of a session, as everything is that engine-init starts, and the
 * terminal becomes its controlling one. The program begins in our process group, so
 * that a signal for the group reaches it as it would without us. A shell with job
 * control moves to a group of its own; then we pass on what other processes send to
 * ours. Signals of the keyboard come from the kernel, are the program's own matter,
 * and end neither us nor what we still have to copy.
 *
 * We end as the program did, by the same signal if it was one, after all that it had
 * written is copied. What it left running in the background keeps no terminal then.
 */
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define KEYS_MAX  65536u
/* A pipe that polls writable takes as much without blocking: PIPE_BUF. */
#define CHUNK     4096u
/* More than a terminal holds: what comes later is not the program's. */
#define DRAIN_MAX (1u << 20)

static int terminal; /* the side that shows and types */
static int signals;  /* signalfd */
static pid_t program;

/*** Keys ***/

static struct {
	uint8_t header[5];
	size_t have; /* of header, then of keys */
	uint32_t size;
	bool keyed; /* the header is complete */
} frame;

static uint8_t keys[KEYS_MAX]; /* for the terminal, which takes them when it can */
static size_t keys_at, keys_end;
static bool ended; /* no more frames are read */
static bool mid_line;

static void resize(const uint8_t *data)
{
	struct winsize size = {
		.ws_row = (unsigned short)(data[0] | data[1] << 8),
		.ws_col = (unsigned short)(data[2] | data[3] << 8),
	};

	(void)ioctl(terminal, TIOCSWINSZ, &size);
}

static void end_keys(void)
{
	struct termios mode;
	uint8_t eof = 4;
	bool lines = true;

	ended = true;
	if (tcgetattr(terminal, &mode) == 0) {
		lines = mode.c_lflag & ICANON;
		eof = mode.c_cc[VEOF];
	}
	/* Whatever was typed before is on its way already: the frame comes after it. */
	keys_at = keys_end = 0;
	keys[keys_end++] = eof;
	if (lines && mid_line)
		keys[keys_end++] = eof;
}

/* frame_done acts on a complete frame, whose bytes are in keys. */
static void frame_done(void)
{
	uint8_t type = frame.header[0];

	keys_at = keys_end = 0;
	if (type == 'D') {
		keys_end = frame.size;
		if (keys_end > 0)
			mid_line = keys[keys_end - 1] != '\n' && keys[keys_end - 1] != '\r';
	} else if (type == 'R') {
		resize(keys);
	} else {
		end_keys();
	}
	frame.have = 0;
	frame.keyed = false;
}

static void frame_begun(void)
{
	const uint8_t *h = frame.header;

	frame.size = (uint32_t)h[1] | (uint32_t)h[2] << 8 | (uint32_t)h[3] << 16 | (uint32_t)h[4] << 24;
	if (!(h[0] == 'D' && frame.size <= KEYS_MAX) && !(h[0] == 'R' && frame.size == 4) &&
	    !(h[0] == 'E' && frame.size == 0))
		fail("understand what comes for the terminal", EPROTO);
	frame.keyed = true;
	frame.have = 0;
}

/* read_keys reads what there is of a frame. It is called when the terminal has taken
 * all keys so far, so that who types is slowed down by a program that does not read. */
static void read_keys(void)
{
	uint8_t *to = frame.keyed ? keys : frame.header;
	size_t want = frame.keyed ? frame.size : sizeof frame.header;
	ssize_t n = read(0, to + frame.have, want - frame.have);

	if (n <= 0) {
		end_keys();
		return;
	}
	frame.have += (size_t)n;
	if (!frame.keyed && frame.have == sizeof frame.header)
		frame_begun();
	if (frame.keyed && frame.have == frame.size)
		frame_done();
}

static void type_keys(void)
{
	ssize_t n = write(terminal, keys + keys_at, keys_end - keys_at);

	if (n > 0)
		keys_at += (size_t)n;
	else if (errno != EAGAIN)
		fail("type", errno);
}

/*** What it shows ***/

static char shown[CHUNK]; /* for stdout */
static size_t shown_size;

/* look reads what the terminal shows, a chunk at most, and reports whether there was
 * something. */
static bool look(void)
{
	ssize_t n = read(terminal, shown, sizeof shown);

	shown_size = n > 0 ? (size_t)n : 0;
	return n > 0;
}

static void show(void)
{
	if (!write_all(1, shown, shown_size))
		_exit(EXIT_ENGINE); /* nobody looks: the program meets a hang-up */
	shown_size = 0;
}

/*** The program ***/

static _Noreturn void finish(int status)
{
	size_t drained = 0;
	sigset_t one;
	int signo;

	do
		show();
	while ((drained += CHUNK) <= DRAIN_MAX && look());
	if (WIFEXITED(status))
		_exit(WEXITSTATUS(status));
	signo = WTERMSIG(status);
	(void)prctl(PR_SET_DUMPABLE, 0); /* it was not we who failed: no core of ours */
	(void)signal(signo, SIG_DFL);
	sigemptyset(&one);
	sigaddset(&one, signo);
	(void)sigprocmask(SIG_UNBLOCK, &one, NULL);
	(void)raise(signo);
	_exit(128 + signo);
}

/* take_signals collects the program, and passes on what was sent to our group, which
 * it may have left. */
static void take_signals(void)
{
	struct signalfd_siginfo info;
	pid_t group;

	while (read(signals, &info, sizeof info) == sizeof info) {
		int status;

		if (info.ssi_signo == SIGCHLD) {
			if (waitpid(program, &status, WNOHANG) == program)
				finish(status);
			continue;
		}
		group = getpgid(program);
		if (info.ssi_code <= 0 && group > 1 && group != getpgrp())
			(void)kill(-group, (int)info.ssi_signo);
	}
}

/* watch copies in both directions until the program has ended. Each side waits for
 * the one that it copies to: nothing is read that cannot be passed on yet. */
static _Noreturn void watch(void)
{
	for (;;) {
		bool typing = keys_at < keys_end, showing = shown_size > 0;
		struct pollfd poll_for[] = {
			{ .fd = signals, .events = POLLIN },
			{ .fd = terminal, .events = (short)((showing ? 0 : POLLIN) | (typing ? POLLOUT : 0)) },
			{ .fd = ended || typing ? -1 : 0, .events = POLLIN },
			{ .fd = showing ? 1 : -1, .events = POLLOUT },
		};

		if (poll(poll_for, 4, -1) < 0)
			fail("wait", errno);
		if (poll_for[0].revents)
			take_signals();
		if (poll_for[1].revents & POLLOUT)
			type_keys();
		if (poll_for[1].revents & POLLIN)
			(void)look();
		if (poll_for[2].revents)
			read_keys();
		if (poll_for[3].revents)
			show();
	}
}

/*** Start ***/

static void parse_size(const char *text)
{
	uint8_t size[4];
	char *end;
	unsigned long rows = strtoul(text, &end, 10), columns;

	if (*end != 'x')
		fail("read the size of the window", EINVAL);
	columns = strtoul(end + 1, &end, 10);
	if (*end != 0 || rows > 65535 || columns > 65535)
		fail("read the size of the window", EINVAL);
	size[0] = (uint8_t)rows;
	size[1] = (uint8_t)(rows >> 8);
	size[2] = (uint8_t)columns;
	size[3] = (uint8_t)(columns >> 8);
	resize(size);
}

/* open_terminal makes the terminal our session's and returns the program's side. It
 * stays open here: a terminal that nobody had open for a moment would be hung up. */
static int open_terminal(void)
{
	char name[32] = "/dev/pts/";
	unsigned number, digits = 1;
	int unlock = 0, slave;

	terminal = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
	if (terminal < 0)
		fail("open /dev/ptmx", errno);
	if (ioctl(terminal, (int)TIOCSPTLCK, &unlock) != 0 || ioctl(terminal, (int)TIOCGPTN, &number) != 0)
		fail("set up a terminal", errno);
	for (unsigned n = number; n >= 10; n /= 10)
		digits++;
	for (size_t at = strlen(name) + digits; digits-- > 0; number /= 10)
		name[--at] = (char)('0' + number % 10);
	slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0)
		fail("open a terminal", errno);
	/* Started by hand, we may not lead a session yet. */
	(void)setsid();
	if (ioctl(slave, TIOCSCTTY, 0) != 0)
		fail("take a terminal as the session's", errno);
	return slave;
}

static void start(char **argv, int slave, const sigset_t *none)
{
	extern char **environ;
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	int error = posix_spawn_file_actions_init(&actions);

	for (int fd = 0; fd < 3 && error == 0; fd++)
		error = posix_spawn_file_actions_adddup2(&actions, slave, fd);
	if (error == 0)
		error = posix_spawnattr_init(&attributes);
	if (error == 0)
		error = posix_spawnattr_setsigmask(&attributes, none);
	if (error == 0)
		error = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
	if (error == 0)
		error = posix_spawnp(&program, argv[0], &actions, &attributes, argv, environ);
	if (error != 0) {
		complain("run command=", argv[0], error);
		_exit(error == ENOENT || error == ENOTDIR ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE);
	}
}

_Noreturn void pty(char **argv)
{
	const char *size = NULL;
	sigset_t all, none;
	int slave;

	if (strcmp(argv[0], "--") != 0)
		size = *argv++;
	if (argv[0] == NULL || strcmp(argv[0], "--") != 0 || argv[1] == NULL)
		fail("find a command after --", EINVAL);
	/* Blocked, no signal ends or stops us, and none is lost; the program has none
	 * blocked. What the fault of an instruction raises would still end us. */
	sigfillset(&all);
	sigemptyset(&none);
	if (sigprocmask(SIG_SETMASK, &all, NULL) != 0)
		fail("block signals", errno);
	signals = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals < 0)
		fail("receive signals", errno);
	slave = open_terminal();
	if (size != NULL)
		parse_size(size);
	start(argv + 1, slave, &none);
	watch();
}
