// SPDX-License-Identifier: Apache-2.0
// Lock words as every generation of glibc lays them out, with and without names.
#include <linux/futex.h>
#include <stdlib.h>

#include "check.h"
#include "lock/lock.h"
#include "lock/lock_layout.h"
#include "lock/lock_names.h"

#define FUTEX_LOCK_PI2_OP 13
#define LOCK 0x7f0000001000
#define OWNER 101 // as lock words hold it; outside the namespace it is 1101
#define WAITER 102

static struct stall_thread threads[3] = {
	{.tid = 1100, .ns_tid = 100},
	{.tid = 1101, .ns_tid = OWNER},
	{.tid = 1102, .ns_tid = WAITER},
};
static struct stall_process process = {.target = {.pid = 1100}};
static struct stall_snapshot snapshot = {
	.processes = &process,
	.process_count = 1,
	.threads = threads,
	.thread_count = 3,
};
static struct stall_lock_tids tids;

// A lock in memory: 32-bit words from its start on.
struct object {
	uint32_t words[14];
};

static struct stall_futex read_futex(const struct object *object, int offset)
{
	struct stall_futex futex = {.address = LOCK + offset, .readable = true, .stable = true};

	memset(futex.bytes, 0xaa, sizeof(futex.bytes));
	for (int i = 0; i < 14; i++) {
		int at = STALL_FUTEX_BEFORE + i * 4 - offset;
		if (at >= 0 && at + 4 <= (int)sizeof(futex.bytes))
			memcpy(futex.bytes + at, &object->words[i], 4);
	}
	return futex;
}

static struct stall_lock_decoded decode(const struct object *object, int offset, uint32_t operation,
					uint32_t value, enum stall_wait_name name)
{
	struct stall_futex futex = read_futex(object, offset);
	const struct stall_lock_wait wait = {
		.address = LOCK + offset,
		.operation = operation & FUTEX_CMD_MASK,
		.private = operation & FUTEX_PRIVATE_FLAG,
		.value = value,
	};

	return stall_lock_decode(&wait, name, &futex, &tids);
}

#define PRIVATE_WAIT (FUTEX_WAIT | FUTEX_PRIVATE_FLAG)
#define PRIVATE_BITSET (FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME)

// __lock, __count, __owner, __nusers, __kind
static struct object mutex(uint32_t word, uint32_t count, uint32_t owner, uint32_t kind)
{
	return (struct object){{word, count, owner, 1, kind}};
}

static void test_mutexes(void)
{
	static const enum stall_wait_name names[] = {STALL_WAIT_MUTEX, STALL_WAIT_FOREIGN};

	for (int i = 0; i < 2; i++) {
		// Normal, recursive, errorcheck, adaptive; those shared between processes.
		for (uint32_t kind = 0; kind < 4; kind++) {
			struct object object = mutex(2, kind == 1, OWNER, kind);
			struct stall_lock_decoded lock =
				decode(&object, 0, PRIVATE_WAIT, 2, names[i]);
			CHECK_INT(lock.kind, STALL_LOCK_MUTEX);
			CHECK_INT(lock.owner, OWNER);
			CHECK_INT(lock.address, LOCK);
			object = mutex(2, 0, OWNER, kind | 128);
			lock = decode(&object, 0, FUTEX_WAIT, 2, names[i]);
			CHECK_INT(lock.kind, STALL_LOCK_MUTEX);
			CHECK_INT(lock.owner, OWNER);
		}
		// Robust: the TID in the word.
		struct object object = mutex(OWNER | FUTEX_WAITERS, 0, OWNER, 16);
		struct stall_lock_decoded lock =
			decode(&object, 0, PRIVATE_WAIT, OWNER | FUTEX_WAITERS, names[i]);
		CHECK_INT(lock.kind, STALL_LOCK_MUTEX);
		CHECK_INT(lock.owner, OWNER);
		// Priority inheritance, by both operations.
		object = mutex(OWNER | FUTEX_WAITERS, 0, OWNER, 32);
		lock = decode(&object, 0, FUTEX_LOCK_PI | FUTEX_PRIVATE_FLAG, 0, names[i]);
		CHECK_INT(lock.kind, STALL_LOCK_MUTEX);
		CHECK_INT(lock.owner, OWNER);
		lock = decode(&object, 0, FUTEX_LOCK_PI2_OP | FUTEX_PRIVATE_FLAG, 0, names[i]);
		CHECK_INT(lock.owner, OWNER);
	}
	// With a name, the owner counts even before it is written into a robust mutex.
	struct object object = mutex(OWNER | FUTEX_WAITERS, 0, 0, 16);
	CHECK_INT(decode(&object, 0, PRIVATE_WAIT, OWNER | FUTEX_WAITERS, STALL_WAIT_MUTEX).owner,
		  OWNER);
	// Released, not taken again yet.
	object = mutex(2, 0, 0, 0);
	CHECK_INT(decode(&object, 0, PRIVATE_WAIT, 2, STALL_WAIT_MUTEX).owner, 0);
}

