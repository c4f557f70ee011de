// SPDX-License-Identifier: Apache-2.0
// Layouts: glibc's sysdeps/nptl/bits/struct_mutex.h, struct_rwlock.h and nptl/pthread_rwlock_common.c
// (2.25 and later); before that sysdeps/x86_64/nptl/bits/pthreadtypes.h.
#include "lock/lock_layout.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[] = {
	[STALL_LOCK_UNKNOWN] = "unknown",   [STALL_LOCK_MUTEX] = "mutex",
	[STALL_LOCK_RWLOCK] = "rwlock",	    [STALL_LOCK_COND] = "cond",
	[STALL_LOCK_SEM] = "sem",	    [STALL_LOCK_JOIN] = "join",
	[STALL_LOCK_INTERNAL] = "internal", [STALL_LOCK_ROW] = "row",
	[STALL_LOCK_TABLE] = "table",	    [STALL_LOCK_AUTO_INC] = "auto-inc",
	[STALL_LOCK_METADATA] = "metadata",
};

const char *stall_lock_kind_name(enum stall_lock_kind kind)
{
	return kind_names[kind];
}

#ifndef FUTEX_LOCK_PI2
#define FUTEX_LOCK_PI2 13
#endif

#define MUTEX_OWNER 8
#define MUTEX_USERS 12
#define MUTEX_KIND 16
#define MUTEX_ROBUST 16		// PTHREAD_MUTEX_ROBUST_NORMAL_NP
#define MUTEX_INHERIT 32	// PTHREAD_MUTEX_PRIO_INHERIT_NP
#define MUTEX_KINDS 0x3f3u	// 0 to 3, and the flags robust, inherit, protect, shared, elision
#define RWLOCK_WRPHASE_FUTEX 8	// __readers_wakeup before 2.25
#define RWLOCK_WRITERS_FUTEX 12 // __writer_wakeup before 2.25
#define RWLOCK_OLD_READERS 4
#define RWLOCK_WRITER 24
#define RWLOCK_SHARED 28
#define RWLOCK_WRPHASE 1u // in __readers: a writer is inside or next
#define RWLOCK_WRLOCKED 2u
#define RWLOCK_RWAITING 4u
#define RWLOCK_READER_SHIFT 3
#define RWLOCK_FUTEX_USED 2u

static int compare_tids(const void *a, const void *b)
{
	const struct stall_lock_tid *x = a, *y = b;

	if (x->process != y->process)
		return x->process < y->process ? -1 : 1;
	return (x->ns_tid > y->ns_tid) - (x->ns_tid < y->ns_tid);
}

struct stall_error *stall_lock_tids_init(struct stall_lock_tids *tids,
					 const struct stall_snapshot *snapshot)
{
	struct stall_lock_tid *entries = calloc(snapshot->thread_count + 1, sizeof(*entries));

	if (!entries)
		return &stall_enomem;
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		const struct stall_thread *thread = &snapshot->threads[i];
		entries[i] = (struct stall_lock_tid){
			.process = thread->process,
			.ns_tid = thread->ns_tid ? thread->ns_tid : thread->tid,
			.thread = thread,
		};
	}
	qsort(entries, snapshot->thread_count, sizeof(*entries), compare_tids);
	*tids = (struct stall_lock_tids){.tids = entries, .count = snapshot->thread_count};
	return NULL;
}

void stall_lock_tids_deinit(struct stall_lock_tids *tids)
{
	free(tids->tids);
	*tids = (struct stall_lock_tids){};
}

const struct stall_thread *stall_lock_tids_find(const struct stall_lock_tids *tids,
						uint32_t process, pid_t ns_tid)
{
	struct stall_lock_tid key = {.process = process, .ns_tid = ns_tid};

	if (ns_tid <= 0 || !tids->count)
		return NULL;
	struct stall_lock_tid *found =
		bsearch(&key, tids->tids, tids->count, sizeof(key), compare_tids);
	return found ? found->thread : NULL;
}

struct decoder {
	const struct stall_lock_wait *wait;
	const struct stall_futex *futex;
	const struct stall_lock_tids *tids;
	bool is_old_rwlock; // of glibc before 2.25
};

static uint32_t word(const struct decoder *decoder, int offset)
{
	uint32_t value;

	memcpy(&value, decoder->futex->bytes + STALL_FUTEX_BEFORE + offset, sizeof(value));
	return value;
}

static bool lives(const struct decoder *decoder, uint32_t tid)
{
	return stall_lock_tids_find(decoder->tids, decoder->wait->process, tid);
}

