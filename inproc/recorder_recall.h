/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits for a mutex without a timer. The kernel's timer is half of the cost of a wait, and most
 * waits are over long before it fires. So a thread may sleep without one, where another thread will
 * soon be in the library: that one recalls the sleepers that have waited long. They wake up, copy
 * their stacks, and wait with a timer from then on.
 */
#ifndef STALL_RECORDER_RECALL_H
#define STALL_RECORDER_RECALL_H

#include <stdbool.h>
#include <stdint.h>

#include "inproc/recorder_slots.h"

#define RECORDER_RECALL_RETURN_NS 3000000000ULL /* a thread has come back that lately */
#define RECORDER_RECALL_SHORT_NS 1000000ULL	/* a short wait for a lock, */
#define RECORDER_RECALL_HOT_NS 100000000ULL	/* of which one has ended that lately */

/* Whether the wait that the thread has begun may do without a timer: its lock has just had short
 * waits, nobody waits long for it, and some thread of the process has come back from a condition
 * by a deadline of a second at most, as the background threads of servers do all the time. */
bool recorder_may_sleep(const struct recorder_ring *ring, const struct recorder_thread *thread);
/* The thread sleeps on this futex word; NULL: it is awake. */
void recorder_set_sleep(struct recorder_thread *thread, uint32_t *word);
/* A wait has ended: what it says about its lock, and about threads that come back. */
void recorder_recall_learn(const struct recorder_thread *thread, uint64_t now, int64_t result);

/* At any begin or end of a wait: wakes the sleepers that have waited for so long. A sleeper that
 * does not get its lock then counts the time itself. */
extern uint64_t recorder_recall_due_ns __attribute__((visibility("hidden")));
void recorder_recall_now(const struct recorder_ring *ring, uint64_t now, uint64_t patience_ns);
static inline bool recorder_recall_is_due(uint64_t now)
{
	return __builtin_expect(now >= __atomic_load_n(&recorder_recall_due_ns, __ATOMIC_RELAXED),
				0);
}

/* After a fork(2): no other thread is left. `ring`: the parent's, NULL: it had none. */
void recorder_recall_forget(const struct recorder_ring *ring);

#endif
