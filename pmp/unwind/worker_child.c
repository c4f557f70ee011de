// SPDX-License-Identifier: Apache-2.0
#include "unwind/worker_child.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/child_process.h"
#include "proc/path_broker.h"
#include "sandbox/sandbox.h"
#include "unwind/worker_queries.h"
#include "unwind/worker_unwind.h"

#define SOCKET STALL_CHILD_FD
#define FILES (STALL_CHILD_FD + 1)
#define MEMORY_LIMIT ((size_t)4 << 30) // without the shared regions

static struct stall_error *enter(struct stall_worker_child *child, struct stall_worker_state *state,
				 unsigned int *ret_missing)
{
	const int fds[] = {child->socket, child->files};
	const struct stall_sandbox_options options = {
		.parent = child->parent,
		.memory_limit = MEMORY_LIMIT + child->arena->size + child->region_size,
	};

	stall_child_set_signals();
	signal(SIGPROF, SIG_DFL); // demangle.c
	stall_child_keep_only(fds, 2);
	mprotect(child->arena->base, child->arena->size, PROT_READ);
	state->dirs = child->debug_dirs;
	state->packs = child->pack_dirs;
	state->pages = calloc(STALL_LIVE_PAGES, sizeof(*state->pages));
	if (!state->pages)
		return &stall_enomem;
	struct stall_error *err = stall_sandbox_enter(&options, ret_missing);
	stall_path_ask(FILES);
	return err;
}

static bool begin(struct stall_worker_state *state)
{
	uint8_t *region = state->region;
	struct stall_protocol_job *job = (struct stall_protocol_job *)region;

	state->jobs++;
	state->job = job;
	state->processes = (struct stall_protocol_process *)(region + job->processes);
	state->mappings = (struct stall_protocol_mapping *)(region + job->mappings);
	state->modules = (struct stall_protocol_module *)(region + job->modules);
	state->threads = (struct stall_protocol_thread *)(region + job->threads);
	state->queries = (struct stall_protocol_query *)(region + job->queries);
	state->frames = (struct stall_protocol_frame *)(region + job->frames);
	state->stacks = (struct stall_protocol_stack *)(region + job->stacks);
	state->indexes = (uint32_t *)(region + job->indexes);
	state->infos = (struct stall_protocol_module_info *)(region + job->infos);
	state->strings = (char *)(region + job->strings);
	state->pages_read = 0;
	state->states = calloc(job->module_count + 1, sizeof(*state->states));
	return state->states;
}

static void do_job(struct stall_worker_state *state)
{
	if (!begin(state))
		return;
	switch (state->job->kind) {
	case STALL_PROTOCOL_UNWIND:
		stall_worker_job_unwind(state);
		break;
	case STALL_PROTOCOL_NAME_DATA:
		stall_worker_job_name_data(state);
		break;
	case STALL_PROTOCOL_FIND_DATA:
		stall_worker_job_find_data(state);
		break;
	case STALL_PROTOCOL_FIND_FUNCTIONS:
		stall_worker_job_find_functions(state);
		break;
	}
	free(state->states);
	state->states = NULL;
	stall_worker_trim_files(state);
}

_Noreturn void stall_worker_child_main(struct stall_worker_child *child)
{
	static struct stall_worker_state state;
	struct stall_protocol_message message = {.type = STALL_PROTOCOL_READY};
	int fd;

	state.stacks_base = child->arena->base;
	state.region = child->region;
	state.socket = SOCKET;
	struct stall_error *err = enter(child, &state, &message.module);
	if (err)
		message.status = err->errnum ? err->errnum : EINVAL;
	if (!stall_worker_send(&state, &message) || err)
		_exit(1);
	while (stall_worker_receive(&state, &message, NULL, &fd) &&
	       message.type == STALL_PROTOCOL_JOB) {
		do_job(&state);
		message = (struct stall_protocol_message){.type = STALL_PROTOCOL_DONE};
		if (!stall_worker_send(&state, &message))
			break;
	}
	_exit(0);
}
