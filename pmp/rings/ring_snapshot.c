// SPDX-License-Identifier: Apache-2.0
#include "rings/ring_snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

struct stall_error *stall_ring_content_init(struct stall_ring_content *content,
					    struct stall_ring *ring, struct stall_arena *arena,
					    size_t max_stack)
{
	*content = (struct stall_ring_content){};
	// Threads first: releases of what they wait for come later.
	struct stall_error *err =
		stall_ring_threads_init(&content->threads, ring, arena, max_stack);
	if (!err)
		err = stall_ring_releases_init(&content->releases, ring, arena, max_stack);
	if (!err && stall_ring_was_cut(ring))
		err = stall_error_create(STALL_ERROR_FORMAT,
					 "%s: the ring was cut while it was read",
					 stall_ring_path(ring));
	if (err)
		stall_ring_content_deinit(content);
	return err;
}

void stall_ring_content_deinit(struct stall_ring_content *content)
{
	stall_ring_threads_deinit(&content->threads);
	stall_ring_releases_deinit(&content->releases);
}

static size_t read_nothing(void *arg, uint32_t process, uint64_t address, void *buf, size_t size)
{
	return 0;
}

void stall_ring_snapshot_init(struct stall_snapshot *snapshot)
{
	snapshot->memory = (struct stall_memory){.read = read_nothing};
}

struct stall_error *stall_ring_name_process(const struct stall_ring *ring,
					    struct stall_process *process)
{
	static const char suffix[] = " (deleted)";
	const struct stall_ring_header *header = stall_ring_header(ring);
	size_t length = strlen(header->exe);

	if (!process->comm[0])
		memcpy(process->comm, header->comm, sizeof(process->comm));
	if (process->exe || !length)
		return NULL;
	if (length > strlen(suffix) && !strcmp(header->exe + length - strlen(suffix), suffix)) {
		length -= strlen(suffix);
		process->exe_deleted = true;
	}
	process->exe = strndup(header->exe, length);
	return process->exe ? NULL : &stall_enomem;
}

struct stall_error *stall_ring_maps_create(const struct stall_ring *ring,
					   const struct stall_target *target, int sysroot,
					   struct stall_maps *previous,
					   struct stall_open_files *files, struct stall_maps **ret)
{
	_cleanup_free_ char *text = NULL;
	uint64_t read_ns;
	bool truncated;
	struct stall_error *err = stall_ring_read_maps(ring, &text, &read_ns, &truncated);

	if (err)
		return err;
	const struct stall_maps_text maps = {
		.text = text,
		.target = target,
		.sysroot = sysroot,
	};
	err = stall_maps_create_text(&maps, previous, files, ret);
	if (!err)
		(*ret)->truncated = truncated;
	return err;
}

static struct stall_error *note_lost(struct stall_snapshot *snapshot, const struct stall_ring *ring,
				     const struct stall_ring_content *content)
{
	uint64_t slots = stall_ring_lost(ring, STALL_LOST_SLOTS_FULL);
	struct stall_error *err = NULL;

	if (slots)
		err = stall_snapshot_note(
			snapshot, "inproc-slots",
			"%llu times a thread found no slot in the ring of %u: its "
			"waits are not seen; set STALLSCOPE_THREADS higher",
			(unsigned long long)slots, stall_ring_header(ring)->slot_count);
	if (!err && content->threads.full)
		err = stall_snapshot_note(
			snapshot, "arena-full",
			"no room for the stacks of %zu threads: lower --max-stack",
			content->threads.full);
	return err;
}

struct stall_error *stall_ring_note(struct stall_snapshot *snapshot, uint32_t process,
				    const struct stall_ring *ring,
				    const struct stall_ring_content *content)
{
	int failed = (int)stall_ring_live(ring)->maps_failed;
	struct stall_error *err = NULL;

	if (!stall_ring_live(ring)->enabled)
		err = stall_snapshot_note(snapshot, "inproc-off",
					  "the in-process library of process %d is switched off: "
					  "threads that wait are not seen; stallscope inproc on",
					  stall_ring_header(ring)->pid);
	if (!err && failed)
		err = stall_snapshot_note(snapshot, "inproc-maps",
					  "process %d could not read its own list of files (%s): "
					  "frames may stay without names",
					  stall_ring_header(ring)->pid,
					  strerrordesc_np(failed) ?: "an unknown error");
	if (!err && snapshot->processes[process].maps->truncated)
		err = stall_snapshot_note(snapshot, "inproc-maps",
					  "process %d has more files mapped than its ring has room "
					  "for: frames may stay without names",
					  stall_ring_header(ring)->pid);
	return err ? err : note_lost(snapshot, ring, content);
}
