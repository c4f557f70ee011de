// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder_slots.h"

#include <sys/prctl.h>

#include "inproc/recorder_maps.h"
#include "inproc/recorder_wait.h"

#define RETRY_NS 1000000000ULL
#define NO_SLOT UINT32_MAX
#define MAX_CHECKED 64 // slots whose thread is checked, for each slot that is taken

static int32_t *const owners = recorder_state.owners;

void recorder_read_comm(char comm[STALL_BPF_COMM])
{
	char text[STALL_BPF_COMM] = "";

	raw_call2(SYS_prctl, PR_GET_NAME, text);
	for (int i = 0; i < STALL_BPF_COMM; i++)
		comm[i] = text[i];
}

static struct stall_wait_slot *slot_at(const struct recorder_ring *ring, uint32_t index)
{
	return (struct stall_wait_slot *)recorder_ring_at(ring, ring->layout.slots_offset) + index;
}

// Of a thread that ended with it.
static void unmark_slot(struct recorder_ring *ring, struct stall_wait_slot *slot)
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
	recorder_marks_remove(recorder_mark_of(slot->key.id));
}

// Its last thread is not in a call any more.
static void empty(struct recorder_ring *ring, struct stall_wait_slot *slot)
{
	if (!recorder_ring_has(ring, (uint8_t *)slot - (uint8_t *)ring->header, sizeof(*slot)))
		return;
	uint32_t seq = slot->seq;
	__atomic_store_n(&slot->seq, seq + (seq & 1), __ATOMIC_RELEASE);
	unmark_slot(ring, slot);
	__atomic_store_n(&slot->tid, 0, __ATOMIC_RELEASE);
}

// A thread that ended by a bare exit(2), or was killed alone, has not freed its slot.
static void reclaim(struct recorder_ring *ring)
{
	uint32_t count = __atomic_load_n(&recorder_state.slots_used, __ATOMIC_RELAXED);
	uint32_t first =
		__atomic_fetch_add(&recorder_state.next_checked, MAX_CHECKED, __ATOMIC_RELAXED);

	for (uint32_t i = 0; i < MAX_CHECKED && i < count; i++) {
		uint32_t index = (first + i) % count;
		int32_t tid = __atomic_load_n(&owners[index], __ATOMIC_RELAXED);
		if (tid <= 0 || raw_call3(SYS_tgkill, ring->layout.pid, tid, 0) != -ESRCH ||
		    !__atomic_compare_exchange_n(&owners[index], &tid, -1, false, __ATOMIC_ACQUIRE,
						 __ATOMIC_RELAXED))
			continue;
		empty(ring, slot_at(ring, index));
		__atomic_store_n(&owners[index], 0, __ATOMIC_RELEASE);
	}
}

static bool claim(uint32_t index, int32_t tid)
{
	int32_t none = 0;

	return __atomic_load_n(&owners[index], __ATOMIC_RELAXED) == 0 &&
	       __atomic_compare_exchange_n(&owners[index], &none, tid, false, __ATOMIC_ACQUIRE,
					   __ATOMIC_RELAXED);
}

