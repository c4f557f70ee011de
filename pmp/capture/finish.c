// SPDX-License-Identifier: Apache-2.0
#include "capture/finish.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/child_process.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "capture/capture.h"
#include "capture/capture_stacks.h"
#include "capture/library_frames.h"
#include "lock/lock.h"
#include "proc/read_child.h"
#include "sandbox/sandbox.h"
#include "snapshot/snapshot.h"

static size_t list_threads(const struct stall_snapshot *snapshot,
			   const struct stall_unwound *unwound, uint32_t *ret)
{
	size_t count = 0;

	for (size_t i = 0; i < snapshot->thread_count; i++)
		if (unwound->stacks[i].live_reads && snapshot->threads[i].label != STALL_RACED)
			ret[count++] = (uint32_t)i;
	return count;
}

// Some stacks continue outside of their copies (a signal's own stack, a coroutine's, more than
// --max-stack). The unwinder reads that memory later than the copy was made. Labels those threads
// raced that have run since. Reads the target only if there are any.
static struct stall_error *check_live_reads(struct stall_snapshot *snapshot,
					    const struct stall_unwound *unwound,
					    const struct stall_backend *backend, void *state)
{
	_cleanup_free_ uint32_t *threads = calloc(snapshot->thread_count + 1, sizeof(*threads));
	_cleanup_free_ bool *ran = calloc(snapshot->thread_count + 1, sizeof(*ran));

	if (!threads || !ran)
		return &stall_enomem;
	size_t count = list_threads(snapshot, unwound, threads);
	// A file's memory does not change.
	if (!count || snapshot->memory.read)
		return NULL;
	struct stall_error *err = backend->find_runs(state, snapshot, threads, count, ran);
	if (err)
		return err;
	for (size_t i = 0; i < count; i++) {
		struct stall_thread *thread = &snapshot->threads[threads[i]];

		// A sample is of a single moment, so later reads are always of another one.
		if (!ran[i] && thread->label != STALL_RUNNING)
			continue;
		thread->label = STALL_RACED;
		thread->label_reason = STALL_REASON_LIVE_READS;
	}
	return NULL;
}

#define MAX_STRING 256

struct strings {
	struct stall_capture_string *strings;
	size_t count;
};

static void strings_deinit(struct strings *strings)
{
	for (size_t i = 0; i < strings->count; i++)
		free(strings->strings[i].text);
	free(strings->strings);
}

static size_t printable_length(const char *text, size_t size)
{
	size_t length = 0;

	while (length < size && isascii(text[length]) && isprint(text[length]))
		length++;
	return length;
}

// The text at an array of characters, or at a pointer to one. NULL where there is none.
static char *read_text(const struct stall_snapshot *snapshot, uint32_t process, uint64_t address,
		       uint64_t size)
{
	char text[MAX_STRING];
	size_t wanted = size && size < sizeof(text) ? size : sizeof(text);
	uint64_t pointer;

	wanted = stall_snapshot_read(snapshot, process, address, text, wanted);
	size_t length = printable_length(text, wanted);
	if (!length && size == sizeof(pointer) && wanted == sizeof(pointer)) {
		memcpy(&pointer, text, sizeof(pointer));
		length = printable_length(text, stall_snapshot_read(snapshot, process, pointer,
								    text, sizeof(text)));
	}
	return length ? strndup(text, length) : NULL;
}

static struct stall_error *read_string(const struct stall_finish *finish, uint32_t process,
				       const char *name, char **ret)
{
	uint64_t address, size;

	struct stall_error *err = stall_worker_find_data(finish->worker, finish->snapshot, process,
							 name, &address, &size);
	if (err)
		return err;
	*ret = address ? read_text(finish->snapshot, process, address, size) : NULL;
	return NULL;
}

static struct stall_error *read_strings(const struct stall_finish *finish, struct strings *ret)
{
	size_t processes = finish->snapshot->process_count;