static void test_no_guess(void)
{
	// A mutex by all signs, but its owner is no thread.
	struct object object = mutex(2, 0, 4711, 0);
	CHECK_INT(decode(&object, 0, PRIVATE_WAIT, 2, STALL_WAIT_FOREIGN).kind, STALL_LOCK_UNKNOWN);
	// With a name it is one; what stands in memory is kept.
	CHECK_INT(decode(&object, 0, PRIVATE_WAIT, 2, STALL_WAIT_MUTEX).owner, 4711);
	// A kind that does not exist, another awaited value, no users.
	object = mutex(2, 0, OWNER, 0x12345);
	CHECK_INT(decode(&object, 0, PRIVATE_WAIT, 2, STALL_WAIT_FOREIGN).kind, STALL_LOCK_UNKNOWN);
	object = mutex(2, 0, OWNER, 0);
	CHECK_INT(decode(&object, 0, PRIVATE_WAIT, 7, STALL_WAIT_FOREIGN).kind, STALL_LOCK_UNKNOWN);
	object.words[3] = 0;
	CHECK_INT(decode(&object, 0, PRIVATE_WAIT, 2, STALL_WAIT_FOREIGN).kind, STALL_LOCK_UNKNOWN);
	// The program's own futex stays unknown even where the bytes look like a mutex.
	object = mutex(2, 0, OWNER, 0);
	CHECK_INT(decode(&object, 0, PRIVATE_WAIT, 2, STALL_WAIT_OTHER).kind, STALL_LOCK_UNKNOWN);

	const struct stall_lock_wait wait = {.address = LOCK, .private = true, .value = 2};
	CHECK_INT(stall_lock_decode(&wait, STALL_WAIT_FOREIGN, NULL, &tids).kind,
		  STALL_LOCK_UNKNOWN);
	struct stall_futex unreadable = read_futex(&object, 0);
	unreadable.readable = false;
	struct stall_lock_decoded lock =
		stall_lock_decode(&wait, STALL_WAIT_MUTEX, &unreadable, &tids);
	CHECK_INT(lock.kind, STALL_LOCK_MUTEX);
	CHECK_INT(lock.owner, 0);
}

// 2.25 and later: __readers, __writers, __wrphase_futex, __writers_futex, -, -, __cur_writer, __shared
static struct object rwlock(uint32_t readers, uint32_t writer)
{
	return (struct object){{readers, 0, 3, 3, 0, 0, writer, 0}};
}

static void test_rwlocks(void)
{
	// A writer inside, one reader that waits (counted in __readers).
	struct object written = rwlock(1 << 3 | 3, OWNER);
	struct stall_lock_decoded lock;
	static const struct {
		enum stall_wait_name name;
		int offset;
		uint32_t value;
	} waits[] = {
		{STALL_WAIT_RDLOCK, 8, 3},
		{STALL_WAIT_WRLOCK, 12, 3},
	};
	for (int i = 0; i < 2; i++) {
		for (int named = 0; named < 2; named++) {
			lock = decode(&written, waits[i].offset, PRIVATE_BITSET, waits[i].value,
				      named ? waits[i].name : STALL_WAIT_FOREIGN);
			CHECK_INT(lock.kind, STALL_LOCK_RWLOCK);
			CHECK_INT(lock.address, LOCK);
			CHECK_INT(lock.owner, OWNER);
			CHECK_INT(lock.readers, 0);
		}
	}
	// Two readers inside, the first writer waits for them, a second one behind it.
	struct object read = rwlock(2 << 3 | 2, 0);
	lock = decode(&read, 8, PRIVATE_BITSET, 2, STALL_WAIT_WRLOCK);
	CHECK_INT(lock.address, LOCK);
	CHECK_INT(lock.readers, 2);
	CHECK_INT(lock.owner, 0);
	lock = decode(&read, 12, PRIVATE_BITSET, 3, STALL_WAIT_WRLOCK);
	CHECK_INT(lock.address, LOCK);
	CHECK_INT(lock.readers, 2);
	// Without names there is no doubt only where a writer lives.
	CHECK_INT(decode(&read, 12, PRIVATE_BITSET, 3, STALL_WAIT_FOREIGN).kind,
		  STALL_LOCK_UNKNOWN);
	// Writers first: the reader waits on __readers itself, which has RWAITING (4) in it.
	struct object fair = rwlock(1 << 3 | 4 | 2, 0);
	lock = decode(&fair, 0, PRIVATE_BITSET, 1 << 3 | 4 | 2, STALL_WAIT_RDLOCK);
	CHECK_INT(lock.address, LOCK);
	CHECK_INT(lock.readers, 1);
}

