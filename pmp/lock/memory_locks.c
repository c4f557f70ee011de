// SPDX-License-Identifier: Apache-2.0
#include "lock/memory_locks.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/options_text.h"
#include "lock/metadata_locks.h"
#include "lock/row_locks.h"
#include "lock/server_memory.h"
#include "lock/sux_locks.h"
#include "lock/sync_cells.h"
#include "lock/thd.h"
#include "lock/thread_numbers.h"

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

/* What is known of a process. */

static const char *const global_names[STALL_SERVER_GLOBALS] = {
	[STALL_SERVER_VERSION] = "server_version",
	[STALL_SYNC_PRIMARY_WAIT_ARRAY] = "sync_primary_wait_array",
	[STALL_SYNC_WAIT_ARRAY] = "sync_wait_array",
	[STALL_SYNC_ARRAY_SIZE] = "sync_array_size",
	[STALL_LOCK_SYS] = "lock_sys",
	[STALL_SRV_MYSQL_TABLE] = "srv_mysql_table",
};

struct known {
	pid_t pid;
	uint64_t start_time, start_brk; // of another program they differ
	struct stall_layout layout;
	struct stall_server_global globals[STALL_SERVER_GLOBALS];
};

struct stall_memory_locks {
	struct stall_memory_layouts layouts;
	struct known *known; // of the processes of the latest snapshot, in its order
	size_t known_count;
	struct stall_memory_lock *found; // per thread of the latest snapshot, or NULL
	size_t found_count;
};

static void forget(struct known *known, size_t count)
{
	for (size_t i = 0; i < count; i++)
		stall_layout_deinit(&known[i].layout);
	free(known);
}

struct stall_error *stall_memory_locks_create(const struct stall_memory_layouts *layouts,
					      struct stall_memory_locks **ret)
{
	struct stall_memory_locks *memory = calloc(1, sizeof(*memory));

	if (!memory)
		return &stall_enomem;
	memory->layouts = *layouts;
	*ret = memory;
	return NULL;
}

void stall_memory_locks_destroy(struct stall_memory_locks *memory)
{
	if (!memory)
		return;
	forget(memory->known, memory->known_count);
	free(memory->found);
	free(memory);
}

static bool is_of(const struct known *known, const struct stall_process *process)
{
	return known->pid == process->target.pid &&
	       known->start_time == process->target.start_time &&
	       known->start_brk == process->start_brk;
}

// The text of the server's own version, "10.11.4-MariaDB-log". A debug build has other layouts.
static bool read_version(const struct stall_snapshot *snapshot, const struct known *known,
			 uint32_t process, bool *ret_mariadb, unsigned int *ret)
{
	const struct stall_server_global *global = &known->globals[STALL_SERVER_VERSION];
	char text[MAX_VERSION] = "";
	const char *at = text;
	size_t size = global->size && global->size < sizeof(text) ? global->size : sizeof(text) - 1;

	if (!global->address ||
	    !stall_snapshot_read(snapshot, process, global->address, text, size))
		return false;
	text[sizeof(text) - 1] = '\0';
	*ret_mariadb = strcasestr(text, "mariadb");
	return !strcasestr(text, "debug") && parse_version(&at, ret);
}

static struct stall_error *choose_layout(const struct stall_memory_layouts *layouts,
					 const struct stall_snapshot *snapshot, uint32_t process,
					 struct known *known)
{
	struct stall_error *err = NULL;
	unsigned int version;
	bool mariadb;

	if (read_version(snapshot, known, process, &mariadb, &version)) {
		for (size_t i = 0; !err && i < layouts->count; i++) {
			struct range range = {};

			if (parse_range(layouts->by_version[i], &range) &&
			    range.mariadb == mariadb && range.from <= version &&
			    version <= range.until)
				err = stall_layout_add(&known->layout, range.keys);
		}
	}
	if (!err && layouts->given)
		err = stall_layout_join(&known->layout, layouts->given);
	return err;
}

static struct stall_error *learn(const struct stall_memory_locks *memory,
				 const struct stall_snapshot *snapshot, uint32_t process,
				 struct stall_worker *worker, struct known *ret)
{
	const struct stall_process *of = &snapshot->processes[process];
	struct stall_error *err = NULL;

