// SPDX-License-Identifier: Apache-2.0
#include "capture/live_reads.h"

#include <stdlib.h>

#include "base/cleanup.h"

static size_t list_threads(const struct stall_snapshot *snapshot,
			   const struct stall_unwound *unwound, uint32_t *ret)
{
	size_t count = 0;

	for (size_t i = 0; i < snapshot->thread_count; i++)
		if (unwound->stacks[i].live_reads && snapshot->threads[i].label != STALL_RACED)
			ret[count++] = (uint32_t)i;
	return count;
}

struct stall_error *stall_live_reads_check(struct stall_snapshot *snapshot,
					   const struct stall_unwound *unwound,
					   const struct stall_backend *backend, void *state)
{
	_cleanup_free_ uint32_t *threads = calloc(snapshot->thread_count + 1, sizeof(*threads));
	_cleanup_free_ bool *ran = calloc(snapshot->thread_count + 1, sizeof(*ran));

	if (!threads || !ran)
		return &stall_enomem;
	size_t count = list_threads(snapshot, unwound, threads);
	// Memory that is a file, or that nobody reads, stays as it is.
	if (!count || snapshot->memory.read)
		return NULL;
	struct stall_error *err = backend->find_runs(state, snapshot, threads, count, ran);
	if (err)
		return err;
	for (size_t i = 0; i < count; i++) {
		struct stall_thread *thread = &snapshot->threads[threads[i]];

		// A sample is of one moment, which was over at once.
		if (!ran[i] && thread->label != STALL_RUNNING)
			continue;
		thread->label = STALL_RACED;
		thread->label_reason = STALL_REASON_LIVE_READS;
	}
	return NULL;
}
