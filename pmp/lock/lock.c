// SPDX-License-Identifier: Apache-2.0
#include "lock/lock.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "lock/lock_layout.h"
#include "lock/lock_names.h"

#define SYS_FUTEX_WAIT 455 // since Linux 6.7

// libc's own frames between a wait and the function that was called: no more than this.
#define MAX_LIBC_FRAMES 12

// Sizes of pthread_cond_t, and of mysql_cond_t, which begins with one.
#define COND_SIZE 48
#define MYSQL_COND_SIZE 56

// A thread that waits, and its lock.
struct waiter {
	uint32_t thread;
	uint32_t process;
	uint64_t futex; // 0: which word of the lock is not known
	struct stall_lock_decoded lock;
	bool stable;
};

// Skips frames without a name as long as they are in the file of the innermost one.
enum stall_wait_name stall_lock_wait_name(const struct stall_unwound *unwound,
					  const struct stall_stack *stack)
{
	for (uint32_t i = 0; i < stack->count && i < MAX_LIBC_FRAMES; i++) {
		const struct stall_frame *frame = &unwound->frames[stack->frames[i]];
		if (!frame->symbol) {
			if (frame->module != unwound->frames[stack->frames[0]].module)
				return STALL_WAIT_FOREIGN;
			continue;
		}
		enum stall_wait_name name = stall_wait_name(frame->symbol);
		if (name != STALL_WAIT_HELPER)
			return name;
	}
	return STALL_WAIT_FOREIGN;
}

static int compare_futex(const void *a, const void *b)
{
	const struct stall_futex *x = a, *y = b;

	if (x->process != y->process)
		return x->process < y->process ? -1 : 1;
	return (x->address > y->address) - (x->address < y->address);
}

static const struct stall_futex *find_futex(const struct stall_snapshot *snapshot, uint32_t process,
					    uint64_t address)
{
	struct stall_futex key = {.process = process, .address = address};

	if (!snapshot->futex_count)
		return NULL;
	return bsearch(&key, snapshot->futexes, snapshot->futex_count, sizeof(key), compare_futex);
}

// Unrelated data surrounds a lock, so both reads need not be equal: they must mean the same.
static bool means_the_same(const struct stall_lock_decoded *a, const struct stall_lock_decoded *b)
{
	return a->kind != STALL_LOCK_UNKNOWN && a->kind == b->kind && a->address == b->address &&
	       a->owner == b->owner && a->readers == b->readers;
}

static struct stall_lock_decoded decode(const struct stall_thread *thread,
					const struct stall_lock_wait *wait,
					enum stall_wait_name name, const struct stall_futex *futex,
					const struct stall_lock_tids *tids)
{
	if (thread->object_kind)
		return stall_lock_decode_object(thread->object_kind, thread->object, futex);
	return stall_lock_decode(wait, name, futex, tids);
}

// Decodes both reads of the words around the futex. Where they differ, the first one counts: most
// stacks were copied right after it, so the holder of that moment is shown as the holder.
static void decode_lock(const struct stall_thread *thread, const struct stall_lock_wait *wait,
			enum stall_wait_name name, const struct stall_futex *futex,
			const struct stall_lock_tids *tids, struct waiter *ret)
{
	struct stall_futex first;

	ret->lock = decode(thread, wait, name, futex, tids);
	ret->stable = futex && futex->stable;
	if (!futex || futex->stable || !futex->read_twice)
		return;
	first = *futex;
	memcpy(first.bytes, futex->first, sizeof(first.bytes));
	const struct stall_lock_decoded before = decode(thread, wait, name, &first, tids);
	ret->stable = means_the_same(&before, &ret->lock);
	ret->lock = before;
}

// The address of the word that the thread waits on, or 0.
static uint64_t futex_address(const struct stall_thread *thread, enum stall_wait_name name)
{
	uint64_t address = stall_thread_futex(thread);

	// After a stop (by gdb, for example) a wait with a timeout continues as restart_syscall(2),
	// with the arguments of the futex call still in place: only the frames show the kind of
	// call.
	if (!address && thread->in_syscall && thread->syscall == SYS_restart_syscall &&
	    name != STALL_WAIT_FOREIGN && name != STALL_WAIT_OTHER)
		address = thread->args[0];
	return address;
}

static struct stall_lock_wait wait_of(const struct stall_thread *thread, uint64_t address)
{
	struct stall_lock_wait wait = {
		.process = thread->process,
		.address = address,
		.operation = thread->args[1] & FUTEX_CMD_MASK,
		.private = thread->args[1] & FUTEX_PRIVATE_FLAG,
		.value = thread->args[2],
	};

