// SPDX-License-Identifier: Apache-2.0
// Which THD (the server's object of a connection) a thread works for.
#ifndef STALL_THD_H
#define STALL_THD_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/layout.h"
#include "lock/server_memory.h"
#include "snapshot/snapshot.h"

struct stall_thds {
	uint64_t *of_thread; // by thread of the snapshot; 0 unknown
	size_t thread_count;
	struct stall_thd {
		uint64_t thd;
		uint32_t thread;
	} * sorted; // those that are known, each once
	size_t count;
};

// Of one process. By the layout's `thd.tls`: from the thread's fs base to a word with its THD.
struct stall_error *stall_thds_init(struct stall_thds *thds, const struct stall_snapshot *snapshot,
				    uint32_t process, const struct stall_layout *layout);
void stall_thds_deinit(struct stall_thds *thds);

// 0: unknown.
uint64_t stall_thd_of(const struct stall_thds *thds, uint32_t thread);
// The thread of a THD, UINT32_MAX: unknown, or more than one names it.
uint32_t stall_thds_find(const struct stall_thds *thds, uint64_t thd);

// The threads that work for these THDs, STALL_NO_THREAD: unknown. By the list above, and by what the
// objects say of their threads; where both are known they must agree.
struct stall_error *stall_server_threads_of_thds(const struct stall_server_memory *memory,
						 const uint64_t *thds, size_t count, uint32_t *ret);
uint32_t stall_server_thread_of_thd(const struct stall_server_memory *memory, uint64_t thd);

#endif