static void raise_to(uint32_t *maximum, uint32_t value)
{
	uint32_t seen = __atomic_load_n(maximum, __ATOMIC_RELAXED);

	while (seen < value && !__atomic_compare_exchange_n(maximum, &seen, value, true,
							    __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

// The first free one, or that of an ended thread whose tid this one was given.
static uint32_t find(struct recorder_ring *ring, int32_t tid)
{
	uint32_t count = __atomic_load_n(&recorder_state.slots_used, __ATOMIC_ACQUIRE),
		 slots = recorder_slots_ready(ring);

	for (uint32_t i = 0; i < count; i++) {
		if (__atomic_load_n(&owners[i], __ATOMIC_RELAXED) == tid) {
			empty(ring, slot_at(ring, i));
			return i;
		}
	}
	for (uint32_t i = 0; i < slots; i++) {
		if (claim(i, tid)) {
			raise_to(&recorder_state.slots_used, i + 1);
			return i;
		}
	}
	return NO_SLOT;
}

static uint32_t find_or_reclaim(struct recorder_ring *ring, int32_t tid)
{
	uint32_t count = __atomic_load_n(&recorder_state.slots_used, __ATOMIC_ACQUIRE);
	uint32_t index = find(ring, tid);

	if (index < count)
		return index;
	reclaim(ring); // before more and more are used
	return index != NO_SLOT ? index : find(ring, tid);
}

bool recorder_slot_is_due(const struct recorder_thread *thread)
{
	return !thread->ended && recorder_is_own_process() &&
	       (!thread->refused_ns || recorder_now() - thread->refused_ns >= RETRY_NS);
}

bool recorder_slot_take(struct recorder_ring *ring, struct recorder_thread *thread)
{
	uint64_t now = recorder_now();
	int32_t tid = raw_call0(SYS_gettid);
	uint32_t index = find_or_reclaim(ring, tid);
	uint64_t size = (index + 1ULL) * sizeof(struct stall_wait_slot);
	if (index == NO_SLOT || !recorder_ring_has(ring, ring->layout.slots_offset, size)) {
		if (index != NO_SLOT)
			__atomic_store_n(&owners[index], 0, __ATOMIC_RELEASE);
		thread->refused_ns = now;
		recorder_ring_lost(ring, STALL_LOST_SLOTS_FULL);
		return false;
	}
	struct stall_wait_slot *slot = slot_at(ring, index);
	thread->generation = ring->generation;
	thread->index = index;
	thread->slot = slot;
	thread->seq = slot->seq & ~1u;
	thread->has_stack = false;
	thread->marked = false;
	slot->tgid = ring->layout.pid;
	slot->ns_tid = tid;
	recorder_read_comm(slot->comm);
	__atomic_store_n(&slot->tid, tid, __ATOMIC_RELEASE);
	raise_to(&ring->header->slots_used, index + 1);
	recorder_maps_refresh_alone(ring, now);
	return true;
}

void recorder_slot_free(struct recorder_ring *ring, struct recorder_thread *thread)
{
	struct stall_wait_slot *slot = thread->slot;

	thread->slot = NULL;
	empty(ring, slot);
	__atomic_store_n(&owners[thread->index], 0, __ATOMIC_RELEASE);
}

uint64_t recorder_oldest_wait(struct recorder_ring *ring, uint64_t object, uint32_t *ret_count)
{
	uint32_t slots = __atomic_load_n(&recorder_state.slots_used, __ATOMIC_ACQUIRE), count = 0;
	uint64_t oldest = 0;

	for (uint32_t i = 0; i < slots; i++) {
		const struct stall_wait_slot *slot = slot_at(ring, i);

		if (__atomic_load_n(&owners[i], __ATOMIC_RELAXED) <= 0 ||
		    !recorder_ring_has(ring, (uint8_t *)slot - (uint8_t *)ring->header,
				       sizeof(*slot)))
			continue;
		uint32_t seq = __atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE);
		uint64_t id = __atomic_load_n(&slot->key.id, __ATOMIC_RELAXED);
		uint32_t kind = __atomic_load_n(&slot->key.kind, __ATOMIC_RELAXED);
		uint64_t start = __atomic_load_n(&slot->start_ns, __ATOMIC_RELAXED);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (!(seq & 1) || kind != STALL_WAIT_FUTEX || id != object ||
		    __atomic_load_n(&slot->seq, __ATOMIC_RELAXED) != seq)
			continue;
		count++;
		if (!oldest || start < oldest)
			oldest = start;
	}
	*ret_count = count;
	return oldest;
}

void recorder_mark(struct recorder_thread *thread)
{
	thread->marked = true;
	thread->mark = recorder_mark_of(thread->object);
	__atomic_fetch_add(&thread->stat->marked, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&thread->slot->marked, thread->seq, __ATOMIC_RELAXED);
	recorder_marks_add(thread->mark, thread->start_ns);
}

void recorder_unmark(struct recorder_thread *thread)
{
	thread->marked = false;
	__atomic_store_n(&thread->slot->marked, 0, __ATOMIC_RELAXED);
	__atomic_fetch_sub(&thread->stat->marked, 1, __ATOMIC_RELAXED);
	recorder_marks_remove(thread->mark);
}
