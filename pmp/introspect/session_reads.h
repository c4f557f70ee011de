// SPDX-License-Identifier: Apache-2.0
// Many reads of the memory of processes, as one step: a call of the kernel takes hundreds of them.
#ifndef STALL_SESSION_READS_H
#define STALL_SESSION_READS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proc/read_child.h"
#include "snapshot/snapshot.h"

struct stall_session_reads {
	struct stall_read *reads;
	uint32_t *process;
	size_t **done;
	size_t count, capacity;
};

struct stall_error *stall_session_reads_init(struct stall_session_reads *reads, size_t capacity);
void stall_session_reads_deinit(struct stall_session_reads *reads);

// Of one process after the other. `ret_done` gets how many bytes were read. Beyond the capacity
// nothing is read.
void stall_session_reads_add(struct stall_session_reads *reads, uint32_t process, uint64_t address,
			     void *buf, size_t size, size_t *ret_done);
// Runs those that were added, in their order, and forgets them.
void stall_session_reads_run(struct stall_session_reads *reads,
			     const struct stall_snapshot *snapshot);

#endif