static bool waits_for_pi(const struct stall_lock_wait *wait)
{
	return wait->operation == FUTEX_LOCK_PI || wait->operation == FUTEX_LOCK_PI2;
}

static pid_t mutex_owner(const struct decoder *decoder)
{
	// With priority inheritance the kernel itself keeps the TID in the word, and a robust
	// mutex has it there before __owner is written.
	if (waits_for_pi(decoder->wait) || word(decoder, MUTEX_KIND) & MUTEX_ROBUST)
		return word(decoder, 0) & FUTEX_TID_MASK;
	return word(decoder, MUTEX_OWNER);
}

// A futex wait on 2 at a word that is followed by a living thread's TID, a count of users and a
// kind that exists.
static bool looks_like_mutex(const struct decoder *decoder)
{
	const struct stall_lock_wait *wait = decoder->wait;
	uint32_t kind = word(decoder, MUTEX_KIND), owner = word(decoder, MUTEX_OWNER);

	if (kind & ~MUTEX_KINDS || !lives(decoder, owner))
		return false;
	if (waits_for_pi(wait))
		return (word(decoder, 0) & FUTEX_TID_MASK) == owner;
	if (wait->operation != FUTEX_WAIT)
		return false;
	if (kind & MUTEX_ROBUST)
		return wait->value == (owner | FUTEX_WAITERS);
	return wait->value == 2 && word(decoder, MUTEX_USERS) > 0 && word(decoder, 0) <= 2;
}

// A writer that lives, inside a lock whose flags say that a writer is inside.
static bool looks_like_rwlock(const struct decoder *decoder, int offset)
{
	const uint32_t inside = RWLOCK_WRPHASE | RWLOCK_WRLOCKED;

	return (word(decoder, -offset) & inside) == inside &&
	       word(decoder, RWLOCK_SHARED - offset) <= 1 &&
	       lives(decoder, word(decoder, RWLOCK_WRITER - offset));
}

// How far the futex word lies into the lock.
static int rwlock_offset(const struct decoder *decoder, enum stall_wait_name name)
{
	uint32_t value = decoder->wait->value;

	// Since 2.25 all waits are FUTEX_WAIT_BITSET, and the flags in the awaited value keep the
	// words apart: 1 (taken) and 2 (used) in the futexes, RWAITING in __readers.
	if (decoder->wait->operation == FUTEX_WAIT_BITSET) {
		if (value == RWLOCK_FUTEX_USED)
			return RWLOCK_WRPHASE_FUTEX;
		if (name == STALL_WAIT_RDLOCK && value & RWLOCK_RWAITING)
			return 0;
	}
	return name == STALL_WAIT_RDLOCK ? RWLOCK_WRPHASE_FUTEX : RWLOCK_WRITERS_FUTEX;
}

static void decode_rwlock(const struct decoder *decoder, int offset, struct stall_lock_decoded *ret)
{
	ret->kind = STALL_LOCK_RWLOCK;
	ret->address = decoder->wait->address - offset;
	if (!decoder->futex)
		return;
	ret->owner = word(decoder, RWLOCK_WRITER - offset);
	if (decoder->is_old_rwlock) {
		ret->readers = word(decoder, RWLOCK_OLD_READERS - offset);
		return;
	}
	uint32_t readers = word(decoder, -offset);
	// In a writer's phase the readers that are counted are those that wait.
	if (!(readers & RWLOCK_WRPHASE))
		ret->readers = readers >> RWLOCK_READER_SHIFT;
}

static void decode_mutex(const struct decoder *decoder, struct stall_lock_decoded *ret)
{
	ret->kind = STALL_LOCK_MUTEX;
	if (decoder->futex)
		ret->owner = mutex_owner(decoder);
}

static void decode_cond(const struct decoder *decoder, struct stall_lock_decoded *ret)
{
	// pthread_cond_wait takes its mutex back before it returns.
	if (decoder->futex && looks_like_mutex(decoder)) {
		decode_mutex(decoder, ret);
		return;
	}
	ret->kind = STALL_LOCK_COND;
	// The two words of __g_signals are one condition variable.
	ret->address = decoder->wait->address & ~UINT64_C(7);
}

static void decode_join(const struct decoder *decoder, struct stall_lock_decoded *ret)
{
	ret->kind = STALL_LOCK_JOIN;
	if (decoder->futex)
		ret->owner = word(decoder, 0);
}