	ret->pid = of->target.pid;
	ret->start_time = of->target.start_time;
	ret->start_brk = of->start_brk;
	for (int i = 0; !err && i < STALL_SERVER_GLOBALS; i++) {
		// Without a version it is no server that is known here.
		if (i && !ret->globals[STALL_SERVER_VERSION].address)
			break;
		err = stall_worker_find_data(worker, snapshot, process, global_names[i],
					     &ret->globals[i].address, &ret->globals[i].size);
	}
	return err ? err : choose_layout(&memory->layouts, snapshot, process, ret);
}

struct stall_error *stall_memory_locks_prepare(struct stall_memory_locks *memory,
					       const struct stall_snapshot *snapshot,
					       struct stall_worker *worker)
{
	struct known *known = calloc(snapshot->process_count + 1, sizeof(*known));
	struct stall_error *err = NULL;

	if (!known)
		return &stall_enomem;
	for (uint32_t i = 0; !err && i < snapshot->process_count; i++) {
		bool same = i < memory->known_count &&
			    is_of(&memory->known[i], &snapshot->processes[i]);

		if (!same) {
			err = learn(memory, snapshot, i, worker, &known[i]);
			continue;
		}
		known[i] = memory->known[i];
		memory->known[i].layout = (struct stall_layout){};
	}
	forget(memory->known, memory->known_count);
	memory->known = known;
	memory->known_count = snapshot->process_count;
	return err;
}

/* Waiters. */

// The word that a thread sleeps on may be part of a structure of the server.
static bool list_waiter(const struct stall_thread *thread, uint32_t index,
			struct stall_memory_waiter *ret)
{
	uint64_t word = stall_thread_futex(thread);

	// After a stop a wait goes on as restart_syscall(2), with the arguments still in place.
	if (!word && thread->in_syscall && thread->syscall == SYS_restart_syscall)
		word = thread->args[0];
	if (!word && thread->object_kind == STALL_OBJECT_COND)
		word = thread->object;
	*ret = (struct stall_memory_waiter){.thread = index, .pair = word & ~UINT64_C(7)};
	return word;
}

static struct stall_error *list_waiters(struct stall_server_memory *memory)
{
	const struct stall_snapshot *snapshot = memory->snapshot;

	memory->waiters = calloc(snapshot->thread_count + 1, sizeof(*memory->waiters));
	if (!memory->waiters)
		return &stall_enomem;
	for (size_t i = 0; i < snapshot->thread_count; i++)
		if (snapshot->threads[i].process == memory->process)
			memory->waiter_count += list_waiter(&snapshot->threads[i], (uint32_t)i,
							    &memory->waiters[memory->waiter_count]);
	return NULL;
}

static struct stall_error *find(struct stall_server_memory *memory)
{
	// Latches change hands the fastest.
	struct stall_error *err = stall_sync_cells_find(memory);

	if (!err)
		err = stall_row_locks_find(memory);
	if (!err)
		err = stall_metadata_locks_find(memory);
	return err;
}

static struct stall_error *read_process(struct stall_server_memory *memory)
{
	_cleanup_(stall_thds_deinit) struct stall_thds thds = {};
	_cleanup_(stall_thread_numbers_deinit) struct stall_thread_numbers numbers = {};

	struct stall_error *err = list_waiters(memory);
	if (err || !memory->waiter_count)
		return err;
	err = stall_thds_init(&thds, memory->snapshot, memory->process, memory->layout);
	if (!err)
		err = stall_thread_numbers_init(&numbers, memory->snapshot, memory->process);
	if (err)
		return err;
	memory->thds = &thds;
	memory->numbers = &numbers;
	err = find(memory);
	memory->thds = NULL;
	memory->numbers = NULL;
	return err;
}