	ret->strings = calloc(processes * finish->string_count + 1, sizeof(*ret->strings));
	if (!ret->strings)
		return &stall_enomem;
	for (size_t i = 0; i < processes; i++) {
		for (size_t j = 0; j < finish->string_count; j++) {
			char *text = NULL;
			struct stall_error *err = read_string(finish, i, finish->strings[j], &text);
			if (err)
				return err;
			if (text)
				ret->strings[ret->count++] =
					(struct stall_capture_string){i, finish->strings[j], text};
		}
	}
	return NULL;
}

// Takes the error over: the capture reports it.
static struct stall_error *note_error(struct stall_snapshot *snapshot, const char *code,
				      struct stall_error *err)
{
	if (!err)
		return NULL;
	if (err->code == STALL_ERROR_NO_MEMORY)
		return err;
	struct stall_error *failed = stall_snapshot_note(snapshot, code, "%s", err->message);
	stall_error_destroy(err);
	return failed;
}

static bool has_note(const struct stall_snapshot *snapshot, const char *code)
{
	for (size_t i = 0; i < snapshot->note_count; i++)
		if (!strcmp(snapshot->notes[i].code, code))
			return true;
	return false;
}

static struct stall_error *note_modules(struct stall_snapshot *snapshot,
					const struct stall_unwound *unwound)
{
	for (size_t i = 0; i < unwound->module_count; i++) {
		const struct stall_module_info *info = &unwound->modules[i];
		if (!info->error || info->process >= snapshot->process_count)
			continue;
		const struct stall_maps *maps = snapshot->processes[info->process].maps;
		if (!maps || info->module >= maps->module_count)
			continue;
		// A file that could not be opened has its note already.
		if (maps->modules[info->module].error)
			continue;
		struct stall_error *err =
			stall_snapshot_note(snapshot, "module-unreadable",
					    "%s: %s; its frames have no names",
					    maps->modules[info->module].path, info->error);
		if (err)
			return err;
	}
	return NULL;
}

// All processes of a server have the same files.
static bool is_first_pack_error(const struct stall_unwound *unwound, size_t index)
{
	const char *error = unwound->modules[index].pack_error;

	for (size_t i = 0; i < index; i++) {
		const char *earlier = unwound->modules[i].pack_error;

		if (earlier && strcmp(earlier, error) == 0)
			return false;
	}
	return true;
}

// A pack that is there and does not help.
static struct stall_error *note_packs(struct stall_snapshot *snapshot,
				      const struct stall_unwound *unwound)
{
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < unwound->module_count; i++) {
		if (unwound->modules[i].pack_error && is_first_pack_error(unwound, i))
			err = stall_snapshot_note(snapshot, "pack-unusable", "%s",
						  unwound->modules[i].pack_error);
	}
	return err;
}

static struct stall_error *note_sandbox(struct stall_snapshot *snapshot,
					const struct stall_worker *worker)
{
	_cleanup_error_ struct stall_error *missing =
		stall_sandbox_check(stall_worker_missing_layers(worker));

	if (!missing || has_note(snapshot, "sandbox-incomplete"))
		return NULL;
	return stall_snapshot_note(snapshot, "sandbox-incomplete", "%s", missing->message);
}

static struct stall_error *note_children(struct stall_snapshot *snapshot)
{
	size_t left = stall_read_children_left() + stall_children_left();

	if (!left || has_note(snapshot, "children-left"))
		return NULL;
	return stall_snapshot_note(snapshot, "children-left",
				   "%zu of the probe's processes wait for a disk, or for a lock of "
				   "the process, and cannot be ended: they end when it answers",
				   left);
}

static struct stall_error *note_late(struct stall_snapshot *snapshot)
{
	for (size_t i = 0; i < snapshot->process_count; i++) {
		if (!stall_snapshot_is_late(snapshot, i))
			continue;
		struct stall_error *err = stall_snapshot_note(
			snapshot, "memory-locked",
			"process %d gave no access to its memory: a thread of it keeps its "
			"mmap_lock, or waits for it (mmap, munmap, mprotect, fork, a page fault on "
			"a disk that does not answer); user stacks and owners of locks are "
			"missing, what the kernel says of each thread is there",
			snapshot->processes[i].target.pid);
		if (err)
			return err;
	}
	return NULL;
}

