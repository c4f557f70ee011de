// SPDX-License-Identifier: Apache-2.0
#include "snapshot/snapshot_end.h"

static void drop_threads(struct stall_snapshot *snapshot, uint32_t process)
{
	size_t kept = 0;

	for (size_t i = 0; i < snapshot->thread_count; i++) {
		if (snapshot->threads[i].process == process)
			continue;
		if (kept != i)
			snapshot->threads[kept] = snapshot->threads[i];
		kept++;
	}
	snapshot->processes[process].threads_lost += snapshot->thread_count - kept;
	snapshot->processes[process].thread_count = 0;
	snapshot->thread_count = kept;
}

struct stall_error *stall_snapshot_drop_ended(struct stall_snapshot *snapshot)
{
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < snapshot->process_count; i++) {
		struct stall_error *ended = stall_target_check(&snapshot->processes[i].target);

		if (!ended)
			continue;
		drop_threads(snapshot, i);
		if (!snapshot->thread_count)
			return ended;
		err = stall_snapshot_note(snapshot, "process-lost", "%s", ended->message);
		stall_error_destroy(ended);
	}
	if (!err && !snapshot->thread_count)
		err = stall_error_create(STALL_ERROR_NO_PROCESS, "process %d has ended",
					 snapshot->processes[0].target.pid);
	return err;
}
