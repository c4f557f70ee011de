// SPDX-License-Identifier: Apache-2.0
#include "command/memory_command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json_writer.h"
#include "base/messages.h"
#include "capture/backends.h"
#include "introspect/postgres.h"
#include "introspect/sessions.h"
#include "proc/read_child.h"
#include "snapshot/snapshot.h"

#define SCHEMA "stallscope.process-memory/1"
#define MAX_PIECES (256 * 1024)
#define MAX_BYTES (32 * 1024 * 1024) // of one answer
#define ARENA_SIZE ((size_t)1 << 30) // reserved, not used
#define LEAST_STACK 4096	     // stacks are not wanted
#define MAX_LAYOUT (64 * 1024)	     // characters
#define SESSIONS UINT64_MAX	     // in place of a count

struct piece {
	uint64_t address, size;
};

struct memory {
	struct stall_arena arena;
	struct stall_snapshot *snapshot;
	const struct stall_backend *backend;
	void *state;
};

static void memory_deinit(struct memory *memory)
{
	if (memory->backend && memory->state)
		memory->backend->close(memory->state);
	stall_snapshot_destroy(memory->snapshot);
	stall_read_child_forget(&memory->arena);
	if (memory->arena.base)
		stall_arena_deinit(&memory->arena);
}

static struct stall_error *take(struct memory *memory, const struct stall_capturer_options *options)
{
	struct stall_snapshot_options wanted = options->snapshot;
	_cleanup_free_ char *reason = NULL;
	struct stall_error *err;

	wanted.pids = options->pids;
	wanted.pid_count = options->pid_count;
	wanted.max_stack = LEAST_STACK;
	wanted.passes = 1;
	wanted.kernel_stacks = false;
	err = stall_backend_choose("auto", false, &wanted, &memory->backend, &reason);
	if (!err)
		err = stall_arena_init(&memory->arena, ARENA_SIZE);
	if (!err)
		err = stall_read_child_share(&memory->arena);
	if (!err)
		err = memory->backend->open(&wanted, &memory->state);
	if (!err)
		err = stall_snapshot_create(&memory->arena, options->pids, options->pid_count, NULL,
					    &memory->snapshot);
	return err ? err : memory->backend->capture(memory->state, memory->snapshot, &wanted);
}

// Where the program's file is mapped from its beginning on: its header is there. 0: unknown.
static uint64_t exe_start(const struct stall_process *process)
{
	const struct stall_maps *maps = process->maps;

	for (size_t i = 0; maps && process->exe && i < maps->mapping_count; i++) {
		const struct stall_mapping *mapping = &maps->mappings[i];

		if (mapping->module != STALL_NO_MODULE && !mapping->offset &&
		    !strcmp(maps->modules[mapping->module].path, process->exe))
			return mapping->start;
	}
	return 0;
}

static struct stall_error *write_threads(const struct stall_snapshot *snapshot, int out)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_json_init(&json);
	stall_json_open(&json, '{');
	stall_json_member_string(&json, "schema", SCHEMA);
	stall_json_member_string(&json, "exe", snapshot->processes[0].exe);
	stall_json_member_uint(&json, "exe_start", exe_start(&snapshot->processes[0]));
	stall_json_key(&json, "threads");
	stall_json_open(&json, '[');
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		const struct stall_thread *thread = &snapshot->threads[i];

		stall_json_open(&json, '{');
		stall_json_member_int(&json, "tid", thread->tid);
		stall_json_member_int(&json, "ns_tid",
				      thread->ns_tid ? thread->ns_tid : thread->tid);
		stall_json_member_uint(&json, "fs_base", thread->fs_base);
		stall_json_close(&json, '}');
	}
	stall_json_close(&json, ']');
	stall_json_close(&json, '}');
	stall_json_newline(&json);
	return stall_lines_write(&json, out);
}

static struct stall_error *read_whole(int in, void *buf, size_t size, bool *ret_end)
{
	uint8_t *bytes = buf;
	size_t got = 0;

	while (got < size) {
		ssize_t n = read(in, bytes + got, size - got);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return stall_error_os(errno, "cannot read requests from standard input");
		if (!n && !got) {
			*ret_end = true;
			return NULL;
		}
		if (!n)
			return stall_error_create(STALL_ERROR_FORMAT, "a request is incomplete");
		got += n;
	}
	return NULL;
}

static struct stall_error *write_whole(int out, const void *buf, size_t size)
{
	const uint8_t *bytes = buf;

	for (size_t put = 0; put < size;) {
		ssize_t n = write(out, bytes + put, size - put);
		if (n < 0 && errno != EINTR)
			return stall_error_os(errno, "cannot write to standard output");
		put += n > 0 ? n : 0;
	}
	return NULL;
}

static struct stall_error *sum_sizes(const struct piece *pieces, size_t count, size_t *ret)
{
	size_t sum = 0;

	for (size_t i = 0; i < count; i++) {
		if (pieces[i].size > MAX_BYTES - sum)
			return stall_error_create(STALL_ERROR_LIMIT,
						  "a request for more than %d MiB",
						  MAX_BYTES >> 20);
		sum += pieces[i].size;
	}
	*ret = sum;
	return NULL;
}

