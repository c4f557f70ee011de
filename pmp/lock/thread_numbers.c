// SPDX-License-Identifier: Apache-2.0
#include "lock/thread_numbers.h"

static uint64_t hash_of(uint64_t number)
{
	return stall_hash(&number, sizeof(number));
}

static uint32_t tid_of(const struct stall_thread *thread)
{
	return (uint32_t)(thread->ns_tid ? thread->ns_tid : thread->tid);
}

uint32_t stall_thread_of_tid(const struct stall_thread_numbers *numbers, uint32_t ns_tid)
{
	size_t at = 0;
	uint32_t found;

	while ((found = stall_hash_index_next(&numbers->by_tid, hash_of(ns_tid), &at)) !=
	       STALL_HASH_END)
		if (tid_of(&numbers->snapshot->threads[found]) == ns_tid)
			break;
	return found;
}

uint32_t stall_thread_of_pthread(const struct stall_thread_numbers *numbers, uint64_t pthread)
{
	size_t at = 0;
	uint32_t found;

	while ((found = stall_hash_index_next(&numbers->by_pthread, hash_of(pthread), &at)) !=
	       STALL_HASH_END)
		if (numbers->snapshot->threads[found].fs_base == pthread)
			break;
	return found;
}

struct stall_error *stall_thread_numbers_init(struct stall_thread_numbers *numbers,
					      const struct stall_snapshot *snapshot,
					      uint32_t process)
{
	*numbers = (struct stall_thread_numbers){.snapshot = snapshot};
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		const struct stall_thread *thread = &snapshot->threads[i];

		if (thread->process != process)
			continue;
		numbers->lacks_pthreads |= !thread->fs_base;
		// A program may give one address to all of its threads.
		bool is_new = thread->fs_base &&
			      stall_thread_of_pthread(numbers, thread->fs_base) == UINT32_MAX;
		if (!stall_hash_index_add(&numbers->by_tid, hash_of(tid_of(thread)), i) ||
		    (is_new &&
		     !stall_hash_index_add(&numbers->by_pthread, hash_of(thread->fs_base), i))) {
			stall_thread_numbers_deinit(numbers);
			return &stall_enomem;
		}
	}
	return NULL;
}

void stall_thread_numbers_deinit(struct stall_thread_numbers *numbers)
{
	stall_hash_index_deinit(&numbers->by_tid);
	stall_hash_index_deinit(&numbers->by_pthread);
	*numbers = (struct stall_thread_numbers){};
}