static struct stall_error *note_truncated(struct stall_snapshot *snapshot)
{
	size_t count = 0;

	for (size_t i = 0; i < snapshot->thread_count; i++)
		count += snapshot->threads[i].label == STALL_TRUNCATED &&
			 !stall_snapshot_is_late(snapshot, snapshot->threads[i].process);
	if (!count || has_note(snapshot, "stacks-truncated"))
		return NULL;
	return stall_snapshot_note(
		snapshot, "stacks-truncated",
		"%zu stacks are deeper than was copied; give a larger --max-stack", count);
}

static struct stall_error *note_lost(struct stall_snapshot *snapshot)
{
	size_t count = 0;

	for (size_t i = 0; i < snapshot->process_count; i++)
		count += snapshot->processes[i].threads_lost;
	if (!count || has_note(snapshot, "threads-lost"))
		return NULL;
	return stall_snapshot_note(
		snapshot, "threads-lost",
		"%zu threads ended during the capture or are beyond --max-threads or --deadline",
		count);
}

static struct stall_error *note_missing(struct stall_snapshot *snapshot,
					const struct stall_unwound *unwound)
{
	struct stall_error *err = NULL;

	if (unwound->partial && !has_note(snapshot, "worker-died"))
		err = stall_snapshot_note(
			snapshot, "worker-died",
			"the unwinding child died or was late: some stacks are not unwound");
	if (!err)
		err = note_modules(snapshot, unwound);
	if (!err)
		err = note_packs(snapshot, unwound);
	if (!err)
		err = note_late(snapshot);
	if (!err)
		err = note_truncated(snapshot);
	if (!err)
		err = note_lost(snapshot);
	return err;
}

// The stacks of releases and samples come behind those of threads, and are treated alike.
static struct stall_error *unwind(const struct stall_finish *finish, struct stall_unwound *unwound,
				  struct stall_capture_stacks *stacks)
{
	struct stall_snapshot *snapshot = finish->snapshot;

	size_t captured = snapshot->thread_count;

	snapshot->thread_count += snapshot->release_count + snapshot->samples.count;
	struct stall_error *err = stall_worker_unwind(finish->worker, snapshot, unwound);
	if (!err)
		err = stall_library_frames_drop(snapshot, unwound);
	if (!err)
		err = stall_capture_stacks_init(stacks, snapshot, unwound);
	for (size_t i = captured + snapshot->release_count; !err && i < snapshot->thread_count; i++)
		if (unwound->stacks[i].live_reads)
			snapshot->threads[i].label = STALL_RACED;
	snapshot->thread_count = captured;
	stall_label_reasons_add(snapshot);
	if (!err && finish->backend)
		err = check_live_reads(snapshot, unwound, finish->backend, finish->backend_state);
	return err;
}

#define MODES 9

static struct stall_lock server_lock(const struct stall_snapshot *snapshot,
				     const struct stall_postgres_wait *wait)
{
	static const enum stall_lock_kind kinds[] = {
		[STALL_POSTGRES_TABLE] = STALL_LOCK_TABLE,
		[STALL_POSTGRES_ROW] = STALL_LOCK_ROW,
		[STALL_POSTGRES_OTHER] = STALL_LOCK_METADATA,
	};
	static const char *const modes[MODES] = {
		NULL,
		"AccessShareLock",
		"RowShareLock",
		"RowExclusiveLock",
		"ShareUpdateExclusiveLock",
		"ShareLock",
		"ShareRowExclusiveLock",
		"ExclusiveLock",
		"AccessExclusiveLock",
	};
	bool has_owner = wait->owner != STALL_POSTGRES_NO_OWNER;
	const struct stall_thread *thread =
		&snapshot->threads[has_owner ? wait->owner : wait->thread];

	return (struct stall_lock){
		.process = thread->process,
		.address = wait->lock,
		.kind = kinds[wait->object],
		.owner_tid = has_owner ? thread->tid : 0,
		.owner_raw = wait->owner_raw,
		.stable = true,
		.symbol = (char *)wait->name,
		.source = "memory",
		.mode = wait->mode < MODES ? modes[wait->mode] : NULL,
	};
}

