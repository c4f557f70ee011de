// SPDX-License-Identifier: Apache-2.0
// The wait programs where room runs out and processes change.
#include "ebpf/waits_read.h"
#include "waits_watcher.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static void check_refused(struct stall_bpf_waits_options options)
{
	struct stall_bpf_waits *waits = NULL;
	struct stall_error *err = stall_bpf_waits_create(&options, &waits);

	CHECK(err && err->code == STALL_ERROR_USAGE && !waits);
	stall_error_destroy(err);
}

static void test_options(void)
{
	struct stall_bpf_waits_options options = options_of(ALL_KINDS, 0);
	struct stall_bpf_waits *waits = NULL;

	check_refused(options_of(0, 0));
	options.ring_bytes = 5000;
	check_refused(options);
	options = options_of(ALL_KINDS, 0);
	CHECK_OK(stall_bpf_waits_create(&options, &waits));
	struct stall_error *err = stall_bpf_waits_add(waits, 0x3fffff); // above any pid_max
	CHECK(err && err->code == STALL_ERROR_NO_PROCESS);
	stall_error_destroy(err);
	stall_bpf_waits_destroy(waits);
}

// Two slots for eleven threads: two waiters are seen, the rest is counted.
static void test_slots_full(struct actor *actor)
{
	struct stall_bpf_waits_options options = options_of(1U << STALL_WAIT_FUTEX, 1 * MS);
	size_t count;

	options.max_threads = 2;
	struct watcher *watcher = watcher_start(&options, actor->target.pid);
	actor_does(actor, "mutex 3 10 6");
	watcher_take(watcher);
	CHECK(lost(watcher, STALL_LOST_SLOTS_FULL) > 0);
	stall_bpf_waits_slots(watcher->waits, &count);
	CHECK_INT(count, 2);
	for (size_t i = 0; i < watcher->record_count; i++)
		CHECK(watcher->records[i].slot < 2);
	watcher_stop(watcher);
}

// One key, which the first takes: the others are counted under their kind.
static void test_keys_full(struct actor *actor)
{
	struct stall_bpf_waits_options options =
		options_of(1U << STALL_WAIT_FSYNC | 1U << STALL_WAIT_FALLOCATE, 1000 * MS);
	size_t count;
	uint64_t waits = 0;

	options.max_keys = 1;
	struct watcher *watcher = watcher_start(&options, actor->target.pid);
	actor_does(actor, "fsync 23");
	actor_does(actor, "fallocate 29");
	watcher_take(watcher);
	CHECK_INT(lost(watcher, STALL_LOST_KEYS_FULL), 29);
	CHECK_INT(watcher->file_count, 1);
	const volatile struct stall_wait_stat *stats =
		stall_bpf_waits_stats(watcher->waits, &count);
	for (size_t i = 0; i < count; i++)
		waits += stats[i].used ? stat_count(&stats[i]) : 0;
	CHECK_INT(waits, 52);
	CHECK_INT(stat_count(find_stat(watcher, 0, STALL_WAIT_FALLOCATE, 0)), 29);
	watcher_stop(watcher);
}

// Each fsync is reported; a page holds few of them. What does not fit is counted, none twice.
static void test_ring_full(struct actor *actor)
{
	struct stall_bpf_waits_options options = options_of(1U << STALL_WAIT_FSYNC, 0);

	options.ring_bytes = 4096;
	struct watcher *watcher = watcher_start(&options, actor->target.pid);
	actor_does(actor, "fsync 100");
	watcher_take(watcher);
	size_t ends = count_records(watcher, STALL_RECORD_END, 0);
	size_t flights = count_records(watcher, STALL_RECORD_IN_FLIGHT, 0);
	uint64_t full = lost(watcher, STALL_LOST_RING_FULL);
	CHECK(full > 0 && ends > 0 && ends < 100);
	CHECK(ends + flights + full >= 100);
	watcher->record_count = 0;
	watcher_stop(watcher);
}

