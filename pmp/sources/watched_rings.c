// SPDX-License-Identifier: Apache-2.0
#include "sources/watched_rings.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "rings/ring_find.h"

#define MAX_SLOTS (1 << 20) // of all rings

struct stall_watched_ring *stall_watched_ring_find(const struct stall_watched_rings *source,
						   pid_t pid)
{
	for (size_t i = 0; i < source->count; i++)
		if (source->rings[i].pid == pid)
			return &source->rings[i];
	return NULL;
}

struct stall_watched_ring *stall_watched_ring_of_slot(const struct stall_watched_rings *source,
						      size_t slot)
{
	for (size_t i = 0; i < source->count; i++) {
		struct stall_watched_ring *ringed = &source->rings[i];
		size_t first = ringed->scan.first;
		if (slot >= first && slot - first < stall_ring_header(ringed->ring)->slot_count)
			return ringed;
	}
	return NULL;
}

bool stall_watched_ring_set_threshold(struct stall_watched_ring *ringed, enum stall_wait_kind kind,
				      uint64_t ns)
{
	volatile __u64 *word = &stall_ring_live(ringed->ring)->threshold_ns[kind];

	if (*word == ns)
		return true;
	if (!stall_ring_is_writable(ringed->ring))
		return false;
	if (!(ringed->set & 1u << kind))
		ringed->old_ns[kind] = *word;
	ringed->set |= 1u << kind;
	ringed->set_ns[kind] = ns;
	*word = ns;
	ringed->scan.next_ns = 0;
	return true;
}

// Unless another process has set something since.
static void restore_thresholds(struct stall_watched_ring *ringed)
{
	for (int i = 0; i < STALL_WAIT_KINDS; i++) {
		volatile __u64 *word = &stall_ring_live(ringed->ring)->threshold_ns[i];
		if ((ringed->set >> i & 1) && *word == ringed->set_ns[i])
			*word = ringed->old_ns[i];
	}
}

static void apply_thresholds(const struct stall_watched_rings *source,
			     struct stall_watched_ring *ringed)
{
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		if (source->options.asked >> i & 1)
			stall_watched_ring_set_threshold(ringed, i,
							 source->options.threshold_ns[i]);
}

void stall_watched_ring_add_lost(const struct stall_watched_ring *ringed,
				 uint64_t lost[STALL_LOST_CAUSES])
{
	for (int i = 0; i < STALL_LOST_CAUSES; i++)
		lost[i] += stall_ring_live(ringed->ring)->lost[i] - ringed->lost_before[i];
	lost[STALL_LOST_RING_FULL] += ringed->overwritten;
}

static void ringed_deinit(struct stall_watched_ring *ringed)
{
	restore_thresholds(ringed);
	stall_ring_scan_deinit(&ringed->scan);
	stall_ring_counts_destroy(ringed->counts);
	stall_ring_close(ringed->ring);
}

void stall_watched_ring_drop(struct stall_watched_rings *source, struct stall_watched_ring *ringed)
{
	size_t index = ringed - source->rings;

	if (ringed->added)
		stall_watched_ring_add_lost(ringed, source->lost);
	ringed_deinit(ringed);
	memmove(ringed, ringed + 1, (--source->count - index) * sizeof(*ringed));
}

// Finds room for this number of slots: *ret_index in the list, and their first number.
static bool find_room(const struct stall_watched_rings *source, size_t slots, size_t *ret_index,
		      size_t *ret_first)
{
	size_t first = 0, i = 0;

	for (; i < source->count; i++) {
		const struct stall_watched_ring *ringed = &source->rings[i];
		if (ringed->scan.first - first >= slots)
			break;
		first = ringed->scan.first + stall_ring_header(ringed->ring)->slot_count;
	}
	*ret_index = i;
	*ret_first = first;
	return slots <= MAX_SLOTS - first;
}

// A folder changes when a ring is made in it.
static struct timespec folder_changed(const struct stall_ring *ring)
{
	_cleanup_free_ char *folder = strdup(stall_ring_path(ring));
	char *slash = folder ? strrchr(folder, '/') : NULL;
	struct stat status = {};

