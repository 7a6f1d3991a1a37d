/*
 * What the parts of engine-init share: the wire protocol, the job, the session.
 * The other end of the protocol is the Go package engine/initwire.
 */
#ifndef ENGINE_INIT_H
#define ENGINE_INIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The control socket, the only descriptor the runtime hands to us. */
enum { CONTROL = 3 };

/* Frames to the monitor. In a session those about one exec carry its id. */
enum frame_type {
	FRAME_READY = 1,    /* waiting for a job or a session */
	FRAME_STARTED = 2,  /* a: pid */
	FRAME_EXIT = 3,     /* a: exit code or -1, b: signal or 0, c: CPU microseconds */
	FRAME_ERR = 4,      /* a: errno, b: enum stage */
	FRAME_DEADLINE = 5, /* our own deadline passed */
	FRAME_SERVING = 6,  /* the session takes execs */
};

/* What the monitor sends. The first message is one of the first two. */
enum message_kind {
	MESSAGE_JOB = 0,
	MESSAGE_SESSION = 1,
	MESSAGE_EXEC = 2,     /* id: of the new exec */
	MESSAGE_SIGNAL = 3,   /* id: of an exec, arg: number of the signal for its process group */
	MESSAGE_DEADLINE = 4, /* a new deadline of the session */
};

/* Where starting a program failed. */
enum stage {
	STAGE_PROTOCOL = 1,
	STAGE_FILES = 2,
	STAGE_CWD = 3,
	STAGE_FILTER = 4,
	STAGE_EXEC = 5,
	STAGE_FORK = 6,
	STAGE_AFFINITY = 7,
};

/* Our own exit status when it is not the job's. */
enum {
	EXIT_DEADLINE = 124,
	EXIT_ENGINE = 125, /* the monitor is gone, or the sandbox could not be set up */
	EXIT_NOT_EXECUTABLE = 126,
	EXIT_NOT_FOUND = 127,
};

/* What the monitor asked for. Every pointer leads into memory, which also holds
 * the secrets; forget_job ends it. */
struct job {
	int stdio[3];           /* each above CONTROL */
	int64_t deadline;       /* CLOCK_MONOTONIC nanoseconds; 0: none */
	char *cwd;              /* absolute */
	char **argv;            /* at least one */
	char **envp;
	const void *filter;     /* struct sock_filter[filters], unaligned */
	unsigned filters;       /* 0: no filter */
	const void *cpus;       /* sched_setaffinity's mask, unaligned */
	size_t cpus_size;       /* 0: leave the affinity alone */
	char *files;            /* secret and other files, as they came */
	uint32_t file_count;
	void *memory;           /* NULL: there was none for an exec */
	size_t memory_size;
};

/* A whole message of the monitor's. An exec is a job without filter, mask and files:
 * those are its session's. */
struct message {
	enum message_kind kind;
	uint32_t id, arg;
	struct job job;
};

enum {
	SIGNAL_MAX = 64,
	/* How many dead children are collected before the socket and the clock are
	 * looked at again. */
	REAP_BATCH = 256,
};

/* init.c */
void send_frame(uint32_t exec, enum frame_type type, int32_t a, int32_t b, uint64_t c);
void send_frame_at(int64_t when, uint32_t exec, enum frame_type type, int32_t a, int32_t b, uint64_t c);
void send_exit(uint32_t exec, int status, uint64_t cpu);
_Noreturn void fail(enum stage stage, int error);
int64_t now(void);

/* job.c */
void receive_first(struct message *message);
bool receive_later(struct message *message, uint32_t session_env);
void write_files(const struct job *job);
void forget_files(struct job *job);
void forget_job(struct job *job);

/* start.c */

/* Why a program was not started; stage 0: it was. */
struct failure {
	enum stage stage;
	int error;
};
void ignore_signals(void);
pid_t start_job(struct job *job);
pid_t start_exec(struct job *exec, int *report);

/* session.c */
_Noreturn void serve(struct job *session);

#endif
