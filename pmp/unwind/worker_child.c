// SPDX-License-Identifier: Apache-2.0
#include "unwind/worker_child.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/child_process.h"
#include "base/clock.h"
#include "base/descriptors.h"
#include "unwind/sandbox.h"
#include "unwind/worker_state.h"

#define SOCKET STALL_CHILD_FD
#define MEMORY_LIMIT ((size_t)4 << 30) // beside the shared regions

static struct stall_error *enter(struct stall_worker_child *child, struct stall_worker_state *state)
{
	struct rlimit no_files = {0, 0};
	struct stall_sandbox_options options = {
		.die_with_parent = true,
		.memory_limit = MEMORY_LIMIT + child->arena->size + child->region_size,
	};

	stall_child_set_signals();
	signal(SIGPROF, SIG_DFL); // demangle.c
	stall_child_keep_only(&child->socket, 1);
	child->socket = SOCKET;
	mprotect(child->arena->base, child->arena->size, PROT_READ);
	struct stall_error *err =
		stall_debug_dirs_init(&state->dirs, &child->debug_dir, child->debug_dir ? 1 : 0);
	if (err)
		return err;
	state->pages = calloc(STALL_LIVE_PAGES, sizeof(*state->pages));
	if (!state->pages)
		return &stall_enomem;
	setrlimit(RLIMIT_FSIZE, &no_files);
	err = stall_sandbox_enter(&options);
	// The parent may have ended before the sandbox tied this process to it.
	if (!err && getppid() != child->parent)
		_exit(0);
	return err;
}

bool stall_worker_late(const struct stall_worker_state *state)
{
	return stall_clock_ns(CLOCK_MONOTONIC) >= state->job->deadline_ns;
}

uint32_t stall_worker_string(struct stall_worker_state *state, const char *text)
{
	struct stall_wire_job *job = state->job;
	size_t size = strlen(text) + 1;

	if (size > job->string_capacity - job->string_bytes)
		return 0;
	memcpy(state->strings + job->string_bytes, text, size);
	uint32_t at = (uint32_t)job->string_bytes;
	job->string_bytes += size;
	return at + 1;
}

static bool send_message(const struct stall_wire_message *message)
{
	struct iovec part = {(void *)message, sizeof(*message)};

	return stall_send_descriptor(SOCKET, &part, 1, -1, 0) == (ssize_t)sizeof(*message);
}

// `page` (may be NULL) receives what follows the message.
static bool receive_message(struct stall_wire_message *message, uint8_t *page, int *ret_fd)
{
	uint8_t unused[8];
	struct iovec parts[2] = {
		{message, sizeof(*message)},
		{page ? page : unused, page ? STALL_WIRE_PAGE : sizeof(unused)},
	};

	return stall_receive_descriptor(SOCKET, parts, 2, ret_fd) >= (ssize_t)sizeof(*message);
}

bool stall_worker_ask(struct stall_worker_state *state, const struct stall_wire_message *question,
		      struct stall_wire_message *ret, uint8_t *page, int *ret_fd)
{
	// Without an answer there is nobody left to work for.
	if (!send_message(question) || !receive_message(ret, page, ret_fd))
		_exit(0);
	return ret->status == 0;
}

static bool begin(struct stall_worker_state *state)
{
	uint8_t *region = state->child->region;
	struct stall_wire_job *job = (struct stall_wire_job *)region;

	state->jobs++;
	state->job = job;
	state->processes = (struct stall_wire_process *)(region + job->processes);
	state->mappings = (struct stall_wire_mapping *)(region + job->mappings);
	state->modules = (struct stall_wire_module *)(region + job->modules);
	state->threads = (struct stall_wire_thread *)(region + job->threads);
	state->queries = (struct stall_wire_query *)(region + job->queries);
	state->frames = (struct stall_wire_frame *)(region + job->frames);
	state->stacks = (struct stall_wire_stack *)(region + job->stacks);
	state->indexes = (uint32_t *)(region + job->indexes);
	state->infos = (struct stall_wire_module_info *)(region + job->infos);
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
	case STALL_WIRE_UNWIND:
		stall_worker_unwind_all(state);
		break;
	case STALL_WIRE_NAME_DATA:
		stall_worker_name_all(state);
		break;
	case STALL_WIRE_FIND_DATA:
		stall_worker_find(state);
		break;
	case STALL_WIRE_FIND_FUNCTIONS:
		stall_worker_find_all(state);
		break;
	}
	free(state->states);
	state->states = NULL;
	stall_worker_trim_files(state);
}

_Noreturn void stall_worker_child_main(struct stall_worker_child *child)
{
	static struct stall_worker_state state;
	struct stall_wire_message message = {.type = STALL_WIRE_READY};
	int fd;

	state.child = child;
	struct stall_error *err = enter(child, &state);
	if (err)
		message.status = err->errnum ? err->errnum : EINVAL;
	if (!send_message(&message) || err)
		_exit(1);
	while (receive_message(&message, NULL, &fd) && message.type == STALL_WIRE_JOB) {
		do_job(&state);
		message = (struct stall_wire_message){.type = STALL_WIRE_DONE};
		if (!send_message(&message))
			break;
	}
	_exit(0);
}