static void test_rate(struct actor *actor)
{
	struct stall_bpf_waits_options options = options_of(1U << STALL_WAIT_FALLOCATE, 0);

	options.records_per_second = 5;
	struct watcher *watcher = watcher_start(&options, actor->target.pid);
	actor_does(actor, "fallocate 100");
	watcher_take(watcher);
	size_t ends = count_records(watcher, STALL_RECORD_END, 0);
	CHECK(ends >= 5 && ends < 100);
	CHECK_INT(ends + lost(watcher, STALL_LOST_RATE), 100);
	watcher_stop(watcher);
}

// 64 bytes of a stack are never all of it.
static void test_stack_short(struct actor *actor)
{
	struct stall_bpf_waits_options options = options_of(1U << STALL_WAIT_FALLOCATE, 0);

	options.stack_bytes = 64;
	struct watcher *watcher = watcher_start(&options, actor->target.pid);
	actor_does(actor, "fallocate 10");
	CHECK(await_records(watcher, STALL_RECORD_END, 0, 10));
	CHECK_INT(lost(watcher, STALL_LOST_STACK_SHORT), 10);
	for (size_t i = 0; i < watcher->record_count; i++) {
		if (watcher->records[i].type == STALL_RECORD_END)
			CHECK_INT(watcher->records[i].stack_size, 64);
	}
	watcher_stop(watcher);
}

// Nothing of the process is seen any more, its slots are free, and it can come back.
static void test_remove(struct actor *actor)
{
	struct stall_bpf_waits_options options = options_of(ALL_KINDS, 5 * MS);
	struct stall_wait_stat last;
	size_t count, fsyncs = SIZE_MAX;

	options.max_threads = 32;
	uint64_t word = actor_locks(actor, "mutex 1 1");
	struct watcher *watcher = watcher_start(&options, actor->target.pid);
	for (int i = 0; i < 8; i++) {
		actor_does(actor, "fsync 3");
		wait_reported(watcher, actor, 6, word);
		stall_bpf_waits_remove(watcher->waits, actor->target.pid);
		actor_does(actor, "mutex 1 10 6");
		CHECK_OK(stall_bpf_waits_add(watcher->waits, actor->target.pid));
	}
	watcher_take(watcher);
	CHECK_INT(lost(watcher, STALL_LOST_SLOTS_FULL), 0);
	CHECK_INT(count_records(watcher, STALL_RECORD_WAKER, 0), 8 * 6);

	const volatile struct stall_wait_stat *stats =
		stall_bpf_waits_stats(watcher->waits, &count);
	for (size_t i = 0; i < count; i++) {
		CHECK_INT(stats[i].marked, 0);
		if (stats[i].used && stats[i].key.kind == STALL_WAIT_FSYNC && stats[i].key.tgid)
			fsyncs = i;
	}
	CHECK(fsyncs != SIZE_MAX);
	uint64_t max = stats[fsyncs].max_ns;
	CHECK(max > 0);
	CHECK_INT(stall_bpf_waits_take_max(watcher->waits, fsyncs), max);
	CHECK_INT(stall_bpf_waits_take_max(watcher->waits, fsyncs), 0);
	uint64_t waits = stat_count(&stats[fsyncs]),
		 end = stall_clock_ns(CLOCK_MONOTONIC) + 90 * MS;
	CHECK(!stall_bpf_waits_retire(watcher->waits, fsyncs, &last));
	bool retired = stall_bpf_waits_retire(watcher->waits, fsyncs, &last);
	CHECK(!retired || stall_clock_ns(CLOCK_MONOTONIC) > end);
	while (!retired && stall_clock_ns(CLOCK_MONOTONIC) < end + PATIENCE_NS) {
		usleep(10000);
		retired = stall_bpf_waits_retire(watcher->waits, fsyncs, &last);
	}
	CHECK(retired);
	CHECK_INT(stat_count(&last), waits);
	CHECK_INT(stats[fsyncs].used, 0);
	CHECK_INT(stat_count(&stats[fsyncs]), 0);
	watcher_stop(watcher);
}

