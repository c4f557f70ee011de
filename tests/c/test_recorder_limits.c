// SPDX-License-Identifier: Apache-2.0
// What is written of waits where there is no room: slots, stats and records are full, and a
// thousand threads share the memory of stacks.
#include <sys/stat.h>

#include "own_ring.h"

static void *wait_once(void *arg)
{
	recording_wait_once();
	pthread_barrier_wait(arg);
	pthread_barrier_wait(arg);
	return (void *)syscall(SYS_gettid); // says nothing of its end
}

// The kernel has it for a moment longer than pthread_join(3) waits.
static void join_uncancelled(pthread_t thread)
{
	void *tid;

	pthread_join(thread, &tid);
	while (!syscall(SYS_tgkill, getpid(), (pid_t)(intptr_t)tid, 0))
		usleep(100);
}

static int slots_in_use(void)
{
	size_t count;
	const volatile struct stall_wait_slot *slots = stall_ring_slots(own_ring(), &count);
	int used = 0;

	for (size_t i = 0; i < count; i++)
		used += slots[i].tid != 0;
	return used;
}

// 8 slots in all. Those of threads that are gone are found, though nobody gave them back.
static void test_slots(void)
{
	pthread_barrier_t barrier;
	pthread_t threads[10];

	CHECK_INT(stall_ring_header(own_ring())->slot_count, 8);
	pthread_barrier_init(&barrier, NULL, 11);
	for (int round = 0; round < 3; round++) {
		uint64_t before = lost(STALL_LOST_SLOTS_FULL);
		for (int i = 0; i < 10; i++)
			recording_create(&threads[i], NULL, wait_once, &barrier);
		pthread_barrier_wait(&barrier);
		CHECK_INT(slots_in_use(), 8);
		CHECK_INT(lost(STALL_LOST_SLOTS_FULL), before + 3); // this thread has one
		pthread_barrier_wait(&barrier);
		for (int i = 0; i < 10; i++)
			join_uncancelled(threads[i]);
	}
}

// A table that is full counts by kind alone, and what a reader retired is used again.
static void test_stats(void)
{
	uint32_t stat_count = stall_ring_header(own_ring())->stat_count;
	uint64_t full = lost(STALL_LOST_KEYS_FULL);
	size_t count;
	volatile struct stall_wait_stat *stats = stall_ring_stats(own_ring(), &count);

	CHECK_INT(count, stat_count); // those of the kinds lie behind
	for (uint64_t i = 1; i <= stat_count * 2; i++) {
		struct recorder_wait wait = recording_lock((void *)(i << 12));
		recording_wait(&wait, false);
	}
	uint64_t in_table = 0, in_kind = 0;
	for (int bucket = 0; bucket < STALL_WAIT_BUCKETS; bucket++) {
		in_kind += stats[stat_count + STALL_WAIT_FUTEX].bucket[bucket];
		for (size_t i = 0; i < stat_count; i++)
			if (stats[i].key.id && stats[i].key.id <= (uint64_t)stat_count * 2 << 12)
				in_table += stats[i].bucket[bucket];
	}
	CHECK_INT(in_kind, lost(STALL_LOST_KEYS_FULL) - full);
	CHECK_INT(in_table + in_kind, stat_count * 2);
	CHECK(in_kind >= stat_count);
	struct recorder_wait again = recording_lock((void *)(1ULL << 12));
	struct stall_wait_stat first = stat_of(again.object, STALL_WAIT_FUTEX);
	for (size_t i = 0; i < stat_count; i++) // what a reader does
		if (stats[i].tag == first.tag)
			stats[i].tag = STALL_TAG_RETIRED;
	full = lost(STALL_LOST_KEYS_FULL);
	recording_wait(&again, false);
	CHECK_INT(lost(STALL_LOST_KEYS_FULL), full + 1);
	for (size_t i = 0; i < stat_count; i++) {
		if (stats[i].tag == STALL_TAG_RETIRED) {
			memset((void *)&stats[i].key, 0,
			       sizeof(*stats) - offsetof(struct stall_wait_stat, key));
			__atomic_store_n(&stats[i].tag, 0, __ATOMIC_SEQ_CST);
		}
	}
	recording_wait(&again, false);
	CHECK_INT(lost(STALL_LOST_KEYS_FULL), full + 1);
	CHECK_INT(stat_of(again.object, STALL_WAIT_FUTEX).role, STALL_ROLE_MUTEX);
}

