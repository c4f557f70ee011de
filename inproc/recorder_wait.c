// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder_wait.h"

#include "inproc/raw_call.h"

// marked_since: the approximate start of the oldest wait that was counted since the mark was last 0.
// A value that is too old costs a search; two waits that begin at the same moment may hide some
// milliseconds.

void recorder_marks_add(uint16_t mark, uint64_t start_ns)
{
	bool is_first = !__atomic_fetch_add(&recorder_state.marks[mark], 1, __ATOMIC_ACQ_REL);
	uint64_t *since = &recorder_state.marked_since[mark];

	if (is_first || __atomic_load_n(since, __ATOMIC_RELAXED) > start_ns)
		__atomic_store_n(since, start_ns, __ATOMIC_RELAXED);
}

void recorder_marks_remove(uint16_t mark)
{
	__atomic_fetch_sub(&recorder_state.marks[mark], 1, __ATOMIC_RELEASE);
}

bool recorder_mark_is_older(uint64_t object, uint64_t since_ns)
{
	return __atomic_load_n(&recorder_state.marked_since[recorder_mark_of(object)],
			       __ATOMIC_RELAXED) <= since_ns;
}