static struct stall_error *add_server_locks(const struct stall_finish *finish,
					    struct stall_locks *locks)
{
	const struct stall_postgres_waits *waits = finish->server_waits;
	_cleanup_free_ struct stall_lock_of_server *found = NULL;

	if (!waits || !waits->count)
		return NULL;
	found = calloc(waits->count, sizeof(*found));
	if (!found)
		return &stall_enomem;
	for (size_t i = 0; i < waits->count; i++) {
		const struct stall_postgres_wait *wait = &waits->waits[i];

		found[i] = (struct stall_lock_of_server){
			.thread = wait->thread,
			.lock = server_lock(finish->snapshot, wait),
		};
		// One lock for all: waits for the same one follow one another.
		if (i && wait[-1].lock == wait->lock && wait->owner == STALL_POSTGRES_NO_OWNER)
			found[i].lock.process = found[i - 1].lock.process;
	}
	return stall_locks_add(locks, finish->snapshot, found, waits->count);
}

struct stall_error *stall_finish(const struct stall_finish *finish, struct stall_output *output,
				 bool *ret_partial)
{
	struct stall_snapshot *snapshot = finish->snapshot;
	_cleanup_(stall_unwound_deinit) struct stall_unwound unwound = {};
	_cleanup_(stall_locks_deinit) struct stall_locks locks = {};
	_cleanup_(stall_capture_stacks_deinit) struct stall_capture_stacks stacks = {};
	_cleanup_(strings_deinit) struct strings strings = {};
	struct stall_capture capture = {
		.snapshot = snapshot,
		.unwound = &unwound,
		.locks = &locks,
		.stacks = &stacks,
		.blocked = finish->blocked,
		.host = finish->host,
		.trigger = finish->trigger,
		.started_ns = finish->started_ns,
		.attach_ns = finish->attach_ns,
	};
	struct stall_error *err;

	uint64_t before = stall_clock_ns(CLOCK_MONOTONIC);
	err = unwind(finish, &unwound, &stacks);
	if (err)
		return err;
	if (finish->kernel_symbols && stacks.kernel_frame_count)
		err = note_error(snapshot, "kernel-symbols",
				 stall_kernel_symbols_find(finish->kernel_symbols,
							   stacks.kernel_frames,
							   stacks.kernel_frame_count));
	if (err)
		return err;
	uint64_t unwound_at = stall_clock_ns(CLOCK_MONOTONIC);
	capture.unwind_ns = unwound_at - before;

	err = stall_locks_init(&locks, snapshot, &unwound, snapshot->before ? finish->locks : NULL);
	if (err)
		return err;
	capture.locks_before = snapshot->before ? finish->locks : NULL;
	if (finish->memory)
		err = stall_memory_locks_apply(finish->memory, &locks, snapshot, &unwound);
	if (err)
		return err;
	err = note_error(snapshot, "lock-names",
			 stall_locks_name(&locks, finish->worker, snapshot));
	if (!err)
		err = add_server_locks(finish, &locks);
	// The first capture of a burst has them.
	if (!err && !snapshot->before)
		err = note_error(snapshot, "strings", read_strings(finish, &strings));
	if (!err)
		err = note_missing(snapshot, &unwound);
	// Of all but these two notes a part of the capture is missing.
	bool is_partial = snapshot->note_count > 0;
	if (!err)
		err = note_sandbox(snapshot, finish->worker);
	if (!err)
		err = note_children(snapshot);
	if (err)
		return err;
	capture.strings = strings.strings;
	capture.string_count = strings.count;
	capture.locks_ns = stall_clock_ns(CLOCK_MONOTONIC) - unwound_at + finish->memory_ns;

	err = stall_capture_write(&capture, output);
	if (err)
		return err;
	if (finish->locks) {
		stall_locks_deinit(finish->locks);
		*finish->locks = locks;
		locks = (struct stall_locks){};
	}
	*ret_partial = is_partial;
	return NULL;
}
