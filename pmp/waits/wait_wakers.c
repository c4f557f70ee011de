// SPDX-License-Identifier: Apache-2.0
#include "waits/wait_wakers.h"

#include <string.h>

void stall_wakers_add(struct stall_wakers *wakers, const struct stall_wait_record *record,
		      uint32_t stack, enum stall_label label)
{
	struct stall_waker *waker = &wakers->wakers[wakers->count++ % STALL_WAKERS];

	*waker = (struct stall_waker){
		.tag = stall_wait_tag(&record->key),
		.when_ns = record->now_ns,
		.tid = record->tid,
		.stack = stack,
		.label = label,
	};
	memcpy(waker->comm, record->comm, sizeof(waker->comm));
}

// Records of several CPUs come in the order in which they were begun, so that one from after the
// wait's end may stand before it.
const struct stall_waker *stall_wakers_find(const struct stall_wakers *wakers,
					    const struct stall_wait_record *end)
{
	uint64_t tag = stall_wait_tag(&end->key);
	uint64_t oldest = wakers->count > STALL_WAKERS ? wakers->count - STALL_WAKERS : 0;
	const struct stall_waker *found = NULL;

	for (uint64_t i = wakers->count; i > oldest; i--) {
		const struct stall_waker *waker = &wakers->wakers[(i - 1) % STALL_WAKERS];
		if (waker->tag != tag || waker->when_ns > end->now_ns ||
		    waker->when_ns < end->start_ns)
			continue;
		if (!found || waker->when_ns > found->when_ns)
			found = waker;
	}
	return found;
}