// The oldest are overwritten, and counted by who reads; more than a thousand a second are refused.
static void test_wrap(void)
{
	uint32_t cells = stall_ring_header(own_ring())->cell_count;
	uint64_t missed = 0, start = now_ns(), rate = lost(STALL_LOST_RATE), records = 0;

	set_threshold(0);
	recording_wait_once(); // a cursor of 0 would be the oldest that there is
	uint64_t from = stall_ring_live(own_ring())->head;
	while (stall_ring_live(own_ring())->head - from < cells + 10)
		recording_wait_once();
	for (int i = 0; i < 2000; i++)
		recording_wait_once();
	uint64_t made = stall_ring_live(own_ring())->head - from;
	uint64_t ms = (now_ns() - start) / MS;
	CHECK(made <= ms + 127);
	CHECK(lost(STALL_LOST_RATE) > rate);
	set_threshold(NEVER);
	cursor = from;
	while (stall_ring_next_record(own_ring(), &cursor, &missed, &last, last_stack, ROOM))
		records++;
	CHECK_INT(records, cells);
	CHECK_INT(missed, made - cells);
}

/* A thousand threads. */

#define MANY 1000
#define DEPTH 20000 // of each stack

static pthread_barrier_t all;

__attribute__((noinline)) static void wait_for_all(uint64_t *object)
{
	struct recorder_wait wait = cond_wait(object);
	struct recorder_thread *thread = recorder_enter();
	struct recorder_place place;

	hook_here(&place);
	recorder_begin(thread, &wait, &place, true);
	pthread_barrier_wait(&all);
	pthread_barrier_wait(&all);
	recorder_end(thread, 0, 0);
	recorder_leave(thread);
}

static void *wait_deep(void *arg)
{
	volatile char depth[DEPTH];
	uint64_t object[8] = {};

	depth[0] = depth[DEPTH - 1] = 1;
	wait_for_all(object + 2);
	recorder_thread_ends();
	return depth[0] ? arg : NULL;
}

static void check_memory(void)
{
	static uint8_t stack[ROOM];
	struct stall_ring_stack_copy copy;
	struct stall_wait_slot slot;
	size_t count, stacks = 0, least = SIZE_MAX, most = 0;
	struct stat st;

	stall_ring_slots(own_ring(), &count);
	for (size_t i = 0; i < count; i++) {
		if (!stall_ring_read_slot(own_ring(), i, &slot) || !(slot.seq & 1) ||
		    !stall_ring_read_stack(own_ring(), i, slot.seq, &copy, stack, ROOM))
			continue;
		stacks++;
		least = copy.size < least ? copy.size : least;
		most = copy.size > most ? copy.size : most;
	}
	CHECK_INT(stat(stall_ring_path(own_ring()), &st), 0);
	CHECK_INT(stacks, MANY);
	CHECK(st.st_blocks * 512 <= 24000000);
	fprintf(stderr, "%zu threads: %lld bytes of the ring are in memory, stacks of %zu to %zu\n",
		stacks, (long long)st.st_blocks * 512, least, most);
}

// All have a stack, and all of them together have their place.
static void test_memory(void)
{
	static pthread_t threads[MANY];
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 256 << 10);
	pthread_barrier_init(&all, NULL, MANY + 1);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < MANY; i++)
			recording_create(&threads[i], &attr, wait_deep, NULL);
		pthread_barrier_wait(&all);
		check_memory();
		pthread_barrier_wait(&all);
		for (int i = 0; i < MANY; i++)
			pthread_join(threads[i], NULL);
	}
}

int main(int argc, char **argv)
{
	static const struct scene scenes[] = {
		{"slots", test_slots, "STALLSCOPE_THREADS=8"},
		{"stats", test_stats, NULL},
		{"wrap", test_wrap, NULL},
		{"memory", test_memory, NULL},
	};

	return run_scenes(scenes, sizeof(scenes) / sizeof(scenes[0]), argc, argv);
}
