// SPDX-License-Identifier: Apache-2.0
// The threads of one process of a snapshot, by the numbers that its memory has for them.
#ifndef STALL_THREAD_NUMBERS_H
#define STALL_THREAD_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/hash_index.h"
#include "snapshot/snapshot.h"

struct stall_thread_numbers {
	const struct stall_snapshot *snapshot;
	struct stall_hash_index by_tid, by_pthread;
	bool lacks_pthreads; // of some the pthread_self() is not known
};

struct stall_error *stall_thread_numbers_init(struct stall_thread_numbers *numbers,
					      const struct stall_snapshot *snapshot,
					      uint32_t process);
void stall_thread_numbers_deinit(struct stall_thread_numbers *numbers);

// By the number in the process's own namespace, and by pthread_self(). UINT32_MAX: none; the first
// one of the snapshot where there are several.
uint32_t stall_thread_of_tid(const struct stall_thread_numbers *numbers, uint32_t ns_tid);
uint32_t stall_thread_of_pthread(const struct stall_thread_numbers *numbers, uint64_t pthread);

#endif
