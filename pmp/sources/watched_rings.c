// SPDX-License-Identifier: Apache-2.0
#include "sources/watched_rings.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "proc/path_open.h"
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
	uint64_t old_ns = stall_ring_threshold(ringed->ring, kind);

	if (old_ns == ns)
		return true;
	if (!stall_ring_is_writable(ringed->ring))
		return false;
	if (!(ringed->set & 1u << kind))
		ringed->old_ns[kind] = old_ns;
	ringed->set |= 1u << kind;
	ringed->set_ns[kind] = ns;
	stall_ring_set_threshold(ringed->ring, kind, ns);
	ringed->scan.next_ns = 0;
	return true;
}

// Unless another process has set something since.
static void restore_thresholds(struct stall_watched_ring *ringed)
{
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		if ((ringed->set >> i & 1) &&
		    stall_ring_threshold(ringed->ring, i) == ringed->set_ns[i])
			stall_ring_set_threshold(ringed->ring, i, ringed->old_ns[i]);
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
		lost[i] += stall_ring_lost(ringed->ring, i) - ringed->lost_before[i];
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
static uint64_t folder_changed(const struct stall_ring *ring)
{
	_cleanup_free_ char *folder = strdup(stall_ring_path(ring));
	char *slash = folder ? strrchr(folder, '/') : NULL;
	struct stall_path_status status = {};

	if (slash) {
		*slash = '\0';
		const struct stall_path path = {.folder = AT_FDCWD, .name = *folder ? folder : "/"};
		stall_error_destroy(stall_path_status(&path, 0, &status));
	}
	return status.mtime_ns;
}

struct stall_error *stall_watched_ring_open(struct stall_watched_rings *source, pid_t pid,
					    struct stall_watched_ring **ret)
{
	_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
	size_t index, first;
	struct stall_error *err = stall_ring_open_process(pid, source->options.ring, true, &ring);

	if (err)
		return err;
	if (!find_room(source, stall_ring_header(ring)->slot_count, &index, &first))
		return stall_error_create(STALL_ERROR_LIMIT,
					  "the rings of these processes have more than %d slots "
					  "for threads: watch fewer of them at once",
					  MAX_SLOTS);
	if (!stall_array_resize(&source->rings, source->count + 1))
		return &stall_enomem;
	struct stall_watched_ring *added = &source->rings[index];
	memmove(added + 1, added, (source->count - index) * sizeof(*added));
	source->count++;
	*added = (struct stall_watched_ring){
		.pid = pid,
		.folder_changed = folder_changed(ring),
		.scan = {.first = first},
	};
	added->ring = no_cleanup_ptr(ring);
	*ret = added;
	return NULL;
}

struct stall_error *stall_watched_ring_begin(struct stall_watched_rings *source,
					     struct stall_watched_ring *ringed)
{
	const struct stall_ring *ring = ringed->ring;
	size_t room = stall_ring_max_record_stack(ring);

	if (room > source->stack_room) {
		if (!stall_array_resize(&source->stack, room))
			return &stall_enomem;
		source->stack_room = room;
	}
	// Only records from now on.
	ringed->cursor = stall_ring_live(ring)->head;
	for (int i = 0; i < STALL_LOST_CAUSES; i++)
		ringed->lost_before[i] = stall_ring_lost(ring, i);
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
	const uint64_t changed = folder_changed(ringed->ring);

	ringed->left |= stall_ring_is_left(ringed->ring, ringed->pid);
	_cleanup_(stall_ring_closep) struct stall_ring *latest = NULL;

	if (changed == ringed->folder_changed)
		return;
	ringed->folder_changed = changed;
	_cleanup_error_ struct stall_error *err =
		stall_ring_open_process(ringed->pid, source->options.ring, false, &latest);
	ringed->replaced = !err && stall_ring_header(latest)->created_ns !=
					   stall_ring_header(ringed->ring)->created_ns;
}
