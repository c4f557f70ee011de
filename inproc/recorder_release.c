// SPDX-License-Identifier: Apache-2.0
// Who lets an object go that others have waited long for.
#include "inproc/recorder_private.h"

#define QUEUE 8			   // so many waiters stall, however short each wait is for itself
#define QUEUE_PAUSE_NS 20000000ULL // between the releases of what has such a queue

// Taken at a pace, they are those of long holds mostly: the next after a pause is likely the end of
// one. A queue's are few, and not to be lost among the many of locks that one thread waits for.
static bool is_release_to_be_told(struct recorder_ring *ring, struct stall_wait_stat *stat,
				  bool is_queue, uint64_t now)
{
	uint64_t *last_ns = (uint64_t *)&stat->told_ns[1];

	if (is_queue)
		return recorder_is_due(last_ns, now, QUEUE_PAUSE_NS);
	return recorder_is_to_be_told(ring, stat, stat->role, last_ns, now);
}

static void tell_release(struct recorder_ring *ring, struct recorder_thread *thread,
			 uint64_t object, enum stall_ring_call call,
			 const struct recorder_place *place)
{
	struct stall_wait_key key = {
		.tgid = ring->layout.pid,
		.kind = STALL_WAIT_FUTEX,
		.id = object,
	};
	uint64_t now = recorder_now(), threshold_ns = recorder_threshold_of(ring, STALL_WAIT_FUTEX);
	uint32_t waiters;

	if (now < threshold_ns || (!recorder_mark_is_older(object, now - threshold_ns) &&
				   recorder_marked(object) < QUEUE))
		return;
	struct stall_wait_stat *stat = recorder_stat_find(ring, stall_wait_tag(&key));
	if (!stat || !__atomic_load_n(&stat->marked, __ATOMIC_RELAXED) ||
	    __atomic_load_n(&stat->role, __ATOMIC_RELAXED) == STALL_ROLE_COND)
		return;
	uint64_t last_ns = __atomic_load_n(&stat->told_ns[1], __ATOMIC_RELAXED);
	if (last_ns && now - last_ns < QUEUE_PAUSE_NS)
		return; // whether somebody has waited that long is not looked at
	uint64_t oldest = recorder_oldest_wait(ring, object, &waiters);
	if (!oldest || (oldest > now - threshold_ns && waiters < QUEUE))
		return;
	if (!is_release_to_be_told(ring, stat, waiters >= QUEUE, now))
		return;
	recorder_record(ring, thread,
			&(struct recorder_event){
				.type = STALL_RECORD_WAKER,
				.key = key,
				.operation = call,
				.start_ns = now,
				.now_ns = now,
				.value = now - oldest,
				.size = waiters,
				.place = place,
			});
}

void recorder_release(uint64_t object, enum stall_ring_call call,
		      const struct recorder_place *place)
{
	struct recorder_thread *thread = recorder_enter();
	struct recorder_ring *ring = thread ? recorder_ring() : NULL;

	if (ring && (recorder_has_slot(ring, thread) || recorder_slot_take(ring, thread)))
		tell_release(ring, thread, object, call, place);
	if (thread)
		recorder_leave(thread);
}
