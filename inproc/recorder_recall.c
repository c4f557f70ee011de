// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder_recall.h"

#include <limits.h>
#include <linux/futex.h>

#define PAUSE_NS 10000000ULL   // between recalls,
#define SLOT_PAUSE_NS 10000ULL // and more for each slot: a recall reads a line for each
#define LATE_NS 1100000000ULL  // a deadline that has come later is none to rely on
#define REFRESH_NS 5000000ULL  // a line that all threads read is not written more often
#define NEVER UINT64_MAX

// Outside of the file, which others can write to.
static struct sleeper {
	uint32_t *word; // NULL: awake
	uint64_t start_ns;
} __attribute__((aligned(64))) sleepers[STALL_RING_MAX_SLOTS];

uint64_t recorder_recall_due_ns = NEVER;  // until a thread sleeps
static uint64_t short_ns[RECORDER_MARKS]; // by hash of the lock: the end of its latest short wait
static uint64_t returned_ns;		  // a thread has come back by its deadline

static uint64_t load(const uint64_t *value)
{
	return __atomic_load_n(value, __ATOMIC_RELAXED);
}

static void store(uint64_t *value, uint64_t now)
{
	__atomic_store_n(value, now, __ATOMIC_RELAXED);
}

// `then` may be later: another thread has read the clock after us.
static bool is_within(uint64_t then, uint64_t now, uint64_t ns)
{
	return then && (then > now || now - then < ns);
}

bool recorder_may_sleep(const struct recorder_ring *ring, const struct recorder_thread *thread)
{
	uint64_t now = thread->start_ns;

	return recorder_has_slot(ring, thread) && (thread->seq & 1) &&
	       is_within(load(&short_ns[recorder_mark_of(thread->object)]), now,
			 RECORDER_RECALL_HOT_NS) &&
	       is_within(load(&returned_ns), now, RECORDER_RECALL_RETURN_NS) &&
	       !recorder_is_marked(thread->object);
}

void recorder_set_sleep(struct recorder_thread *thread, uint32_t *word)
{
	struct sleeper *sleeper = &sleepers[thread->index];

	if (word) {
		store(&sleeper->start_ns, thread->start_ns);
		if (load(&recorder_recall_due_ns) == NEVER)
			store(&recorder_recall_due_ns, thread->start_ns + PAUSE_NS);
	}
	thread->sleeps = word;
	__atomic_store_n(&sleeper->word, word, __ATOMIC_RELEASE);
}

void recorder_recall_learn(const struct recorder_thread *thread, uint64_t now, int64_t result)
{
	uint64_t ns = now - thread->start_ns;

	if (thread->kind != STALL_WAIT_FUTEX)
		return;
	if (thread->operation == STALL_RING_MUTEX_LOCK) {
		uint64_t *last_ns = &short_ns[recorder_mark_of(thread->object)];
		if (ns >= RECORDER_RECALL_SHORT_NS)
			store(last_ns, 0);
		else if (!is_within(load(last_ns), now, REFRESH_NS))
			store(last_ns, now);
	} else if (thread->operation == STALL_RING_COND_WAIT && result == -ETIMEDOUT &&
		   ns < LATE_NS && !is_within(load(&returned_ns), now, REFRESH_NS)) {
		store(&returned_ns, now);
	}
}

// A private wake touches no memory: the lock may be gone, and another futex be there, whose waiters
// must expect to be woken for nothing (futex(2)).
void recorder_recall_now(const struct recorder_ring *ring, uint64_t now, uint64_t patience_ns)
{
	uint64_t due = load(&recorder_recall_due_ns);
	uint32_t slots = __atomic_load_n(&ring->slots_used, __ATOMIC_ACQUIRE), *last = NULL;

	if (due == NEVER || !__atomic_compare_exchange_n(&recorder_recall_due_ns, &due,
							 now + PAUSE_NS + slots * SLOT_PAUSE_NS,
							 false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return;
	for (uint32_t i = 0; i < slots; i++) {
		uint32_t *word = __atomic_load_n(&sleepers[i].word, __ATOMIC_ACQUIRE);
		uint64_t start = load(&sleepers[i].start_ns);
		if (!word || word == last || start > now || now - start < patience_ns)
			continue;
		last = word;
		raw_call3(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX);
	}
}

void recorder_recall_forget(const struct recorder_ring *ring)
{
	for (uint32_t i = 0; ring && i < ring->slots_used; i++)
		sleepers[i].word = NULL;
	recorder_recall_due_ns = NEVER;
	returned_ns = 0;
}
