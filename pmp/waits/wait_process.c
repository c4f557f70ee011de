// SPDX-License-Identifier: Apache-2.0
#include "waits/wait_process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "proc/proc_file.h"
#include "snapshot/proc_thread.h"
#include "waits/wait_source.h"

#define ADD_TRIES 100
#define REFRESH_MIN_NS UINT64_C(1000000)
#define LIST_TIDS_NS UINT64_C(200000000)
#define REFRESH_MAX_NS UINT64_C(5000000000)

static void process_deinit(struct stall_wait_process *process)
{
	stall_snapshot_destroy(process->snapshot);
	free(process->tids);
	free(process->exe);
}

void stall_wait_processes_deinit(struct stall_wait_processes *processes)
{
	for (size_t i = 0; i < processes->count; i++)
		process_deinit(&processes->processes[i]);
	free(processes->processes);
	*processes = (struct stall_wait_processes){};
}

struct stall_wait_process *stall_wait_processes_find(const struct stall_wait_processes *processes,
						     pid_t pid)
{
	for (size_t i = processes->count; i > 0; i--)
		if (processes->processes[i - 1].pid == pid && !processes->processes[i - 1].ended)
			return &processes->processes[i - 1];
	return NULL;
}

static void set_code_range(struct stall_wait_process *process)
{
	const struct stall_maps *maps = process->snapshot->processes[0].maps;

	process->low = UINT64_MAX;
	process->high = 0;
	for (size_t i = 0; i < maps->mapping_count; i++) {
		const struct stall_mapping *mapping = &maps->mappings[i];
		if (!mapping->executable)
			continue;
		if (mapping->start < process->low)
			process->low = mapping->start;
		if (mapping->end > process->high)
			process->high = mapping->end;
	}
}

// Replaces the former entry.
static struct stall_error *read_maps(struct stall_wait_processes *processes,
				     struct stall_wait_process *process, struct stall_arena *arena)
{
	const struct stall_wait_source *source = processes->source;
	struct stall_snapshot *snapshot;
	struct stall_error *err;

	if (source)
		err = source->calls->snapshot(source->state, arena, process->pid, process->snapshot,
					      &snapshot);
	else
		err = stall_snapshot_create(arena, &process->pid, 1, process->snapshot, &snapshot);
	if (err)
		return err;
	stall_snapshot_destroy(process->snapshot);
	process->snapshot = snapshot;
	process->read_ns = stall_clock_ns(CLOCK_MONOTONIC);
	process->generation = ++processes->generation;
	set_code_range(process);
	memcpy(process->comm, snapshot->processes[0].comm, sizeof(process->comm));
	free(process->exe);
	process->exe = NULL;
	if (snapshot->processes[0].exe) {
		process->exe = strdup(snapshot->processes[0].exe);
		if (!process->exe)
			return &stall_enomem;
	}
	return NULL;
}

static struct stall_error *find_namespace(struct stall_wait_process *process)
{
	const struct stall_target *target = &process->snapshot->processes[0].target;
	struct stall_thread thread = {};
	struct stall_error *err = stall_proc_status_read(target, target->reader, &thread);

	if (!err)
		process->own_namespace = thread.ns_tid != target->reader;
	return err;
}

struct stall_error *stall_wait_processes_add(struct stall_wait_processes *processes,
					     struct stall_arena *arena, pid_t pid)
{
	struct stall_wait_process process = {.pid = pid, .refresh_after_ns = REFRESH_MIN_NS};

	if (stall_wait_processes_find(processes, pid))
		return stall_error_create(STALL_ERROR_OTHER, "process %d is watched already", pid);
	if (processes->count == STALL_MAX_WATCHED)
		return stall_error_create(STALL_ERROR_LIMIT, "more than %d processes",
					  STALL_MAX_WATCHED);
	if (!stall_array_resize(&processes->processes, processes->count + 1))
		return &stall_enomem;
	struct stall_error *err = read_maps(processes, &process, arena);
	// It executed another program meanwhile, like a script that starts a server.
	for (int i = 1; i < ADD_TRIES && err && err->code == STALL_ERROR_AGAIN; i++) {
		stall_error_destroy(err);
		err = read_maps(processes, &process, arena);
	}
	if (!err)
		err = find_namespace(&process);
	if (err) {
		process_deinit(&process);
		return err;
	}
	processes->processes[processes->count++] = process;
	processes->alive++;
	return NULL;
}

void stall_wait_process_end(struct stall_wait_processes *processes,
			    struct stall_wait_process *process)
{
	stall_snapshot_destroy(process->snapshot);
	process->snapshot = NULL;
	process->ended = true;
	processes->alive--;
}

struct stall_error *stall_wait_process_refresh(struct stall_wait_processes *processes,
					       struct stall_wait_process *process, bool exec,
					       bool *ret_changed)
{
	uint64_t now = stall_clock_ns(CLOCK_MONOTONIC);

	if (!exec && now - process->read_ns < process->refresh_after_ns) {
		*ret_changed = false;
		return NULL;
	}
	process->refresh_after_ns *= 2;
	if (exec)
		process->refresh_after_ns = REFRESH_MIN_NS;
	else if (process->refresh_after_ns > REFRESH_MAX_NS)
		process->refresh_after_ns = REFRESH_MAX_NS;
	struct stall_error *err = read_maps(processes, process, process->snapshot->arena);
	if (!err)
		*ret_changed = true;
	return err;
}

void stall_wait_process_is_known(struct stall_wait_process *process)
{
	process->refresh_after_ns = REFRESH_MIN_NS;
}

// This reads each thread's status.
static void list_tids(struct stall_wait_process *process)
{
	const struct stall_target *target = &process->snapshot->processes[0].target;
	_cleanup_free_ pid_t *tids = NULL;
	size_t count = 0;
	_cleanup_error_ struct stall_error *err =
		stall_target_tids(target, STALL_MAX_TIDS, &tids, &count);
	struct stall_wait_tid *list = err ? NULL : calloc(count + 1, sizeof(*list));

	free(process->tids);
	process->tids = list;
	process->tid_count = 0;
	process->tids_ns = stall_clock_ns(CLOCK_MONOTONIC);
	for (size_t i = 0; list && i < count; i++) {
		struct stall_thread thread = {};
		_cleanup_error_ struct stall_error *ended =
			stall_proc_status_read(target, tids[i], &thread);
		if (!ended)
			list[process->tid_count++] =
				(struct stall_wait_tid){thread.ns_tid, tids[i]};
	}
}

static pid_t find_tid(struct stall_wait_process *process, pid_t ns_tid)
{
	if (stall_clock_ns(CLOCK_MONOTONIC) - process->tids_ns >= LIST_TIDS_NS)
		list_tids(process);
	for (size_t i = 0; i < process->tid_count; i++)
		if (process->tids[i].ns_tid == ns_tid)
			return process->tids[i].tid;
	return 0;
}

pid_t stall_wait_process_tid(struct stall_wait_process *process, pid_t ns_tid)
{
	if (ns_tid <= 0)
		return 0;
	if (process->own_namespace)
		return find_tid(process, ns_tid);
	return stall_proc_has_thread(&process->snapshot->processes[0].target, ns_tid) ? ns_tid : 0;
}
