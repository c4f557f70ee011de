// SPDX-License-Identifier: Apache-2.0
// Objects that threads have waited long for: who lets them go is recorded.
#include "inproc/recorder_private.h"

uint32_t recorder_marks[RECORDER_MARKS];
// When the oldest of the waits began that have been counted there since it was last 0, about: too old
// costs a look, and two that come at the same moment may hide some milliseconds.
static uint64_t since[RECORDER_MARKS];

static uint16_t mark_of(uint64_t object)
{
	return (object * 0x9e3779b97f4a7c15) >> 52;
}

void recorder_mark(struct recorder_thread *thread)
{
	uint16_t mark = mark_of(thread->object);

	thread->marked = true;
	thread->mark = mark;
	__atomic_fetch_add(&thread->stat->marked, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&thread->slot->marked, thread->seq, __ATOMIC_RELAXED);
	bool is_first = !__atomic_fetch_add(&recorder_marks[mark], 1, __ATOMIC_ACQ_REL);
	if (is_first || __atomic_load_n(&since[mark], __ATOMIC_RELAXED) > thread->start_ns)
		__atomic_store_n(&since[mark], thread->start_ns, __ATOMIC_RELAXED);
}

static void count_down(uint16_t mark)
{
	__atomic_fetch_sub(&recorder_marks[mark], 1, __ATOMIC_RELEASE);
}

void recorder_unmark(struct recorder_thread *thread)
{
	thread->marked = false;
	__atomic_store_n(&thread->slot->marked, 0, __ATOMIC_RELAXED);
	__atomic_fetch_sub(&thread->stat->marked, 1, __ATOMIC_RELAXED);
	count_down(thread->mark);
}

void recorder_unmark_slot(struct recorder_ring *ring, struct stall_wait_slot *slot)
{
	uint32_t index = __atomic_load_n(&slot->stat, __ATOMIC_RELAXED); // others may change it
	uint64_t offset = ring->layout.stats_offset + index * sizeof(struct stall_wait_stat);

	if (!__atomic_exchange_n(&slot->marked, 0, __ATOMIC_RELAXED))
		return;
	if (index < ring->layout.stat_count + STALL_WAIT_KINDS &&
	    recorder_ring_has_already(ring, offset, sizeof(struct stall_wait_stat))) {
		struct stall_wait_stat *stat = recorder_ring_at(ring, offset);
		__atomic_fetch_sub(&stat->marked, 1, __ATOMIC_RELAXED);
	}
	count_down(mark_of(slot->key.id));
}

bool recorder_mark_is_older(uint64_t object, uint64_t since_ns)
{
	return __atomic_load_n(&since[mark_of(object)], __ATOMIC_RELAXED) <= since_ns;
}

void recorder_marks_forget(void)
{
	recorder_clear(recorder_marks, sizeof(recorder_marks));
	recorder_clear(since, sizeof(since));
}