	// futex_wait(2) of Linux 6.7: (uaddr, val, mask, flags, ...).
	if (thread->syscall == SYS_FUTEX_WAIT) {
		wait.operation = FUTEX_WAIT_BITSET;
		wait.private = thread->args[3] & FUTEX_PRIVATE_FLAG;
		wait.value = thread->args[1];
	}
	return wait;
}

static bool decode_waiter(const struct stall_snapshot *snapshot, enum stall_wait_name name,
			  const struct stall_lock_tids *tids, uint32_t index, struct waiter *ret)
{
	const struct stall_thread *thread = &snapshot->threads[index];
	uint64_t address = thread->object_kind ? thread->object : futex_address(thread, name);

	if (!address)
		return false;
	const struct stall_lock_wait wait = wait_of(thread, address);
	const struct stall_futex *futex = find_futex(snapshot, thread->process, address);
	*ret = (struct waiter){
		.thread = index,
		.process = thread->process,
		.futex = address,
	};
	// Only the call itself would show which word of the object is waited on.
	if (thread->object_kind && thread->object_kind != STALL_OBJECT_MUTEX)
		ret->futex = 0;
	decode_lock(thread, &wait, name, futex, tids, ret);
	return true;
}

static int compare_by_futex(const void *a, const void *b)
{
	const struct waiter *x = a, *y = b;

	if (x->process != y->process)
		return x->process < y->process ? -1 : 1;
	if (x->futex != y->futex)
		return x->futex < y->futex ? -1 : 1;
	// Threads whose frames show the kind come first.
	return (x->lock.kind == STALL_LOCK_UNKNOWN) - (y->lock.kind == STALL_LOCK_UNKNOWN);
}

static int compare_by_lock(const void *a, const void *b)
{
	const struct waiter *x = a, *y = b;

	if (x->process != y->process)
		return x->process < y->process ? -1 : 1;
	if (x->lock.address != y->lock.address)
		return x->lock.address < y->lock.address ? -1 : 1;
	if (x->lock.kind != y->lock.kind)
		return x->lock.kind < y->lock.kind ? -1 : 1;
	return (x->thread > y->thread) - (x->thread < y->thread);
}

// Threads on the same word wait for the same lock, even if their own frames do not show that.
static void share_kinds(struct waiter *waiters, size_t count)
{
	qsort(waiters, count, sizeof(*waiters), compare_by_futex);
	for (size_t i = 1; i < count; i++) {
		const struct waiter *before = &waiters[i - 1];
		if (waiters[i].lock.kind == STALL_LOCK_UNKNOWN &&
		    waiters[i].process == before->process && waiters[i].futex == before->futex)
			waiters[i].lock = before->lock;
	}
}

bool stall_lock_is_same(const struct stall_lock *a, const struct stall_lock *b)
{
	return a->process == b->process && a->address == b->address && a->futex == b->futex &&
	       a->kind == b->kind && a->owner_tid == b->owner_tid && a->owner_raw == b->owner_raw &&
	       a->readers == b->readers && a->stable == b->stable && a->waiters == b->waiters &&
	       a->source == b->source && a->mode == b->mode;
}

static void add_waiter(struct stall_locks *locks, const struct waiter *waiter,
		       const struct stall_lock_tids *tids)
{
	struct stall_lock *lock = locks->count ? &locks->locks[locks->count - 1] : NULL;

	if (!lock || lock->process != waiter->process || lock->address != waiter->lock.address ||
	    lock->kind != waiter->lock.kind) {
		const struct stall_thread *owner =
			stall_lock_tids_find(tids, waiter->process, waiter->lock.owner);
		lock = &locks->locks[locks->count++];
		*lock = (struct stall_lock){
			.process = waiter->process,
			.address = waiter->lock.address,
			.futex = waiter->futex,
			.kind = waiter->lock.kind,
			.owner_raw = waiter->lock.owner,
			.owner_tid = owner ? owner->tid : 0,
			.readers = waiter->lock.readers,
			.stable = waiter->stable,
		};
	}
	// A rwlock has two words to wait on, read one after the other.
	lock->stable = lock->stable && waiter->stable && lock->owner_raw == waiter->lock.owner;
	lock->waiters++;
	locks->thread_lock[waiter->thread] = locks->count - 1;
}