static void test_old_rwlocks(void)
{
	// Before 2.25: __lock, __nr_readers, __readers_wakeup, __writer_wakeup,
	// __nr_readers_queued, __nr_writers_queued, __writer.
	struct object written = {{0, 0, 5, 2, 1, 1, OWNER, 0}};
	struct stall_lock_decoded lock = decode(&written, 8, PRIVATE_WAIT, 5, STALL_WAIT_RDLOCK);
	CHECK_INT(lock.kind, STALL_LOCK_RWLOCK);
	CHECK_INT(lock.address, LOCK);
	CHECK_INT(lock.owner, OWNER);
	// Its counter of wake-ups may be 2, which means another word in later versions.
	lock = decode(&written, 12, PRIVATE_WAIT, 2, STALL_WAIT_WRLOCK);
	CHECK_INT(lock.address, LOCK);
	CHECK_INT(lock.owner, OWNER);
	struct object read = {{0, 3, 0, 0, 0, 1, 0, 0}};
	lock = decode(&read, 12, PRIVATE_WAIT, 0, STALL_WAIT_WRLOCK);
	CHECK_INT(lock.readers, 3);
	CHECK_INT(lock.owner, 0);
}

static void test_others(void)
{
	struct object object = {};
	struct stall_lock_decoded lock = decode(&object, 44, PRIVATE_BITSET, 0, STALL_WAIT_COND);
	CHECK_INT(lock.kind, STALL_LOCK_COND);
	CHECK_INT(lock.address, LOCK + 40);
	CHECK_INT(lock.owner, 0);
	// On its way out of pthread_cond_wait, at the mutex.
	object = mutex(2, 0, OWNER, 0);
	lock = decode(&object, 0, PRIVATE_WAIT, 2, STALL_WAIT_COND);
	CHECK_INT(lock.kind, STALL_LOCK_MUTEX);
	CHECK_INT(lock.owner, OWNER);

	CHECK_INT(decode(&object, 0, PRIVATE_BITSET, 0, STALL_WAIT_SEM).kind, STALL_LOCK_SEM);
	CHECK_INT(decode(&object, 0, PRIVATE_WAIT, 2, STALL_WAIT_INTERNAL).kind,
		  STALL_LOCK_INTERNAL);
	CHECK_INT(decode(&object, 0, PRIVATE_WAIT, 2, STALL_WAIT_INTERNAL).owner, 0);

	// pthread_join: a shared futex that holds the TID.
	object = (struct object){{OWNER}};
	for (int named = 0; named < 2; named++) {
		lock = decode(&object, 0, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, OWNER,
			      named ? STALL_WAIT_JOIN : STALL_WAIT_FOREIGN);
		CHECK_INT(lock.kind, STALL_LOCK_JOIN);
		CHECK_INT(lock.owner, OWNER);
	}
	CHECK_INT(decode(&object, 0, PRIVATE_BITSET, OWNER, STALL_WAIT_FOREIGN).kind,
		  STALL_LOCK_UNKNOWN);
}

