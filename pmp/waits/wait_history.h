// SPDX-License-Identifier: Apache-2.0
// What all threads did at moments since the last line: the field "history" of stallscope.waits/1.
#ifndef STALL_WAIT_HISTORY_H
#define STALL_WAIT_HISTORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json_writer.h"
#include "ebpf/wait_kinds.h"

#define STALL_HISTORY_SAMPLES 120 // kept; of more, the oldest are dropped
#define STALL_HISTORY_ROWS 48	  // of a sample, the largest; the others are one row

// What a thread does. Threads that do the same are counted in one row.
struct stall_history_row {
	char state;		    // as in /proc
	int32_t call;		    // its system call; -1: none, or not known
	enum stall_watch_kind kind; // STALL_WATCH_KINDS: the call is no wait
	const char *name;	    // of the lock, or the class of the file; NULL: none
	const char *channel;	    // a function of the kernel; NULL: not known
};

struct stall_wait_history;

struct stall_error *stall_wait_history_create(struct stall_wait_history **ret);
void stall_wait_history_destroy(struct stall_wait_history *history);

// One sample: begin, add() for each thread, end. Without an end it is dropped.
void stall_wait_history_begin(struct stall_wait_history *history);
// Texts are copied.
void stall_wait_history_add(struct stall_wait_history *history,
			    const struct stall_history_row *row);
// `wall_ns`: CLOCK_REALTIME.
struct stall_error *stall_wait_history_end(struct stall_wait_history *history, uint64_t wall_ns);

// Writes the list of the samples since the last call, the oldest first.
void stall_wait_history_write(struct stall_wait_history *history, struct stall_json *json);

#endif
