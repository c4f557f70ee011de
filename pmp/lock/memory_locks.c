// SPDX-License-Identifier: Apache-2.0
#include "lock/memory_locks.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/options_text.h"
#include "lock/server_memory.h"

// Of all reads together. A capture that takes longer than this shows what it has.
#define PATIENCE_NS UINT64_C(250000000)
#define MAX_VERSION 64

/* Layouts by version. */

static bool parse_version(const char **text, unsigned int *ret)
{
	char *end;

	*ret = 0;
	for (int i = 0; i < 3; i++) {
		unsigned long number = strtoul(*text, &end, 10);

		if (end == *text || number > 999)
			return false;
		*ret = *ret * 1000 + (unsigned int)number;
		*text = end;
		if (i < 2 && *(*text)++ != '.')
			return false;
	}
	return true;
}

struct range {
	bool mariadb;
	unsigned int from, until;
	const char *keys;
};

static bool parse_range(const char *text, struct range *ret)
{
	if (!strncmp(text, "mysql ", 6))
		text += 6;
	else if (!strncmp(text, "mariadb ", 8))
		text += 8, ret->mariadb = true;
	else
		return false;
	if (!parse_version(&text, &ret->from) || *text++ != ' ' ||
	    !parse_version(&text, &ret->until) || (*text && *text != ' '))
		return false;
	ret->keys = text;
	return true;
}

struct stall_error *stall_memory_layouts_check(const char *text)
{
	struct stall_layout layout = {};
	struct range range = {};

	if (!parse_range(text, &range))
		return stall_usage("--layout-of \"%.40s\": \"mysql|mariadb FROM UNTIL KEY=NUMBER "
				   "...\" is wanted, with versions such as 5.5.9",
				   text);
	struct stall_error *err = stall_layout_add(&layout, range.keys);
	stall_layout_deinit(&layout);
	return err;
}

// The text of the server's own version, "10.11.4-MariaDB-log". A debug build has other layouts.
static bool read_version(const struct stall_snapshot *snapshot, struct stall_worker *worker,
			 uint32_t process, bool *ret_mariadb, unsigned int *ret)
{
	uint64_t address = 0, size = 0;
	char text[MAX_VERSION] = "";
	const char *at = text;

	struct stall_error *err = stall_worker_find_data(worker, snapshot, process,
							 "server_version", &address, &size);
	stall_error_destroy(err);
	if (err || !address ||
	    !stall_snapshot_read(snapshot, process, address, text,
				 size && size < sizeof(text) ? size : sizeof(text) - 1))
		return false;
	text[sizeof(text) - 1] = '\0';
	*ret_mariadb = strcasestr(text, "mariadb");
	return !strcasestr(text, "debug") && parse_version(&at, ret);
}

static struct stall_error *choose(const struct stall_memory_layouts *layouts,
				  const struct stall_snapshot *snapshot,
				  struct stall_worker *worker, uint32_t process,
				  struct stall_layout *ret)
{
	struct stall_error *err = NULL;
	unsigned int version;
	bool mariadb;

	if (layouts->count && read_version(snapshot, worker, process, &mariadb, &version)) {
		for (size_t i = 0; !err && i < layouts->count; i++) {
			struct range range = {};

			if (parse_range(layouts->by_version[i], &range) &&
			    range.mariadb == mariadb && range.from <= version &&
			    version <= range.until)
				err = stall_layout_add(ret, range.keys);
		}
	}
	if (!err && layouts->given)
		err = stall_layout_join(ret, layouts->given);
	return err;
}

/* Waiters. */

// A thread whose lock may be part of a structure of the server.
static bool list_waiter(const struct stall_locks *locks, const struct stall_snapshot *snapshot,
			uint32_t index, struct stall_memory_waiter *ret)
{
	const struct stall_thread *thread = &snapshot->threads[index];

	if (locks->thread_lock[index] == UINT32_MAX)
		return false;
	const struct stall_lock *lock = &locks->locks[locks->thread_lock[index]];
	if (lock->kind != STALL_LOCK_COND && lock->kind != STALL_LOCK_UNKNOWN)
		return false;
	uint64_t futex = stall_thread_futex(thread);
	*ret = (struct stall_memory_waiter){
		.thread = index,
		.word = futex ? futex : lock->futex,
		.pair = (futex ? futex : lock->address) & ~UINT64_C(7),
		.cond = true,
	};
	return true;
}

static struct stall_error *list_waiters(const struct stall_locks *locks,
					struct stall_server_memory *memory)
{
	const struct stall_snapshot *snapshot = memory->snapshot;

	memory->waiters = calloc(snapshot->thread_count + 1, sizeof(*memory->waiters));
	if (!memory->waiters)
		return &stall_enomem;
	for (size_t i = 0; i < snapshot->thread_count; i++)
		if (snapshot->threads[i].process == memory->process)
			memory->waiter_count += list_waiter(locks, snapshot, (uint32_t)i,
							    &memory->waiters[memory->waiter_count]);
	return NULL;
}

/* What was found becomes part of the capture's locks. */

struct change {
	uint32_t thread;
	const struct stall_memory_lock *found;
};

static int compare(const void *a, const void *b)
{
	const struct change *x = a, *y = b;

	if (x->found->address != y->found->address)
		return x->found->address < y->found->address ? -1 : 1;
	if (x->found->kind != y->found->kind)
		return x->found->kind < y->found->kind ? -1 : 1;
	return (x->thread > y->thread) - (x->thread < y->thread);
}