static struct stall_error *answer(struct memory *memory, const struct piece *pieces, size_t count,
				  int out)
{
	_cleanup_free_ struct stall_read *reads = calloc(count + 1, sizeof(*reads));
	_cleanup_free_ uint64_t *done = calloc(count + 1, sizeof(*done));
	size_t size = 0, at = 0;
	struct stall_error *err = sum_sizes(pieces, count, &size);

	if (err)
		return err;
	stall_arena_reset(&memory->arena, MAX_BYTES);
	uint8_t *bytes = stall_arena_alloc(&memory->arena, size + 1);
	if (!reads || !done || !bytes)
		return &stall_enomem;
	memset(bytes, 0, size);
	for (size_t i = 0; i < count; at += pieces[i++].size)
		reads[i] = (struct stall_read){.address = pieces[i].address,
					       .buf = bytes + at,
					       .size = pieces[i].size};
	err = stall_read_child_memory(&memory->snapshot->processes[0].target, reads, count);
	if (err)
		return err;
	for (size_t i = 0; i < count; i++)
		done[i] = reads[i].done;
	err = write_whole(out, done, count * sizeof(*done));
	return err ? err : write_whole(out, bytes, size);
}

// Of the threads that there were at the beginning.
static struct stall_error *answer_sessions(struct memory *memory, const struct stall_layout *layout,
					   int out)
{
	_cleanup_(stall_sessions_deinit) struct stall_sessions sessions = {};
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_json_init(&json);
	stall_arena_reset(&memory->arena, MAX_BYTES);
	memory->snapshot->wall_ns = stall_clock_ns(CLOCK_REALTIME);
	memory->snapshot->begun_ns = stall_clock_ns(CLOCK_MONOTONIC);
	struct stall_error *err = stall_sessions_read(memory->snapshot, layout, &sessions);
	if (err)
		return err;
	stall_sessions_write(&sessions, memory->snapshot, &json);
	if (json.failed)
		return &stall_enomem;
	uint64_t size = json.size;
	err = write_whole(out, &size, sizeof(size));
	return err ? err : write_whole(out, json.data, json.size);
}

static struct stall_error *answer_layout(struct memory *memory, int in, int out)
{
	_cleanup_(stall_layout_deinit) struct stall_layout layout = {};
	_cleanup_free_ char *text = NULL;
	uint64_t size = 0;
	bool cut = false;
	struct stall_error *err = read_whole(in, &size, sizeof(size), &cut);

	if (!err && (cut || size > MAX_LAYOUT))
		err = stall_error_create(STALL_ERROR_FORMAT, "a request has no layout");
	if (err)
		return err;
	text = calloc(size + 1, 1);
	if (!text)
		return &stall_enomem;
	err = read_whole(in, text, size, &cut);
	if (!err && cut && size)
		err = stall_error_create(STALL_ERROR_FORMAT, "a request is incomplete");
	if (!err)
		err = stall_layout_add(&layout, text);
	return err ? err : answer_sessions(memory, &layout, out);
}

static struct stall_error *answer_next(struct memory *memory, int in, int out, bool *ret_end)
{
	_cleanup_free_ struct piece *pieces = NULL;
	uint64_t count = 0;
	bool cut = false;
	struct stall_error *err = read_whole(in, &count, sizeof(count), ret_end);

	if (err || *ret_end)
		return err;
	if (count == SESSIONS)
		return answer_layout(memory, in, out);
	if (count > MAX_PIECES)
		return stall_error_create(STALL_ERROR_LIMIT, "a request for more than %d pieces",
					  MAX_PIECES);
	pieces = calloc(count + 1, sizeof(*pieces));
	if (!pieces)
		return &stall_enomem;
	err = read_whole(in, pieces, count * sizeof(*pieces), &cut);
	if (!err && cut && count)
		err = stall_error_create(STALL_ERROR_FORMAT, "a request is incomplete");
	return err ? err : answer(memory, pieces, count, out);
}

struct stall_error *stall_memory_run(const struct stall_capturer_options *options, int in, int out)
{
	_cleanup_(memory_deinit) struct memory memory = {};
	bool end = false;
	struct stall_error *err = take(&memory, options);

	if (!err)
		err = write_threads(memory.snapshot, out);
	while (!err && !end)
		err = answer_next(&memory, in, out, &end);
	return err;
}

// Of PostgreSQL, which needs no layout.
static struct stall_error *read_postgres(struct memory *memory,
					 const struct stall_capturer_options *options,
					 struct stall_sessions *sessions)
{
	_cleanup_(stall_postgres_waits_deinit) struct stall_postgres_waits waits = {};
	struct stall_worker *worker = NULL;
	bool is = false;

	for (size_t i = 0; i < memory->snapshot->process_count; i++)
		is |= stall_postgres_is(&memory->snapshot->processes[i]);
	if (!is)
		return NULL;
	struct stall_error *err = stall_worker_create(&memory->arena, &options->worker, &worker);
	if (!err)
		err = stall_postgres_read(memory->snapshot, worker, options->layout, sessions,
					  &waits);
	stall_worker_destroy(worker);
	return err;
}

struct stall_error *stall_sessions_run(const struct stall_capturer_options *options, int out)
{
	_cleanup_(memory_deinit) struct memory memory = {};
	_cleanup_(stall_sessions_deinit) struct stall_sessions sessions = {};
	_cleanup_(stall_json_deinit) struct stall_json json;
	struct stall_error *err;

	stall_json_init(&json);
	err = take(&memory, options);
	if (!err)
		err = stall_sessions_read(memory.snapshot, options->layout, &sessions);
	if (!err)
		err = read_postgres(&memory, options, &sessions);
	if (err)
		return err;
	stall_sessions_write(&sessions, memory.snapshot, &json);
	if (json.failed)
		return &stall_enomem;
	return write_whole(out, json.data, json.size);
}