static void test_names(void)
{
	static const struct {
		const char *symbol;
		enum stall_wait_name wait;
	} cases[] = {
		{"pthread_mutex_lock", STALL_WAIT_MUTEX},
		{"__GI___pthread_mutex_lock", STALL_WAIT_MUTEX},
		{"___pthread_mutex_lock", STALL_WAIT_MUTEX},
		{"__pthread_mutex_cond_lock", STALL_WAIT_MUTEX},
		{"pthread_mutex_lock@@GLIBC_2.2.5", STALL_WAIT_MUTEX},
		{"__pthread_rwlock_rdlock_full64", STALL_WAIT_RDLOCK},
		{"__pthread_rwlock_wrlock_slow", STALL_WAIT_WRLOCK},
		{"pthread_cond_wait@@GLIBC_2.3.2", STALL_WAIT_COND},
		{"__pthread_cond_wait_common", STALL_WAIT_COND},
		{"__new_sem_wait_slow64.constprop.0", STALL_WAIT_SEM},
		{"__pthread_clockjoin_ex", STALL_WAIT_JOIN},
		{"__lll_lock_wait_private", STALL_WAIT_INTERNAL},
		{"__lll_lock_wait", STALL_WAIT_HELPER},
		{"_L_lock_1035", STALL_WAIT_HELPER},
		{"__futex_abstimed_wait_common64", STALL_WAIT_HELPER},
		{"__syscall_cancel_arch", STALL_WAIT_HELPER},
		{"do_futex_wait.constprop.0", STALL_WAIT_HELPER},
		{"_int_free", STALL_WAIT_INTERNAL},
		{"__libc_malloc", STALL_WAIT_INTERNAL},
		{"free", STALL_WAIT_INTERNAL},
		{"__tz_convert", STALL_WAIT_INTERNAL},
		{"free_items", STALL_WAIT_FOREIGN},
		{"free(void*)", STALL_WAIT_FOREIGN},
		{"malloc_consolidate_my_tables", STALL_WAIT_FOREIGN},
		{"syscall", STALL_WAIT_OTHER},
		{"syscall_of_mine", STALL_WAIT_FOREIGN},
		{"__pthread_once_slow", STALL_WAIT_OTHER},
		{"", STALL_WAIT_FOREIGN},
		{"_", STALL_WAIT_FOREIGN},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (stall_wait_name(cases[i].symbol) != cases[i].wait)
			fprintf(stderr, "%s:\n", cases[i].symbol);
		CHECK_INT(stall_wait_name(cases[i].symbol), cases[i].wait);
	}
}

// Threads, frames and words put together: owners in our pid namespace, one lock per object.
static void test_locks(void)
{
	struct object object = mutex(2, 0, OWNER, 0);
	struct stall_futex futex = read_futex(&object, 0);
	struct stall_frame frames[] = {
		{.module = 0},
		{.module = 0, .symbol = "pthread_mutex_lock"},
		{.module = 1, .symbol = "work"},
	};
	uint32_t named[] = {0, 1, 2}, nameless[] = {0, 2};
	struct stall_stack stacks[] = {{},
				       {.frames = named, .count = 3},
				       {.frames = nameless, .count = 2}};
	const struct stall_unwound unwound = {.frames = frames,
					      .frame_count = 3,
					      .stacks = stacks,
					      .stack_count = 3};
	struct stall_locks locks;

	// 101 waits for itself, and 102 for it.
	for (int i = 1; i < 3; i++) {
		threads[i].in_syscall = true;
		threads[i].syscall = 202;
		threads[i].args[0] = LOCK;
		threads[i].args[1] = PRIVATE_WAIT;
		threads[i].args[2] = 2;
	}
	snapshot.futexes = &futex;
	snapshot.futex_count = 1;
	CHECK_OK(stall_locks_init(&locks, &snapshot, &unwound, NULL));
	CHECK_INT(locks.count, 1);
	CHECK_INT(locks.locks[0].kind, STALL_LOCK_MUTEX);
	CHECK_INT(locks.locks[0].owner_tid, 1101);
	CHECK_INT(locks.locks[0].owner_raw, OWNER);
	CHECK_INT(locks.locks[0].waiters, 2);
	CHECK(locks.locks[0].stable);
	CHECK_INT(locks.thread_lock[0], UINT32_MAX);
	CHECK_INT(locks.thread_lock[1], 0);
	CHECK_INT(locks.thread_lock[2], 0);
	stall_locks_deinit(&locks);

	// An owner that is no thread is not named, and a word that changed says so.
	object = mutex(2, 0, 4711, 0);
	futex = read_futex(&object, 0);
	futex.stable = false;
	CHECK_OK(stall_locks_init(&locks, &snapshot, &unwound, NULL));
	CHECK_INT(locks.count, 1);
	CHECK_INT(locks.locks[0].owner_tid, 0);
	CHECK_INT(locks.locks[0].owner_raw, 4711);
	CHECK(!locks.locks[0].stable);
	stall_locks_deinit(&locks);

	// A wait that continues as restart_syscall(2), known only by its frames.
	threads[1].syscall = threads[2].syscall = 219;
	CHECK_OK(stall_locks_init(&locks, &snapshot, &unwound, NULL));
	CHECK_INT(locks.count, 1);
	CHECK_INT(locks.locks[0].address, LOCK);
	CHECK_INT(locks.locks[0].waiters, 1);
	CHECK_INT(locks.thread_lock[2], UINT32_MAX);
	stall_locks_deinit(&locks);

	// Nobody waits.
	threads[1].in_syscall = threads[2].in_syscall = false;
	CHECK_OK(stall_locks_init(&locks, &snapshot, &unwound, NULL));
	CHECK_INT(locks.count, 0);
	stall_locks_deinit(&locks);
}

