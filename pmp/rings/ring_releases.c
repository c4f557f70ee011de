// SPDX-License-Identifier: Apache-2.0
#include "rings/ring_releases.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "rings/ring_threads.h"

// The records as they come; of each object only the latest are kept, since a contended lock is
// released a thousand times a second.
struct collector {
	struct stall_ring_releases *ret;
	struct stall_arena *arena;
	size_t capacity;
};

static int compare_releases(const void *a, const void *b)
{
	const struct stall_ring_release *x = a, *y = b;

	return (x->record.record.now_ns < y->record.record.now_ns) -
	       (x->record.record.now_ns > y->record.record.now_ns);
}

static struct stall_ring_release *find_place(struct collector *collector, uint64_t object)
{
	struct stall_ring_releases *ret = collector->ret;
	struct stall_ring_release *oldest = NULL, *oldest_here = NULL;
	size_t here = 0;

	for (size_t i = 0; i < ret->count; i++) {
		struct stall_ring_release *release = &ret->releases[i];

		if (!oldest || compare_releases(release, oldest) > 0)
			oldest = release;
		if (release->record.record.key.id != object)
			continue;
		here++;
		if (!oldest_here || compare_releases(release, oldest_here) > 0)
			oldest_here = release;
	}
	if (here >= STALL_RELEASES_LOCK)
		return oldest_here;
	return ret->count == STALL_RELEASES ? oldest : &ret->releases[ret->count];
}

static void keep(struct collector *collector, const struct stall_ring_record_copy *record,
		 const uint8_t *stack)
{
	struct stall_ring_releases *ret = collector->ret;
	struct stall_ring_release *place = find_place(collector, record->record.key.id);
	bool is_new = place == &ret->releases[ret->count];

	if (!is_new && place->record.record.now_ns > record->record.now_ns)
		return;
	// A place that is reused keeps its room for a stack.
	if (is_new)
		place->stack = stall_arena_alloc(collector->arena, collector->capacity);
	place->record = *record;
	if (place->stack)
		memcpy(place->stack, stack, record->record.stack_size);
	else
		place->record.record.stack_size = 0;
	ret->count += is_new;
}

struct stall_error *stall_ring_releases_init(struct stall_ring_releases *releases,
					     struct stall_ring *ring, struct stall_arena *arena,
					     size_t max_stack)
{
	size_t room = stall_ring_max_record_stack(ring);
	struct stall_ring_record_copy record;
	uint64_t cursor = 0, lost = 0;

	if (room > max_stack)
		room = max_stack;
	_cleanup_free_ uint8_t *stack = malloc(room + 1);
	*releases = (struct stall_ring_releases){
		.releases = calloc(STALL_RELEASES + 1, sizeof(*releases->releases)),
	};
	struct collector collector = {releases, arena, room};
	if (!stack || !releases->releases) {
		stall_ring_releases_deinit(releases);
		return &stall_enomem;
	}
	const uint64_t head = __atomic_load_n(&stall_ring_live(ring)->head, __ATOMIC_ACQUIRE);
	// However `head` changes meanwhile.
	size_t left = 2 * (size_t)stall_ring_header(ring)->cell_count;
	while (cursor < head && left-- > 0) {
		uint64_t before = cursor;

		if (!stall_ring_next_record(ring, &cursor, &lost, &record, stack, room)) {
			// Does not wait for a record that is being written.
			cursor = cursor > before ? cursor : before + 1;
			continue;
		}
		if (record.record.now_ns > STALL_RING_MAX_TIME)
			continue;
		if (record.record.now_ns > releases->newest_ns)
			releases->newest_ns = record.record.now_ns;
		if (record.record.type == STALL_RECORD_WAKER && record.record.tid > 0)
			keep(&collector, &record, stack);
	}
	qsort(releases->releases, releases->count, sizeof(*releases->releases), compare_releases);
	return NULL;
}

void stall_ring_releases_deinit(struct stall_ring_releases *releases)
{
	free(releases->releases);
	*releases = (struct stall_ring_releases){};
}

uint64_t stall_ring_released_ns(const struct stall_ring_releases *releases, uint64_t object)
{
	for (size_t i = 0; i < releases->count; i++) {
		if (releases->releases[i].record.record.key.id == object)
			return releases->releases[i].record.record.now_ns;
	}
	return 0;
}

static pid_t find_tid(const struct stall_snapshot *snapshot, uint32_t process, pid_t ns_tid)
{
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		const struct stall_thread *thread = &snapshot->threads[i];

		if (thread->process == process && thread->ns_tid == ns_tid)
			return thread->tid;
	}
	return ns_tid; // it has ended
}

static void fill_thread(const struct stall_snapshot *snapshot, uint32_t process,
			const struct stall_ring_release *release, struct stall_thread *ret)
{
	const struct stall_wait_record *record = &release->record.record;

	*ret = (struct stall_thread){
		.tid = find_tid(snapshot, process, record->tid),
		.ns_tid = record->tid,
		.process = process,
		.state = '?',
		.label = release->record.whole && record->stack_size >= release->record.whole
				 ? STALL_VERIFIED
				 : STALL_TRUNCATED,
		.stack_address = record->stack_address,
		.stack_size = record->stack_size,
		.stack = release->stack,
	};
	memcpy(ret->comm, record->comm, sizeof(ret->comm) - 1);
	stall_ring_regs_fill(record->regs, &ret->regs);
}

static bool is_recent(const struct stall_wait_record *record, uint64_t now_ns)
{
	return record->now_ns >= now_ns || now_ns - record->now_ns <= STALL_RELEASE_AGE_NS;
}

struct stall_error *stall_ring_releases_add(struct stall_snapshot *snapshot, uint32_t process,
					    const struct stall_ring_releases *releases,
					    uint64_t now_ns)
{
	size_t count = snapshot->release_count + releases->count;

	if (!stall_array_resize(&snapshot->threads, snapshot->thread_count + count) ||
	    !stall_array_resize(&snapshot->releases, count))
		return &stall_enomem;
	for (size_t i = 0; i < releases->count; i++) {
		const struct stall_wait_record *record = &releases->releases[i].record.record;

		if (!is_recent(record, now_ns) || snapshot->release_count >= STALL_RELEASES)
			continue;
		fill_thread(snapshot, process, &releases->releases[i],
			    &snapshot->threads[snapshot->thread_count + snapshot->release_count]);
		snapshot->releases[snapshot->release_count++] = (struct stall_release){
			.object = record->key.id,
			.ago_ns = now_ns > record->now_ns ? now_ns - record->now_ns : 0,
			.waited_ns = record->value < INT64_MAX ? record->value : 0,
			.count = 1,
		};
	}
	return NULL;
}
