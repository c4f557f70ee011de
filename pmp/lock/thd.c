// SPDX-License-Identifier: Apache-2.0
#include "lock/thd.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "lock/server_memory.h"

static int compare(const void *a, const void *b)
{
	const struct stall_thd *x = a, *y = b;

	return (x->thd > y->thd) - (x->thd < y->thd);
}

static void list(struct stall_thds *thds)
{
	for (size_t i = 0; i < thds->thread_count; i++)
		if (thds->of_thread[i])
			thds->sorted[thds->count++] =
				(struct stall_thd){thds->of_thread[i], (uint32_t)i};
	qsort(thds->sorted, thds->count, sizeof(*thds->sorted), compare);
}

struct stall_error *stall_thds_init(struct stall_thds *thds, const struct stall_snapshot *snapshot,
				    uint32_t process, const struct stall_layout *layout)
{
	size_t count = snapshot->thread_count, wanted = 0;
	_cleanup_free_ struct stall_read *reads = calloc(count + 1, sizeof(*reads));
	int64_t offset;

	*thds = (struct stall_thds){
		.of_thread = calloc(count + 1, sizeof(*thds->of_thread)),
		.thread_count = count,
		.sorted = calloc(count + 1, sizeof(*thds->sorted)),
	};
	if (!reads || !thds->of_thread || !thds->sorted) {
		stall_thds_deinit(thds);
		return &stall_enomem;
	}
	if (!stall_layout_get(layout, "thd.tls", &offset))
		return NULL;
	for (size_t i = 0; i < count; i++) {
		const struct stall_thread *thread = &snapshot->threads[i];

		if (thread->process == process && thread->fs_base)
			reads[wanted++] = (struct stall_read){
				.address = thread->fs_base + (uint64_t)offset,
				.buf = &thds->of_thread[i],
				.size = sizeof(*thds->of_thread),
			};
	}
	const struct stall_server_memory memory = {.snapshot = snapshot, .process = process};
	stall_server_read_all(&memory, reads, wanted);
	for (size_t i = 0; i < wanted; i++)
		if (reads[i].done < reads[i].size)
			*(uint64_t *)reads[i].buf = 0;
	list(thds);
	return NULL;
}

void stall_thds_deinit(struct stall_thds *thds)
{
	free(thds->of_thread);
	free(thds->sorted);
	*thds = (struct stall_thds){};
}

uint64_t stall_thd_of(const struct stall_thds *thds, uint32_t thread)
{
	return thread < thds->thread_count ? thds->of_thread[thread] : 0;
}

uint32_t stall_thds_find(const struct stall_thds *thds, uint64_t thd)
{
	const struct stall_thd key = {.thd = thd};

	if (!thd || !thds->count)
		return UINT32_MAX;
	const struct stall_thd *found =
		bsearch(&key, thds->sorted, thds->count, sizeof(key), compare);
	if (!found)
		return UINT32_MAX;
	bool twice = (found > thds->sorted && found[-1].thd == thd) ||
		     (found + 1 < thds->sorted + thds->count && found[1].thd == thd);
	return twice ? UINT32_MAX : found->thread;
}
