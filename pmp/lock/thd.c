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

// What the THD itself says: the kernel's id of its thread, or its pthread_self().
static uint32_t thread_of_id(const struct stall_server_memory *memory, bool is_tid, uint64_t id)
{
	return is_tid ? stall_server_thread_of_tid(memory, (uint32_t)id)
		      : stall_server_thread_of(memory, id);
}

struct stall_error *stall_server_threads_of_thds(const struct stall_server_memory *memory,
						 const uint64_t *thds, size_t count, uint32_t *ret)
{
	int64_t real_id = stall_layout_value(memory->layout, "THD.real_id", -1);
	int64_t tid = stall_layout_value(memory->layout, "THD.os_thread_id", -1);
	int64_t offset = tid >= 0 ? tid : real_id;
	_cleanup_free_ struct stall_read *reads = calloc(count + 1, sizeof(*reads));
	_cleanup_free_ uint64_t *ids = calloc(count + 1, sizeof(*ids));

	if (!reads || !ids)
		return &stall_enomem;
	for (size_t i = 0; i < count; i++)
		reads[i] = (struct stall_read){
			.address = thds[i] ? thds[i] + (uint64_t)offset : 0,
			.buf = &ids[i],
			.size = tid >= 0 ? sizeof(uint32_t) : sizeof(uint64_t),
		};
	if (offset >= 0)
		stall_server_read_all(memory, reads, count);
	for (size_t i = 0; i < count; i++) {
		uint32_t listed = stall_thds_find(memory->thds, thds[i]);
		uint32_t named = reads[i].done == reads[i].size
					 ? thread_of_id(memory, tid >= 0, ids[i])
					 : STALL_NO_THREAD;

		ret[i] = listed != STALL_NO_THREAD ? listed : named;
		if (listed != STALL_NO_THREAD && named != STALL_NO_THREAD && listed != named)
			ret[i] = STALL_NO_THREAD;
	}
	return NULL;
}

uint32_t stall_server_thread_of_thd(const struct stall_server_memory *memory, uint64_t thd)
{
	uint32_t thread = STALL_NO_THREAD;

	stall_error_destroy(stall_server_threads_of_thds(memory, &thd, 1, &thread));
	return thread;
}
