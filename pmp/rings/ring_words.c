// SPDX-License-Identifier: Apache-2.0
#include "rings/ring_words.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"

// Reads by the waiters of one object, the latest first.
struct words {
	uint64_t object, ns;
	const uint8_t *bytes;
	uint32_t operation;
};

static int compare_words(const void *a, const void *b)
{
	const struct words *x = a, *y = b;

	if (x->object != y->object)
		return x->object < y->object ? -1 : 1;
	return (x->ns < y->ns) - (x->ns > y->ns);
}

static bool has_words(const struct stall_ring_thread *thread)
{
	return stall_ring_thread_is_waiting(thread) && thread->has_stack && thread->copy.words_ns &&
	       thread->slot.key.kind == STALL_WAIT_FUTEX;
}

// The owner of a mutex (__data.__owner), or the writer of an rwlock (__data.__cur_writer), in any
// glibc.
static pid_t owner_in(const uint8_t bytes[STALL_RING_WORDS], uint32_t operation)
{
	size_t at = STALL_FUTEX_BEFORE + (operation == STALL_RING_MUTEX_LOCK ? 8 : 24);
	int32_t owner;

	memcpy(&owner, bytes + at, sizeof(owner));
	return owner;
}

static bool is_lock_wait(const struct stall_ring_thread *thread)
{
	return stall_ring_thread_is_waiting(thread) && thread->slot.key.kind == STALL_WAIT_FUTEX &&
	       thread->slot.operation != STALL_RING_COND_WAIT;
}

// Slots and words are of different moments. An owner that waits for the same lock has just got it,
// unless its own slot shows that it waits for the lock that it has. An owner that began to wait for
// another lock after the words were read may have released this one before. Either would show a
// deadlock cycle that never existed.
static bool owner_has_moved(const struct words *latest, const struct stall_ring_threads *threads)
{
	if (latest->operation == STALL_RING_COND_WAIT)
		return false;
	pid_t tid = owner_in(latest->bytes, latest->operation);
	const struct stall_ring_thread *owner = stall_ring_threads_find(threads, tid);
	if (!owner || !is_lock_wait(owner))
		return false;
	if (owner->slot.key.id == latest->object)
		return !has_words(owner) ||
		       owner_in(owner->copy.words, owner->slot.operation) != tid;
	return owner->slot.start_ns > latest->ns;
}

// Two reads that differ are decided by the earlier one (lock.c), which in a capture of a live
// process is the one closer to the stacks. Here that is the later of the two.
static void fill_futex(const struct words *latest, const struct words *other,
		       const struct stall_ring_threads *threads,
		       const struct stall_ring_releases *releases, struct stall_futex *ret)
{
	bool is_past = stall_ring_released_ns(releases, latest->object) > latest->ns ||
		       owner_has_moved(latest, threads);

	ret->address = latest->object;
	ret->readable = true;
	// Two equal reads prove nothing about the present.
	ret->read_twice = !is_past;
	memcpy(ret->first, latest->bytes, sizeof(ret->first));
	memcpy(ret->bytes, (other && !is_past ? other : latest)->bytes, sizeof(ret->bytes));
	ret->stable = !is_past && !memcmp(ret->first, ret->bytes, sizeof(ret->first));
}

struct stall_error *stall_ring_words_add(struct stall_snapshot *snapshot, uint32_t process,
					 const struct stall_ring_threads *threads,
					 const struct stall_ring_releases *releases)
{
	_cleanup_free_ struct words *words = calloc(threads->count + 1, sizeof(*words));
	size_t count = 0;

	if (!words ||
	    !stall_array_resize(&snapshot->futexes, snapshot->futex_count + threads->count))
		return &stall_enomem;
	for (size_t i = 0; i < threads->count; i++) {
		const struct stall_ring_thread *thread = &threads->threads[i];

		if (has_words(thread))
			words[count++] = (struct words){thread->slot.key.id, thread->copy.words_ns,
							thread->copy.words, thread->slot.operation};
	}
	qsort(words, count, sizeof(*words), compare_words);
	for (size_t i = 0; i < count; i++) {
		if (i && words[i - 1].object == words[i].object)
			continue;
		bool more = i + 1 < count && words[i + 1].object == words[i].object;
		struct stall_futex *futex = &snapshot->futexes[snapshot->futex_count++];
		*futex = (struct stall_futex){.process = process};
		fill_futex(&words[i], more ? &words[i + 1] : NULL, threads, releases, futex);
	}
	return NULL;
}