struct stall_error *stall_memory_locks_read(struct stall_memory_locks *memory,
					    const struct stall_snapshot *snapshot)
{
	uint64_t until_ns = stall_clock_ns(CLOCK_MONOTONIC) + PATIENCE_NS;

	free(memory->found);
	memory->found_count = 0;
	memory->found = calloc(snapshot->thread_count + 1, sizeof(*memory->found));
	if (!memory->found)
		return &stall_enomem;
	memory->found_count = snapshot->thread_count;
	for (uint32_t i = 0; i < memory->known_count && i < snapshot->process_count; i++) {
		struct stall_server_memory server = {
			.snapshot = snapshot,
			.layout = &memory->known[i].layout,
			.globals = memory->known[i].globals,
			.process = i,
			.until_ns = until_ns,
			.found = memory->found,
		};

		if (!server.layout->count)
			continue;
		struct stall_error *err = read_process(&server);
		free(server.waiters);
		if (err)
			return err;
	}
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
// does waits for this one too. Returns who names it.
static const struct stall_memory_lock *choose(const struct change *changes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (changes[i].found->owner != STALL_NO_THREAD &&
		    !waits(changes, count, changes[i].found->owner))
			return changes[i].found;
	return NULL;
}

static struct stall_error *add_lock(struct stall_locks *locks,
				    const struct stall_snapshot *snapshot,
				    const struct change *changes, size_t count)
{
	const struct stall_memory_lock *chosen = choose(changes, count);
	const struct stall_memory_lock *found = chosen ? chosen : changes[0].found;
	uint32_t owner = chosen ? chosen->owner : STALL_NO_THREAD;
	struct stall_lock *lock = &locks->locks[locks->count];

	*lock = (struct stall_lock){
		.process = snapshot->threads[changes[0].thread].process,
		.address = found->address,
		.kind = found->kind,
		.owner_tid = owner == STALL_NO_THREAD ? 0 : snapshot->threads[owner].tid,
		.readers = found->readers,
		.stable = true,
		.waiters = (uint32_t)count,
		.source = "memory",
		.mode = found->mode,
		.symbol = *found->name ? strdup(found->name) : NULL,
		.created = *found->created ? strdup(found->created) : NULL,
	};
	locks->count++;
	for (size_t i = 0; i < count; i++) {
		uint32_t *of_thread = &locks->thread_lock[changes[i].thread];

		lock->stable = lock->stable && !changes[i].found->doubtful &&
			       changes[i].found->mode == found->mode;
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

// What its frames say of the thread's wait may contradict what was read later.
static bool may_be(const struct stall_locks *locks, uint32_t thread)
{
	if (locks->thread_lock[thread] == UINT32_MAX)
		return false;
	enum stall_lock_kind kind = locks->locks[locks->thread_lock[thread]].kind;
	return kind == STALL_LOCK_COND || kind == STALL_LOCK_UNKNOWN;
}

static struct stall_error *apply(struct stall_locks *locks, const struct stall_snapshot *snapshot,
				 uint32_t process, const struct stall_memory_lock *found)
{
	_cleanup_free_ struct change *changes =
		calloc(snapshot->thread_count + 1, sizeof(*changes));
	size_t count = 0;

	if (!changes)
		return &stall_enomem;
	for (size_t i = 0; i < snapshot->thread_count; i++)
		if (snapshot->threads[i].process == process && found[i].found &&
		    may_be(locks, (uint32_t)i))
			changes[count++] = (struct change){(uint32_t)i, &found[i]};
	return stall_locks_room(locks, count) ? add_locks(locks, snapshot, changes, count)
					      : &stall_enomem;
}

struct stall_error *stall_memory_locks_apply(const struct stall_memory_locks *memory,
					     struct stall_locks *locks,
					     const struct stall_snapshot *snapshot,
					     const struct stall_unwound *unwound)
{
	struct stall_error *err = NULL;

	if (!memory->found || memory->found_count != snapshot->thread_count)
		return NULL;
	for (uint32_t i = 0; !err && i < memory->known_count && i < snapshot->process_count; i++) {
		const struct stall_server_memory server = {
			.snapshot = snapshot,
			.layout = &memory->known[i].layout,
			.process = i,
			.found = memory->found,
		};

		stall_sux_locks_find(&server, unwound, locks);
		err = apply(locks, snapshot, i, memory->found);
	}
	return err ? err : stall_locks_sort(locks, snapshot->thread_count);
}