// While a thread waits for it, a key stays.
static void test_not_retired(struct actor *actor)
{
	struct stall_bpf_waits_options options = options_of(ALL_KINDS, 1000 * MS);
	struct stall_wait_stat last;
	size_t count;

	struct watcher *watcher = watcher_start(&options, actor->target.pid);
	uint64_t word = actor_locks(actor, "hold mutex 2");
	const volatile struct stall_wait_stat *stat =
		find_stat(watcher, actor->target.pid, STALL_WAIT_FUTEX, word);
	CHECK(stat);
	for (int i = 0; stat && i < 2; i++) {
		CHECK(!stall_bpf_waits_retire(watcher->waits,
					      stat - stall_bpf_waits_stats(watcher->waits, &count),
					      &last));
		CHECK(stat->tag == stall_wait_tag((const struct stall_wait_key *)&stat->key));
	}
	actor_does(actor, "release");
	watcher_stop(watcher);
}

/* A process of the test's own. */

struct shared {
	int go, stage;
	uint64_t pthread, word;
	uint32_t futex;
};
static struct shared *shared;

static void reach(int stage)
{
	__atomic_store_n(&shared->stage, stage, __ATOMIC_RELEASE);
}

static void await(const int *number, int wanted)
{
	while (__atomic_load_n(number, __ATOMIC_ACQUIRE) < wanted)
		usleep(500);
}

static void *wait_in_futex(void *arg)
{
	struct timespec timeout = {.tv_nsec = 20 * MS};

	shared->pthread = pthread_self();
	syscall(SYS_futex, &shared->futex, 128 /* FUTEX_WAIT_PRIVATE */, 0, &timeout, NULL, 0);
	return arg;
}

static void child_main(void)
{
	struct timespec timeout = {.tv_nsec = 20 * MS};
	pthread_t thread;

	await(&shared->go, 1);
	pthread_create(&thread, NULL, wait_in_futex, NULL);
	pthread_join(thread, NULL);
	syscall(SYS_futex, &shared->futex, 128, 0, &timeout, NULL, 0);
	reach(1);
	await(&shared->go, 2);
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	waitpid(child, NULL, 0);
	reach(2);
	await(&shared->go, 3);
	execl("/bin/sleep", "sleep", "1000", NULL);
	_exit(1);
}

// Where the first thread's stack begins, by /proc/PID/stat.
static uint64_t start_stack(pid_t pid)
{
	char path[64], text[2048] = "";
	uint64_t value = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	FILE *file = fopen(path, "re");
	char *at = file && fgets(text, sizeof(text), file) ? strrchr(text, ')') : NULL;
	for (int field = 2; at && field < 28; field++)
		at = strchr(at + 1, ' ');
	if (at)
		value = strtoull(at, NULL, 10);
	if (file)
		fclose(file);
	return value;
}

static const struct stall_wait_record *find_process_record(const struct watcher *watcher,
							   enum stall_process_change change)
{
	for (size_t i = 0; i < watcher->record_count; i++) {
		const struct stall_wait_record *record = &watcher->records[i];

		if (record->type == STALL_RECORD_PROCESS && record->result == change)
			return record;
	}
	return NULL;
}

static void await_change(struct watcher *watcher, pid_t pid, enum stall_process_change change)
{
	uint64_t end = stall_clock_ns(CLOCK_MONOTONIC) + PATIENCE_NS;

	while (!find_process_record(watcher, change) && stall_clock_ns(CLOCK_MONOTONIC) < end) {
		watcher_take(watcher);
		usleep(500);
	}
	const struct stall_wait_record *record = find_process_record(watcher, change);
	CHECK(record);
	CHECK(record && record->tgid == pid);
}

