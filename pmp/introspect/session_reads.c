// SPDX-License-Identifier: Apache-2.0
#include "introspect/session_reads.h"

#include <stdlib.h>

void stall_session_reads_deinit(struct stall_session_reads *reads)
{
	free(reads->reads);
	free(reads->process);
	free(reads->done);
}

struct stall_error *stall_session_reads_init(struct stall_session_reads *reads, size_t capacity)
{
	*reads = (struct stall_session_reads){
		.reads = calloc(capacity + 1, sizeof(*reads->reads)),
		.process = calloc(capacity + 1, sizeof(*reads->process)),
		.done = calloc(capacity + 1, sizeof(*reads->done)),
		.capacity = capacity,
	};
	return reads->reads && reads->process && reads->done ? NULL : &stall_enomem;
}

void stall_session_reads_add(struct stall_session_reads *reads, uint32_t process, uint64_t address,
			     void *buf, size_t size, size_t *ret_done)
{
	size_t at = reads->count;

	*ret_done = 0;
	if (at == reads->capacity)
		return;
	reads->process[at] = process;
	reads->done[at] = ret_done;
	reads->reads[at] = (struct stall_read){.address = address, .buf = buf, .size = size};
	reads->count++;
}

// A process whose memory is locked has no sessions: that is no error.
void stall_session_reads_run(struct stall_session_reads *reads,
			     const struct stall_snapshot *snapshot)
{
	for (size_t begin = 0, end; begin < reads->count; begin = end) {
		uint32_t process = reads->process[begin];

		for (end = begin; end < reads->count && reads->process[end] == process; end++)
			;
		stall_error_destroy(stall_read_child_memory(&snapshot->processes[process].target,
							    &reads->reads[begin], end - begin));
	}
	for (size_t i = 0; i < reads->count; i++)
		*reads->done[i] = reads->reads[i].done;
	reads->count = 0;
}
