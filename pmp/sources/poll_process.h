// SPDX-License-Identifier: Apache-2.0
// A process whose threads are polled.
#ifndef STALL_POLL_PROCESS_H
#define STALL_POLL_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "proc/target.h"
#include "sources/poll_files.h"
#include "sources/poll_thread.h"

struct stall_poll_process {
	struct stall_target target;
	int task;			    // descriptor of /proc/PID/task
	struct stall_poll_thread **threads; // by TID
	size_t count;
	uint64_t image; // of its memory: another one after exec
	uint64_t checked_ns;
	bool replaced;	// by another program, which is to be reported
	size_t refused; // threads that could not be read at the last pass
};

// `max`: the limit of threads. *ret_over counts those beyond it.
struct stall_error *stall_poll_process_create(struct stall_poll_reader *reader, pid_t pid,
					      size_t max, size_t *ret_over,
					      struct stall_poll_process **ret);
void stall_poll_process_destroy(struct stall_poll_reader *reader,
				struct stall_poll_process *process);

// Whether threads have begun or ended since they were listed, by their number.
bool stall_poll_process_is_stale(const struct stall_poll_process *process);
// Lists its threads again. Calls `ended` first for those that have ended.
typedef void (*stall_poll_ended_fn)(void *arg, struct stall_poll_thread *thread);
struct stall_error *stall_poll_process_list(struct stall_poll_reader *reader,
					    struct stall_poll_process *process, size_t max,
					    stall_poll_ended_fn ended, void *arg, size_t *ret_over);
// Sets `replaced` where it executes another program than at the last check.
void stall_poll_process_check(struct stall_poll_process *process, uint64_t now_ns);

#endif
