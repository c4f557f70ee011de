// SPDX-License-Identifier: Apache-2.0
// A server that puts other keys into all stats of its ring, again and again.
#include "sources/ring_counts.h"

#include "own_ring.h"

#define ROUNDS 20

static void change_all(uint64_t round)
{
	size_t count;
	volatile struct stall_wait_stat *stats = stall_ring_stats(own_ring(), &count);

	for (size_t i = 0; i < count; i++) {
		stats[i].key.tgid = getpid();
		stats[i].key.id = 0x1000 * (round * count + i + 1);
		stats[i].tag = stats[i].key.id;
		stats[i].bucket[10] += 1;
		stats[i].used = 1;
	}
}

// What is remembered of freed stats has a limit, and no wait is missing in it.
static void test_changing_keys(void)
{
	struct stall_ring_ghosts ghosts = {};
	struct stall_ring_counts *counts = NULL;
	struct stall_wait_stat stat;
	uint64_t sum = 0;
	size_t size;

	stall_ring_stats(own_ring(), &size);
	CHECK(ROUNDS * size > 2 * STALL_MAX_RING_GHOSTS);
	CHECK_OK(stall_ring_counts_create(own_ring(), getpid(), &ghosts, &counts));
	for (uint64_t round = 0; round < ROUNDS; round++) {
		change_all(round);
		for (size_t i = 0; i < size; i++)
			stall_ring_counts_read(counts, i, &stat);
	}
	stall_ring_counts_destroy(counts);
	CHECK(ghosts.count <= STALL_MAX_RING_GHOSTS + STALL_WAIT_KINDS);
	CHECK_INT(ghosts.by_key.count, ghosts.count);
	while (ghosts.count)
		sum += stall_ring_ghosts_take(&ghosts, ghosts.count / 2).bucket[10];
	// The count of a place has grown by one when its key was replaced: the first is of no key
	// that was seen before.
	CHECK_INT(sum, ROUNDS * (ROUNDS + 1) / 2 * size);
	CHECK_INT(ghosts.by_key.count, 0);
	stall_ring_ghosts_deinit(&ghosts);
}

int main(int argc, char **argv)
{
	static const struct scene scenes[] = {{"changing_keys", test_changing_keys, NULL}};

	return run_scenes(scenes, sizeof(scenes) / sizeof(scenes[0]), argc, argv);
}