// The kernel clears and wakes the TID word of a thread that ends, by a shared futex: nobody else
// waits that way on a word that holds a living thread's TID.
static bool looks_like_join(const struct decoder *decoder)
{
	const struct stall_lock_wait *wait = decoder->wait;

	return !wait->private &&
	       (wait->operation == FUTEX_WAIT || wait->operation == FUTEX_WAIT_BITSET) &&
	       word(decoder, 0) == wait->value && lives(decoder, wait->value);
}

static void decode_unnamed(const struct decoder *decoder, struct stall_lock_decoded *ret)
{
	if (!decoder->futex)
		return;
	if (looks_like_mutex(decoder)) {
		decode_mutex(decoder, ret);
		return;
	}
	if (looks_like_join(decoder)) {
		decode_join(decoder, ret);
		return;
	}
	if (decoder->wait->operation != FUTEX_WAIT_BITSET ||
	    decoder->wait->value != (RWLOCK_WRPHASE | RWLOCK_FUTEX_USED))
		return;
	bool wrphase = looks_like_rwlock(decoder, RWLOCK_WRPHASE_FUTEX);
	bool writers = looks_like_rwlock(decoder, RWLOCK_WRITERS_FUTEX);
	if (wrphase != writers)
		decode_rwlock(decoder, wrphase ? RWLOCK_WRPHASE_FUTEX : RWLOCK_WRITERS_FUTEX, ret);
}

struct stall_lock_decoded stall_lock_decode(const struct stall_lock_wait *wait,
					    enum stall_wait_name name,
					    const struct stall_futex *futex,
					    const struct stall_lock_tids *tids)
{
	struct decoder decoder = {
		.wait = wait,
		.futex = futex && futex->readable ? futex : NULL,
		.tids = tids,
		.is_old_rwlock = wait->operation == FUTEX_WAIT,
	};
	struct stall_lock_decoded ret = {.kind = STALL_LOCK_UNKNOWN, .address = wait->address};

	switch (name) {
	case STALL_WAIT_MUTEX:
		decode_mutex(&decoder, &ret);
		break;
	case STALL_WAIT_RDLOCK:
	case STALL_WAIT_WRLOCK:
		decode_rwlock(&decoder, rwlock_offset(&decoder, name), &ret);
		break;
	case STALL_WAIT_COND:
		decode_cond(&decoder, &ret);
		break;
	case STALL_WAIT_SEM:
		ret.kind = STALL_LOCK_SEM;
		break;
	case STALL_WAIT_JOIN:
		decode_join(&decoder, &ret);
		break;
	case STALL_WAIT_INTERNAL:
		ret.kind = STALL_LOCK_INTERNAL;
		break;
	case STALL_WAIT_OTHER:
		break;
	case STALL_WAIT_FOREIGN:
	case STALL_WAIT_HELPER:
		decode_unnamed(&decoder, &ret);
		break;
	}
	return ret;
}

// Before 2.25 the first word is a lock of the lock's own, hardly ever taken, and readers are counted
// in the second; since then the first is not 0 while anybody is inside, and the second counts
// writers that wait.
static bool is_old_rwlock(const struct decoder *decoder)
{
	return word(decoder, 0) == 0 && word(decoder, RWLOCK_OLD_READERS) > 0;
}

struct stall_lock_decoded stall_lock_decode_object(enum stall_object kind, uint64_t address,
						   const struct stall_futex *futex)
{
	const struct stall_lock_wait wait = {.address = address};
	struct decoder decoder = {
		.wait = &wait,
		.futex = futex && futex->readable ? futex : NULL,
	};
	struct stall_lock_decoded ret = {.kind = STALL_LOCK_UNKNOWN, .address = address};

	switch (kind) {
	case STALL_OBJECT_MUTEX:
		ret.kind = STALL_LOCK_MUTEX;
		if (!decoder.futex)
			break;
		if (word(&decoder, MUTEX_KIND) & (MUTEX_ROBUST | MUTEX_INHERIT))
			ret.owner = word(&decoder, 0) & FUTEX_TID_MASK;
		else
			ret.owner = word(&decoder, MUTEX_OWNER);
		break;
	case STALL_OBJECT_RDLOCK:
	case STALL_OBJECT_WRLOCK:
		decoder.is_old_rwlock = decoder.futex && is_old_rwlock(&decoder);
		decode_rwlock(&decoder, 0, &ret);
		break;
	case STALL_OBJECT_COND:
		ret.kind = STALL_LOCK_COND;
		break;
	case STALL_OBJECT_NONE:
		break;
	}
	return ret;
}
