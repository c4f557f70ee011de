// SPDX-License-Identifier: Apache-2.0
#include "introspect/postgres.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "introspect/postgres_entries.h"
#include "introspect/postgres_locks.h"
#include "introspect/postgres_server.h"

#define MAX_SERVERS 16

// A process with what it has in common with others of its server: children of one postmaster have the
// same program at the same place.
struct member {
	pid_t ppid;
	uint64_t start, dev, ino; // of the program
	struct stall_postgres_backend backend;
};

bool stall_postgres_is(const struct stall_process *process)
{
	const char *slash = process->exe ? strrchr(process->exe, '/') : NULL;
	const char *name = slash ? slash + 1 : process->comm;

	return strstr(name, "postgres") || strstr(name, "postmaster");
}

static const struct stall_module *main_module(const struct stall_process *process)
{
	const struct stall_maps *maps = process->maps;

	for (size_t i = 0; maps && process->exe && i < maps->module_count; i++)
		if (!strcmp(maps->modules[i].path, process->exe))
			return &maps->modules[i];
	return NULL;
}

static int compare_members(const void *a, const void *b)
{
	const struct member *x = a, *y = b;

	if (x->ppid != y->ppid)
		return x->ppid < y->ppid ? -1 : 1;
	if (x->dev != y->dev)
		return x->dev < y->dev ? -1 : 1;
	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return (x->start > y->start) - (x->start < y->start);
}

static bool take_member(const struct stall_snapshot *snapshot, uint32_t index, uint32_t thread,
			struct member *ret)
{
	const struct stall_process *process = &snapshot->processes[index];
	const struct stall_module *module = main_module(process);

	if (!module)
		return false;
	*ret = (struct member){
		.ppid = process->ppid,
		.start = module->start,
		.dev = module->dev,
		.ino = module->ino,
		.backend = {.process = index, .thread = thread},
	};
	ret->backend.pid = snapshot->threads[thread].ns_tid ? snapshot->threads[thread].ns_tid
							    : snapshot->threads[thread].tid;
	return true;
}

// By the server that they belong to.
static size_t list_members(const struct stall_snapshot *snapshot, struct member *ret)
{
	size_t count = 0;

	for (uint32_t i = 0; i < snapshot->thread_count; i++) {
		const struct stall_thread *thread = &snapshot->threads[i];
		const struct stall_process *process = &snapshot->processes[thread->process];

		if (thread->tid == process->target.pid && stall_postgres_is(process))
			count += take_member(snapshot, thread->process, i, &ret[count]);
	}
	qsort(ret, count, sizeof(*ret), compare_members);
	return count;
}

static struct stall_error *read_server(const struct stall_snapshot *snapshot,
				       struct stall_worker *worker,
				       const struct stall_layout *layout,
				       const struct member *members, size_t count,
				       struct stall_sessions *sessions,
				       struct stall_postgres_waits *waits)
{
	_cleanup_free_ struct stall_postgres_backend *backends = calloc(count, sizeof(*backends));
	_cleanup_(stall_postgres_server_deinit) struct stall_postgres_server server = {};
	uint64_t symbols[STALL_PG_SYMBOLS];
	bool found = false;

	if (!backends)
		return &stall_enomem;
	for (size_t i = 0; i < count; i++)
		backends[i] = members[i].backend;
	// All have the same program at the same place.
	struct stall_error *err =
		stall_worker_find_main_data(worker, snapshot, backends[0].process,
					    stall_postgres_symbols, STALL_PG_SYMBOLS, symbols);
	if (!err)
		err = stall_postgres_server_init(&server, snapshot, symbols, layout, backends,
						 count, &found);
	if (err || !found)
		return err;
	waits->servers++;
	err = stall_postgres_read_procs(&server);
	if (!err)
		err = stall_postgres_read_entries(&server, sessions);
	return err ? err : stall_postgres_read_locks(&server, waits);
}

static int compare_sessions(const void *a, const void *b)
{
	const struct stall_session *x = a, *y = b;

	return (x->thread > y->thread) - (x->thread < y->thread);
}

struct stall_error *stall_postgres_read(const struct stall_snapshot *snapshot,
					struct stall_worker *worker,
					const struct stall_layout *layout,
					struct stall_sessions *sessions,
					struct stall_postgres_waits *ret)
{
	uint64_t start = stall_clock_ns(CLOCK_MONOTONIC);
	_cleanup_(stall_postgres_waits_deinit) struct stall_postgres_waits waits = {};
	_cleanup_free_ struct member *members =
		calloc(snapshot->thread_count + 1, sizeof(*members));
	size_t end;

	if (!members)
		return &stall_enomem;
	size_t count = snapshot->memory.read ? 0 : list_members(snapshot, members);
	int servers = 0;
	for (size_t begin = 0; begin < count && servers++ < MAX_SERVERS; begin = end) {
		for (end = begin + 1;
		     end < count && !compare_members(&members[begin], &members[end]);)
			end++;
		struct stall_error *err = read_server(snapshot, worker, layout, &members[begin],
						      end - begin, sessions, &waits);
		if (err)
			return err;
	}
	if (sessions->count)
		qsort(sessions->sessions, sessions->count, sizeof(*sessions->sessions),
		      compare_sessions);
	sessions->read_ns += stall_clock_ns(CLOCK_MONOTONIC) - start;
	*ret = waits;
	waits = (struct stall_postgres_waits){};
	return NULL;
}