struct stall_error *stall_locks_init(struct stall_locks *locks,
				     const struct stall_snapshot *snapshot,
				     const struct stall_unwound *unwound,
				     const struct stall_locks *before)
{
	_cleanup_(stall_lock_tids_deinit) struct stall_lock_tids tids = {};
	_cleanup_free_ struct waiter *waiters =
		calloc(snapshot->thread_count + 1, sizeof(*waiters));
	size_t count = 0;

	*locks = (struct stall_locks){};
	struct stall_error *err = stall_lock_tids_init(&tids, snapshot);
	if (err)
		return err;
	locks->locks = calloc(snapshot->thread_count + 1, sizeof(*locks->locks));
	locks->thread_lock = malloc((snapshot->thread_count + 1) * sizeof(*locks->thread_lock));
	locks->names = calloc(snapshot->thread_count + 1, sizeof(*locks->names));
	if (!waiters || !locks->locks || !locks->thread_lock || !locks->names) {
		stall_locks_deinit(locks);
		return &stall_enomem;
	}
	memset(locks->thread_lock, 0xff, snapshot->thread_count * sizeof(*locks->thread_lock));
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		const struct stall_thread *thread = &snapshot->threads[i];

		locks->names[i] = thread->unchanged && before
					  ? before->names[thread->before]
					  : stall_lock_wait_name(unwound, &unwound->stacks[i]);
		count += decode_waiter(snapshot, locks->names[i], &tids, i, &waiters[count]);
	}
	share_kinds(waiters, count);
	qsort(waiters, count, sizeof(*waiters), compare_by_lock);
	for (size_t i = 0; i < count; i++)
		add_waiter(locks, &waiters[i], &tids);
	return NULL;
}

bool stall_locks_room(struct stall_locks *locks, size_t more)
{
	return stall_array_resize(&locks->locks, locks->count + more);
}

struct place {
	struct stall_lock lock;
	size_t before;
};

static int compare_places(const void *a, const void *b)
{
	const struct stall_lock *x = &((const struct place *)a)->lock,
				*y = &((const struct place *)b)->lock;

	if (x->process != y->process)
		return x->process < y->process ? -1 : 1;
	if (x->address != y->address)
		return x->address < y->address ? -1 : 1;
	return (x->kind > y->kind) - (x->kind < y->kind);
}

struct stall_error *stall_locks_sort(struct stall_locks *locks, size_t thread_count)
{
	_cleanup_free_ struct place *places = calloc(locks->count + 1, sizeof(*places));
	_cleanup_free_ uint32_t *numbers = calloc(locks->count + 1, sizeof(*numbers));
	size_t count = 0;

	if (!places || !numbers)
		return &stall_enomem;
	for (size_t i = 0; i < locks->count; i++) {
		if (locks->locks[i].waiters) {
			places[count++] = (struct place){locks->locks[i], i};
			continue;
		}
		free(locks->locks[i].symbol);
		free(locks->locks[i].created);
	}
	qsort(places, count, sizeof(*places), compare_places);
	for (size_t i = 0; i < count; i++) {
		locks->locks[i] = places[i].lock;
		numbers[places[i].before] = (uint32_t)i;
	}
	locks->count = count;
	for (size_t i = 0; i < thread_count; i++)
		if (locks->thread_lock[i] != UINT32_MAX)
			locks->thread_lock[i] = numbers[locks->thread_lock[i]];
	return NULL;
}

void stall_locks_deinit(struct stall_locks *locks)
{
	for (size_t i = 0; i < locks->count; i++) {
		free(locks->locks[i].symbol);
		free(locks->locks[i].created);
	}
	free(locks->locks);
	free(locks->thread_lock);
	free(locks->names);
	*locks = (struct stall_locks){};
}

int stall_lock_compare(const struct stall_lock *a, const struct stall_lock *b)
{
	if (a->process != b->process)
		return a->process < b->process ? -1 : 1;
	if (a->address != b->address)
		return a->address < b->address ? -1 : 1;
	if (a->kind != b->kind)
		return a->kind < b->kind ? -1 : 1;
	return (a->owner_raw > b->owner_raw) - (a->owner_raw < b->owner_raw);
}

// Kinds by which a thread sleeps that waits for a lock of the server: they name no owner.
static bool is_replaced(enum stall_lock_kind kind)
{
	return kind == STALL_LOCK_UNKNOWN || kind == STALL_LOCK_COND || kind == STALL_LOCK_SEM ||
	       kind == STALL_LOCK_INTERNAL;
}

// Whether the thread has no other lock, or has none any more.
static bool give_up(struct stall_locks *locks, uint32_t thread)
{
	uint32_t index = locks->thread_lock[thread];

	if (index == UINT32_MAX)
		return true;
	if (!is_replaced(locks->locks[index].kind))
		return false;
	locks->locks[index].waiters--;
	locks->thread_lock[thread] = UINT32_MAX;
	return true;
}

// A lock that is moved in the list, or that is new (`before` is UINT32_MAX).
struct placed {
	struct stall_lock lock;
	uint32_t before;
};

static int compare_placed(const void *a, const void *b)
{
	const struct placed *x = a, *y = b;

	return stall_lock_compare(&x->lock, &y->lock);
}