	if (slash) {
		*slash = '\0';
		stat(*folder ? folder : "/", &status);
	}
	return status.st_mtim;
}

struct stall_error *stall_watched_ring_open(struct stall_watched_rings *source, pid_t pid,
					    struct stall_watched_ring **ret)
{
	_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
	struct stall_watched_ring *grown;
	size_t index, first;
	struct stall_error *err = stall_ring_open_process(pid, source->options.ring, true, &ring);

	if (err)
		return err;
	if (!find_room(source, stall_ring_header(ring)->slot_count, &index, &first))
		return stall_error_create(STALL_ERROR_LIMIT,
					  "the rings of these processes have more than %d slots "
					  "for threads: watch fewer of them at once",
					  MAX_SLOTS);
	grown = reallocarray(source->rings, source->count + 1, sizeof(*grown));
	if (!grown)
		return &stall_enomem;
	source->rings = grown;
	memmove(grown + index + 1, grown + index, (source->count - index) * sizeof(*grown));
	source->count++;
	grown[index] = (struct stall_watched_ring){
		.pid = pid,
		.folder_changed = folder_changed(ring),
		.scan = {.first = first},
	};
	grown[index].ring = no_cleanup_ptr(ring);
	*ret = &grown[index];
	return NULL;
}

struct stall_error *stall_watched_ring_begin(struct stall_watched_rings *source,
					     struct stall_watched_ring *ringed)
{
	const struct stall_ring *ring = ringed->ring;
	size_t room = stall_ring_max_record_stack(ring);
	uint8_t *stack = room > source->stack_room ? realloc(source->stack, room) : source->stack;

	if (room && !stack)
		return &stall_enomem;
	source->stack = stack;
	if (room > source->stack_room)
		source->stack_room = room;
	// Only records from now on.
	ringed->cursor = stall_ring_live(ring)->head;
	for (int i = 0; i < STALL_LOST_CAUSES; i++)
		ringed->lost_before[i] = stall_ring_live(ring)->lost[i];
	struct stall_error *err = stall_ring_counts_create(ringed->ring, ringed->pid,
							   &source->ghosts, &ringed->counts);
	if (err)
		return err;
	ringed->scan = (struct stall_ring_scan){
		.ring = ringed->ring,
		.counts = ringed->counts,
		.pid = ringed->pid,
		.kinds = source->options.kinds,
		.first = ringed->scan.first,
	};
	err = stall_ring_scan_init(&ringed->scan);
	if (err)
		return err;
	apply_thresholds(source, ringed);
	ringed->added = true;
	return NULL;
}

// The ring of the program that it executes now.
struct stall_error *stall_watched_ring_replace(struct stall_watched_rings *source,
					       struct stall_watched_ring **ringed)
{
	pid_t pid = (*ringed)->pid;

	stall_watched_ring_drop(source, *ringed);
	struct stall_error *err = stall_watched_ring_open(source, pid, ringed);
	return err ? err : stall_watched_ring_begin(source, *ringed);
}

// A program that the process executes has a ring of its own.
void stall_watched_ring_check(const struct stall_watched_rings *source,
			      struct stall_watched_ring *ringed)
{
	const struct timespec changed = folder_changed(ringed->ring);

	ringed->left |= stall_ring_is_left(ringed->ring, ringed->pid);
	_cleanup_(stall_ring_closep) struct stall_ring *latest = NULL;

	if (changed.tv_sec == ringed->folder_changed.tv_sec &&
	    changed.tv_nsec == ringed->folder_changed.tv_nsec)
		return;
	ringed->folder_changed = changed;
	_cleanup_error_ struct stall_error *err =
		stall_ring_open_process(ringed->pid, source->options.ring, false, &latest);
	ringed->replaced = !err && stall_ring_header(latest)->created_ns !=
					   stall_ring_header(ringed->ring)->created_ns;
}