// A semaphore that a thread sleeps on gives way to the lock that the server says it waits for; a mutex
// does not.
static void test_locks_of_server(void)
{
	static char table[] = "relation 16384 of database 5", row[] = "transaction 745";
	struct stall_lock own[] = {
		{.address = LOCK, .kind = STALL_LOCK_SEM, .waiters = 1},
		{.address = LOCK + 64, .kind = STALL_LOCK_MUTEX, .waiters = 1, .owner_raw = 100},
	};
	uint32_t thread_lock[] = {UINT32_MAX, 0, 1};
	struct stall_locks locks = {
		.locks = malloc(sizeof(own)),
		.count = 2,
		.thread_lock = malloc(sizeof(thread_lock)),
	};
	const struct stall_lock_of_server found[] = {
		{0,
		 {.address = LOCK + 8,
		  .kind = STALL_LOCK_TABLE,
		  .owner_raw = 7,
		  .symbol = table,
		  .source = "memory"}},
		{1,
		 {.address = LOCK + 8,
		  .kind = STALL_LOCK_TABLE,
		  .owner_raw = 7,
		  .symbol = table,
		  .source = "memory"}},
		{2,
		 {.address = LOCK,
		  .kind = STALL_LOCK_ROW,
		  .owner_raw = 7,
		  .symbol = row,
		  .source = "memory"}},
	};

	memcpy(locks.locks, own, sizeof(own));
	memcpy(locks.thread_lock, thread_lock, sizeof(thread_lock));
	CHECK_OK(stall_locks_add(&locks, &snapshot, found, 3));
	CHECK_INT(locks.count, 2);
	CHECK_INT(locks.thread_lock[0], 0);
	CHECK_INT(locks.thread_lock[1], 0);
	CHECK_INT(locks.thread_lock[2], 1);
	CHECK_STRING(locks.locks[0].symbol, table);
	CHECK_INT(locks.locks[0].waiters, 2);
	CHECK_STRING(locks.locks[0].source, "memory");
	CHECK_INT(locks.locks[1].kind, STALL_LOCK_MUTEX);
	CHECK_INT(locks.locks[1].waiters, 1);
	stall_locks_deinit(&locks);
}

// The same lock with another owner, for another waiter, is another one.
static void test_owners_of_server(void)
{
	struct stall_locks locks = {.thread_lock = malloc(3 * sizeof(uint32_t))};
	const struct stall_lock_of_server found[] = {
		{2, {.address = LOCK, .kind = STALL_LOCK_TABLE, .owner_raw = 9}},
		{1, {.address = LOCK, .kind = STALL_LOCK_TABLE, .owner_raw = 7}},
	};

	memset(locks.thread_lock, 0xff, 3 * sizeof(uint32_t));
	CHECK_OK(stall_locks_add(&locks, &snapshot, found, 2));
	CHECK_INT(locks.count, 2);
	CHECK_INT(locks.locks[0].owner_raw, 7);
	CHECK_INT(locks.thread_lock[0], UINT32_MAX);
	CHECK_INT(locks.thread_lock[1], 0);
	CHECK_INT(locks.thread_lock[2], 1);
	CHECK(stall_lock_compare(&locks.locks[0], &locks.locks[1]) < 0);
	stall_locks_deinit(&locks);
}

int main(void)
{
	CHECK_OK(stall_lock_tids_init(&tids, &snapshot));
	test_mutexes();
	test_no_guess();
	test_rwlocks();
	test_old_rwlocks();
	test_others();
	test_names();
	test_locks();
	test_locks_of_server();
	test_owners_of_server();
	stall_lock_tids_deinit(&tids);
	return check_done();
}
