// SPDX-License-Identifier: Apache-2.0
// The input is a ring: its header, slots, stacks, records and maps.
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "inputs.h"
#include "lock/lock_layout.h"
#include "rings/ring_file.h"
#include "rings/ring_releases.h"
#include "rings/ring_threads.h"
#include "rings/ring_words.h"

static void read_threads(const struct stall_ring_threads *threads,
			 const struct stall_ring_releases *releases)
{
	struct stall_snapshot snapshot = {};
	struct stall_error *err;

	for (size_t i = 0; i < threads->count; i++) {
		struct stall_thread thread = {};

		must(i == 0 || threads->threads[i - 1].slot.tid < threads->threads[i].slot.tid);
		stall_ring_thread_fill(&threads->threads[i], threads->newest_ns, &thread);
		must(thread.waited_ns <= STALL_RING_MAX_TIME);
		// The copy is there to its last byte.
		for (size_t j = 0; j < thread.stack_size; j++)
			((volatile uint8_t *)thread.stack)[j];
	}
	err = stall_ring_words_add(&snapshot, 0, threads, releases);
	must(!err);
	for (size_t i = 0; i < snapshot.futex_count; i++) {
		for (int kind = STALL_OBJECT_NONE; kind <= STALL_OBJECT_COND; kind++)
			stall_lock_decode_object(kind, snapshot.futexes[i].address,
						 &snapshot.futexes[i]);
	}
	err = stall_ring_releases_add(&snapshot, 0, releases, releases->newest_ns);
	must(!err && snapshot.release_count <= STALL_RELEASES);
	for (size_t i = 0; i < snapshot.release_count; i++)
		must(snapshot.releases[i].ago_ns <= STALL_RELEASE_AGE_NS);
	free(snapshot.futexes);
	free(snapshot.threads);
	free(snapshot.releases);
}

static void read_maps(const struct stall_ring *ring)
{
	struct stall_maps *maps;
	uint64_t read_ns;
	bool truncated;
	char *text;
	struct stall_error *err = stall_ring_read_maps(ring, &text, &read_ns, &truncated);

	must(!err);
	const struct stall_maps_text source = {.text = text, .sysroot = -1};
	err = stall_maps_create_text(&source, NULL, NULL, &maps);
	must(!err);
	for (size_t i = 1; i < maps->mapping_count; i++)
		must(maps->mappings[i - 1].end <= maps->mappings[i].start);
	stall_maps_destroy(maps);
	free(text);
}

static void read_all(struct stall_ring *ring, struct stall_arena *arena)
{
	struct stall_ring_threads threads;
	struct stall_ring_releases releases;
	struct stall_ring_name name;
	size_t count;
	volatile struct stall_wait_stat *stats = stall_ring_stats(ring, &count);
	struct stall_error *err = stall_ring_threads_init(&threads, ring, arena, 4096);

	must(!err);
	err = stall_ring_releases_init(&releases, ring, arena, 4096);
	must(!err);
	read_threads(&threads, &releases);
	read_maps(ring);
	for (size_t i = 0; i < count; i++) {
		if (stall_ring_read_name(ring, i, stats[i].tag, &name))
			must(strlen(name.path) < sizeof(name.path));
	}
	stall_ring_threads_deinit(&threads);
	stall_ring_releases_deinit(&releases);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct stall_arena arena;
	struct stall_ring *ring;
	int fd = file_of(data, size);

	if (!arena.base)
		must(!stall_arena_init(&arena, 64 << 20));
	stall_arena_reset(&arena, 1 << 20);
	int again = dup(fd);
	struct stall_error *err = stall_ring_open_fd(fd, "ring", &ring);
	if (err) {
		stall_error_destroy(err);
	} else {
		read_all(ring, &arena);
		// And cut in the middle, while it is mapped.
		must(ftruncate(again, (off_t)(size / 2)) == 0);
		read_all(ring, &arena);
		stall_ring_close(ring);
	}
	close(again);
	return 0;
}
