// SPDX-License-Identifier: Apache-2.0
#include "snapshot/thread_index.h"

#include <stdlib.h>

#include "snapshot/thread_record.h"

struct stall_process_number {
	pid_t tgid;
	uint32_t index;
};

static int compare_numbers(const void *a, const void *b)
{
	const struct stall_process_number *x = a, *y = b;

	return (x->tgid > y->tgid) - (x->tgid < y->tgid);
}

struct stall_error *stall_thread_index_init(struct stall_thread_index *index,
					    const struct stall_snapshot *snapshot)
{
	struct stall_process_number *processes =
		calloc(snapshot->process_count + 1, sizeof(*processes));

	if (!processes)
		return &stall_enomem;
	for (uint32_t i = 0; i < snapshot->process_count; i++)
		processes[i] = (struct stall_process_number){snapshot->processes[i].target.pid, i};
	qsort(processes, snapshot->process_count, sizeof(*processes), compare_numbers);
	*index = (struct stall_thread_index){snapshot, processes};
	return NULL;
}

void stall_thread_index_deinit(struct stall_thread_index *index)
{
	free(index->processes);
	*index = (struct stall_thread_index){};
}

uint32_t stall_thread_index_process(const struct stall_thread_index *index, pid_t tgid)
{
	const struct stall_process_number key = {.tgid = tgid};
	const struct stall_process_number *found =
		bsearch(&key, index->processes, index->snapshot->process_count, sizeof(key),
			compare_numbers);

	return found ? found->index : STALL_NO_PROCESS;
}

size_t stall_thread_index_find(const struct stall_thread_index *index, pid_t tgid, pid_t tid)
{
	const struct stall_snapshot *snapshot = index->snapshot;
	uint32_t process = stall_thread_index_process(index, tgid);
	size_t low = 0, high = snapshot->thread_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (stall_thread_order(&snapshot->threads[middle], process, tid) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == snapshot->thread_count ||
	    stall_thread_order(&snapshot->threads[low], process, tid) != 0)
		return STALL_NO_THREAD;
	return low;
}

static int compare_found(const void *a, const void *b)
{
	const struct stall_found_thread *x = a, *y = b;

	if (x->process != y->process)
		return x->process < y->process ? -1 : 1;
	return (x->record->tid > y->record->tid) - (x->record->tid < y->record->tid);
}

struct stall_error *stall_thread_index_sort(const struct stall_thread_index *index,
					    const struct stall_bpf_records *records,
					    struct stall_found_thread **ret, size_t *ret_count,
					    size_t *ret_dead)
{
	size_t capacity = records->size / sizeof(struct stall_bpf_thread) + 1, count = 0;
	struct stall_found_thread *found = calloc(capacity, sizeof(*found));
	const struct stall_bpf_thread *record;

	if (!found)
		return &stall_enomem;
	for (size_t at = 0; (record = stall_bpf_records_next(records, &at));) {
		uint32_t process = stall_thread_index_process(index, record->tgid);

		if (process == STALL_NO_PROCESS)
			continue;
		if (stall_record_is_dead(record) && record->tid != record->tgid) {
			ret_dead[process]++;
			continue;
		}
		found[count++] = (struct stall_found_thread){process, record};
	}
	qsort(found, count, sizeof(*found), compare_found);
	*ret = found;
	*ret_count = count;
	return NULL;
}
