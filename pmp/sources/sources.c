// SPDX-License-Identifier: Apache-2.0
#include "sources/sources.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "rings/ring_find.h"

void stall_wait_source_options_init(struct stall_wait_source_options *options)
{
	*options = (struct stall_wait_source_options){
		.backend = "auto",
		.kinds = (1U << STALL_WAIT_KINDS) - 1,
		.uprobes = true,
	};
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		options->threshold_ns[i] = 100 * 1000000;
}

// 0 where it is not known.
static size_t count_threads(const pid_t *pids, size_t count)
{
	size_t threads = 0;

	for (size_t i = 0; i < count; i++)
		threads += stall_target_thread_count(pids[i]);
	return threads;
}

static bool have_rings(const struct stall_wait_source_options *options, const pid_t *pids,
		       size_t count)
{
	for (size_t i = 0; i < count; i++) {
		_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
		_cleanup_error_ struct stall_error *err =
			stall_ring_open_process(pids[i], options->ring, false, &ring);
		if (err)
			return false;
	}
	return count > 0;
}

struct stall_error *stall_wait_source_init(struct stall_wait_source *source,
					   const struct stall_wait_source_options *options,
					   const pid_t *pids, size_t pid_count)
{
	bool is_bpf = !strcmp(options->backend, "bpf");

	if (!strcmp(options->backend, "poll"))
		return stall_wait_source_poll(options, NULL, source);
	// A ring that is named is used.
	if (!strcmp(options->backend, "inproc") || (!is_bpf && options->ring))
		return stall_wait_source_ring(options, source);
	struct stall_wait_source_options sized = *options;
	sized.threads = count_threads(pids, pid_count);
	struct stall_error *err = stall_wait_source_bpf(&sized, source);
	if (!err || is_bpf || err->code == STALL_ERROR_NO_MEMORY)
		return err;
	_cleanup_error_ struct stall_error *why_not = err;
	if (have_rings(options, pids, pid_count))
		return stall_wait_source_ring(options, source);
	return stall_wait_source_poll(options, why_not->message, source);
}

void stall_wait_source_deinit(struct stall_wait_source *source)
{
	if (source->calls)
		source->calls->destroy(source->state);
	*source = (struct stall_wait_source){};
}