static bool waits(const struct change *changes, size_t count, uint32_t thread)
{
	for (size_t i = 0; i < count; i++)
		if (changes[i].thread == thread)
			return true;
	return false;
}

// One lock has one owner: the first that does not wait for the lock itself. Who waits for one that
// does waits for this one too.
static uint32_t choose_owner(const struct change *changes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (changes[i].found->owner != STALL_NO_THREAD &&
		    !waits(changes, count, changes[i].found->owner))
			return changes[i].found->owner;
	return STALL_NO_THREAD;
}

static struct stall_error *add_lock(struct stall_locks *locks,
				    const struct stall_snapshot *snapshot,
				    const struct change *changes, size_t count)
{
	const struct stall_memory_lock *found = changes[0].found;
	uint32_t owner = choose_owner(changes, count);
	struct stall_lock *lock = &locks->locks[locks->count];

	*lock = (struct stall_lock){
		.process = snapshot->threads[changes[0].thread].process,
		.address = found->address,
		.kind = found->kind,
		.owner_tid = owner == STALL_NO_THREAD ? 0 : snapshot->threads[owner].tid,
		.readers = found->readers,
		.stable = true,
		.waiters = (uint32_t)count,
		.memory = true,
		.mode = found->mode,
		.symbol = *found->name ? strdup(found->name) : NULL,
		.created = *found->created ? strdup(found->created) : NULL,
	};
	locks->count++;
	for (size_t i = 0; i < count; i++) {
		uint32_t *of_thread = &locks->thread_lock[changes[i].thread];

		lock->stable = lock->stable && !changes[i].found->doubtful;
		locks->locks[*of_thread].waiters--;
		*of_thread = (uint32_t)(locks->count - 1);
	}
	if ((*found->name && !lock->symbol) || (*found->created && !lock->created))
		return &stall_enomem;
	return NULL;
}

static struct stall_error *add_locks(struct stall_locks *locks,
				     const struct stall_snapshot *snapshot, struct change *changes,
				     size_t count)
{
	struct stall_error *err = NULL;

	qsort(changes, count, sizeof(*changes), compare);
	for (size_t first = 0, next; !err && first < count; first = next) {
		for (next = first + 1; next < count; next++)
			if (changes[next].found->address != changes[first].found->address ||
			    changes[next].found->kind != changes[first].found->kind)
				break;
		err = add_lock(locks, snapshot, &changes[first], next - first);
	}
	return err;
}

static struct stall_error *apply(struct stall_locks *locks,
				 const struct stall_server_memory *memory)
{
	const struct stall_snapshot *snapshot = memory->snapshot;
	_cleanup_free_ struct change *changes = calloc(memory->waiter_count + 1, sizeof(*changes));
	size_t count = 0;

	if (!changes)
		return &stall_enomem;
	for (size_t i = 0; i < memory->waiter_count; i++) {
		uint32_t thread = memory->waiters[i].thread;

		if (memory->found[thread].found)
			changes[count++] = (struct change){thread, &memory->found[thread]};
	}
	return stall_locks_room(locks, count) ? add_locks(locks, snapshot, changes, count)
					      : &stall_enomem;
}

static void memory_deinit(struct stall_server_memory *memory)
{
	free(memory->waiters);
	free(memory->found);
}

static struct stall_error *find(struct stall_server_memory *memory)
{
	struct stall_error *err = stall_sync_cells_find(memory);

	if (!err)
		err = stall_sux_locks_find(memory);
	if (!err)
		err = stall_row_locks_find(memory);
	if (!err)
		err = stall_metadata_locks_find(memory);
	return err;
}

static struct stall_error *find_in_process(struct stall_locks *locks,
					   struct stall_server_memory *memory,
					   const struct stall_memory_layouts *layouts)
{
	_cleanup_(stall_layout_deinit) struct stall_layout layout = {};
	_cleanup_(stall_thds_deinit) struct stall_thds thds = {};

	struct stall_error *err = list_waiters(locks, memory);
	if (err || !memory->waiter_count)
		return err;
	err = choose(layouts, memory->snapshot, memory->worker, memory->process, &layout);
	if (err || !layout.count)
		return err;
	err = stall_thds_init(&thds, memory->snapshot, memory->process, &layout);
	if (err)
		return err;
	memory->layout = &layout;
	memory->thds = &thds;
	memory->found = calloc(memory->snapshot->thread_count + 1, sizeof(*memory->found));
	if (!memory->found)
		return &stall_enomem;
	err = find(memory);
	return err ? err : apply(locks, memory);
}

struct stall_error *stall_memory_locks_find(struct stall_locks *locks,
					    const struct stall_snapshot *snapshot,
					    const struct stall_unwound *unwound,
					    struct stall_worker *worker,
					    const struct stall_memory_layouts *layouts)
{
	uint64_t until_ns = stall_clock_ns(CLOCK_MONOTONIC) + PATIENCE_NS;

	if (!layouts->count && !(layouts->given && layouts->given->count))
		return NULL;
	for (uint32_t i = 0; i < snapshot->process_count; i++) {
		_cleanup_(memory_deinit) struct stall_server_memory memory = {
			.snapshot = snapshot,
			.unwound = unwound,
			.worker = worker,
			.process = i,
			.until_ns = until_ns,
		};

		struct stall_error *err = find_in_process(locks, &memory, layouts);
		if (err)
			return err;
	}
	return stall_locks_sort(locks, snapshot->thread_count);
}