// Stacks end where glibc and the kernel end them.
static void check_stacks(const struct watcher *watcher, pid_t pid)
{
	int threads = 0;

	for (size_t i = 0; i < watcher->record_count; i++) {
		const struct stall_wait_record *record = &watcher->records[i];
		uint64_t end = record->stack_address + record->stack_size;

		if (record->type != STALL_RECORD_END || record->operation != 128)
			continue;
		CHECK_INT(record->result, -ETIMEDOUT);
		CHECK_INT(record->ns_tid, record->tid);
		if (record->tid == pid)
			CHECK_INT(end, start_stack(pid));
		else
			CHECK_INT(end, shared->pthread);
		threads++;
	}
	CHECK_INT(threads, 2);
}

static void test_process(void)
{
	struct stall_bpf_waits_options options = options_of(ALL_KINDS, 5 * MS);

	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	options.stack_bytes = 32768;
	pid_t child = fork();
	if (child == 0)
		child_main();
	struct watcher *watcher = watcher_start(&options, child);
	__atomic_store_n(&shared->go, 1, __ATOMIC_RELEASE);
	await(&shared->stage, 1);
	watcher_take(watcher);
	check_stacks(watcher, child);
	CHECK(!find_process_record(watcher, STALL_PROCESS_FORKED));
	__atomic_store_n(&shared->go, 2, __ATOMIC_RELEASE);
	await_change(watcher, child, STALL_PROCESS_FORKED);
	CHECK(!find_process_record(watcher, STALL_PROCESS_EXECED));
	CHECK(!find_process_record(watcher, STALL_PROCESS_EXITED)); // its child did
	__atomic_store_n(&shared->go, 3, __ATOMIC_RELEASE);
	await_change(watcher, child, STALL_PROCESS_EXECED);
	kill(child, SIGKILL);
	await_change(watcher, child, STALL_PROCESS_EXITED);
	waitpid(child, NULL, 0);
	check_nothing_lost(watcher);
	watcher_stop(watcher);
	munmap(shared, 4096);
}

// Many threads that come and go, so that slots and places are used over and over.
static void *short_thread(void *arg)
{
	struct timespec timeout = {.tv_nsec = 1000};

	syscall(SYS_futex, arg, 128, 0, &timeout, NULL, 0);
	return NULL;
}

#define ROUNDS 500
#define AT_ONCE 8

static void churn_main(void)
{
	pthread_t threads[AT_ONCE];

	await(&shared->go, 1);
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < AT_ONCE; i++)
			pthread_create(&threads[i], NULL, short_thread, &shared->futex);
		for (int i = 0; i < AT_ONCE; i++)
			pthread_join(threads[i], NULL);
	}
	reach(1);
	await(&shared->go, 2);
	_exit(0);
}

static void test_churn(void)
{
	struct stall_bpf_waits_options options = options_of(ALL_KINDS, 1000 * MS);
	size_t count;
	int waiting = 0;

	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	options.kinds = 1U << STALL_WAIT_FUTEX;
	options.max_threads = 32;
	pid_t child = fork();
	if (child == 0)
		churn_main();
	struct watcher *watcher = watcher_start(&options, child);
	__atomic_store_n(&shared->go, 1, __ATOMIC_RELEASE);
	await(&shared->stage, 1);
	const volatile struct stall_wait_slot *slots =
		stall_bpf_waits_slots(watcher->waits, &count);
	CHECK(count <= 32);
	for (size_t i = 0; i < count; i++)
		waiting += slots[i].seq & 1;
	CHECK_INT(waiting, 0);
	CHECK_INT(stat_count(
			  find_stat(watcher, child, STALL_WAIT_FUTEX, (uintptr_t)&shared->futex)),
		  ROUNDS * AT_ONCE);
	check_nothing_lost(watcher);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	watcher_stop(watcher);
	munmap(shared, 4096);
}

int main(void)
{
	int skip = require_waits();
	struct actor actor;

	if (skip)
		return skip;
	test_options();
	CHECK(actor_start(&actor, "8", "0"));
	test_slots_full(&actor);
	test_keys_full(&actor);
	test_ring_full(&actor);
	test_rate(&actor);
	test_stack_short(&actor);
	test_remove(&actor);
	test_not_retired(&actor);
	actor_stop(&actor);
	test_process();
	test_churn();
	return check_done();
}