static int compare_locks(const void *a, const void *b)
{
	return stall_lock_compare(a, b);
}

// Sorts them into a list without those that have no waiter and without duplicates.
static struct stall_error *place(struct stall_locks *locks, struct placed *placed, size_t count,
				 size_t thread_count)
{
	_cleanup_free_ uint32_t *moved = calloc(locks->count + 1, sizeof(*moved));
	struct stall_lock *list = calloc(count + 1, sizeof(*list));
	size_t left = 0;

	if (!moved || !list) {
		free(list);
		return &stall_enomem;
	}
	qsort(placed, count, sizeof(*placed), compare_placed);
	for (size_t i = 0; i < count; i++) {
		bool is_new = placed[i].before == UINT32_MAX;

		if (is_new && left && !stall_lock_compare(&list[left - 1], &placed[i].lock))
			continue;
		if (!is_new && !placed[i].lock.waiters) {
			free(placed[i].lock.symbol);
			continue;
		}
		if (!is_new)
			moved[placed[i].before] = (uint32_t)left;
		list[left] = placed[i].lock;
		if (is_new && list[left].symbol)
			list[left].symbol = strdup(list[left].symbol);
		left++;
	}
	for (size_t i = 0; i < thread_count; i++)
		if (locks->thread_lock[i] != UINT32_MAX)
			locks->thread_lock[i] = moved[locks->thread_lock[i]];
	free(locks->locks);
	locks->locks = list;
	locks->count = left;
	return NULL;
}

struct stall_error *stall_locks_add(struct stall_locks *locks,
				    const struct stall_snapshot *snapshot,
				    const struct stall_lock_of_server *found, size_t found_count)
{
	_cleanup_free_ struct placed *placed =
		calloc(locks->count + found_count + 1, sizeof(*placed));
	_cleanup_free_ bool *taken = calloc(found_count + 1, sizeof(*taken));
	size_t count = 0;

	if (!placed || !taken)
		return &stall_enomem;
	for (size_t i = 0; i < found_count; i++) {
		taken[i] = give_up(locks, found[i].thread);
		if (taken[i])
			placed[count++] = (struct placed){found[i].lock, UINT32_MAX};
	}
	for (uint32_t i = 0; i < locks->count; i++)
		placed[count++] = (struct placed){locks->locks[i], i};
	struct stall_error *err = place(locks, placed, count, snapshot->thread_count);
	if (err)
		return err;
	for (size_t i = 0; i < found_count; i++) {
		struct stall_lock *lock =
			taken[i] ? bsearch(&found[i].lock, locks->locks, locks->count,
					   sizeof(*locks->locks), compare_locks)
				 : NULL;

		if (!lock)
			continue;
		lock->waiters++;
		locks->thread_lock[found[i].thread] = (uint32_t)(lock - locks->locks);
	}
	return NULL;
}

// The place of __g_signals in a condition variable differs between versions of glibc; a global
// object of the same size shows where the variable begins.
static struct stall_error *find_cond_start(struct stall_lock *lock, struct stall_worker *worker,
					   const struct stall_snapshot *snapshot)
{
	uint64_t address, size;

	if (lock->kind != STALL_LOCK_COND || !lock->symbol || !lock->symbol_offset ||
	    lock->symbol_offset >= COND_SIZE)
		return NULL;
	struct stall_error *err = stall_worker_find_data(worker, snapshot, lock->process,
							 lock->symbol, &address, &size);
	if (err || address != lock->address - lock->symbol_offset)
		return err;
	if (size == COND_SIZE || size == MYSQL_COND_SIZE) {
		lock->address = address;
		lock->symbol_offset = 0;
	}
	return NULL;
}

struct stall_error *stall_locks_name(struct stall_locks *locks, struct stall_worker *worker,
				     const struct stall_snapshot *snapshot)
{
	_cleanup_free_ struct stall_data_query *queries =
		calloc(locks->count + 1, sizeof(*queries));

	if (!queries)
		return &stall_enomem;
	for (size_t i = 0; i < locks->count; i++)
		queries[i] = (struct stall_data_query){
			.process = locks->locks[i].process,
			.address = locks->locks[i].address,
		};
	struct stall_error *err = stall_worker_name_data(worker, snapshot, queries, locks->count);
	if (err)
		return err;
	for (size_t i = 0; i < locks->count; i++) {
		if (locks->locks[i].symbol) { // the object that the server's memory names
			free(queries[i].name);
			continue;
		}
		locks->locks[i].symbol = queries[i].name;
		locks->locks[i].symbol_offset = queries[i].offset;
	}
	for (size_t i = 0; !err && i < locks->count; i++)
		err = find_cond_start(&locks->locks[i], worker, snapshot);
	return err;
}
