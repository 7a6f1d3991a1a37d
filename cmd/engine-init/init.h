/*
 * What the parts of engine-init share: the wire protocol and the job.
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

/* Frames to the monitor. */
enum frame_type {
	FRAME_READY = 1,    /* waiting for a job */
	FRAME_STARTED = 2,  /* a: pid */
	FRAME_EXIT = 3,     /* a: exit code or -1, b: signal or 0, c: CPU microseconds */
	FRAME_ERR = 4,      /* a: errno, b: enum stage */
	FRAME_DEADLINE = 5, /* our own deadline passed */
};

/* Where starting the job failed. */
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
	void *memory;
	size_t memory_size;
};

/* init.c */
void send_frame(enum frame_type type, int32_t a, int32_t b, uint64_t c);
_Noreturn void fail(enum stage stage, int error);
int64_t now(void);

/* job.c */
void receive_job(struct job *job);
void write_files(const struct job *job);
void forget_job(struct job *job);

/* start.c */
void ignore_signals(void);
pid_t start_job(struct job *job);

#endif
