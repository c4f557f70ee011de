/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the threads of the process write beside the ring, in memory that a fork(2) does not take
 * away: a page of private memory may be written after a fork only once it is copied, which waits
 * for the memory map. The kernel gives a child zeros here instead (Linux 4.14), so nothing in the
 * parent is copied.
 */
#ifndef STALL_RECORDER_STATE_H
#define STALL_RECORDER_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "inproc/ring.h"

#define RECORDER_MARKS 4096
#define RECORDER_STARTS 512
#define RECORDER_MAX_PAGES (STALL_RING_MAX_FILE / STALL_RING_PAGE)

struct recorder_run {
	void *(*run)(void *);
	void *argument;
};
/* A thread that is being created, until it begins. */
struct recorder_start {
	struct recorder_run run;
	uint64_t stack_size; /* without guards */
	uint32_t is_used;
};

/* What a thread knows of the descriptor that it used last (recorder_transfers.h). The first 64
 * bytes are all that most calls need. */
struct recorder_file {
	uint64_t checked_ns; /* CLOCK_MONOTONIC_COARSE */
	uint64_t size, tag;
	struct stall_wait_stat *stat;
	uint64_t bytes;	  /* of calls that are not counted in the stat yet, */
	uint32_t pending; /* and their number */
	uint32_t calls;	  /* not measured, on this stat */
	uint32_t operation;
	int fd;
	uint32_t kind;
	struct stall_wait_key key;
	uint64_t ns; /* of the call that was measured */
} __attribute__((aligned(64)));

struct recorder_state {
	/* 0 in any child, until it notices: _Fork() and clone(2) run no handlers. A child of
	 * vfork(2) shares the memory of its parent, and counts as the parent. */
	uint32_t is_own;
	uint32_t has_threads; /* or had: no call of the library waits for the memory map */
	uint32_t marks[RECORDER_MARKS] __attribute__((aligned(64)));
	uint64_t marked_since[RECORDER_MARKS];
	/* The owner of each slot, outside of the file, so that a search is fast and no one else can
	 * change it. */
	int32_t owners[STALL_RING_MAX_SLOTS];
	uint32_t slots_used;   /* all slots with an owner are below */
	uint32_t slots_ready;  /* all slots below have their memory */
	uint32_t threads;      /* that pthread_create() has made and that have not ended */
	uint32_t next_checked; /* slot */
	uint64_t record_clock; /* when the next record is due at an even rate */
	uint32_t next_start;
	struct recorder_start starts[RECORDER_STARTS];
	uint64_t there[RECORDER_MAX_PAGES / 64]; /* a bit for each page of the ring */
	struct recorder_file files[STALL_RING_MAX_SLOTS];
} __attribute__((aligned(STALL_RING_PAGE)));
extern struct recorder_state recorder_state __attribute__((visibility("hidden")));

/* In the child of a fork. */
void recorder_state_forget(void);

/* Makes pages of private memory present, for writing. */
void recorder_touch(const volatile void *start, uint64_t size);
/* The same for all that the library reads and writes, except for the files of slots. */
void recorder_touch_library(void);

#endif
