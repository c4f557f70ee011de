// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder_transfers.h"

#include "inproc/recorder_stats.h"

#define VALID_NS 3500000ULL // of the coarse clock, whose tick is 1 ms at least: less than 4 ms
#define MAX_PENDING 16
#define MANY 64 // calls: before that each is counted at once

static struct line {
	struct recorder_file file;
} __attribute__((aligned(64))) files[STALL_RING_MAX_SLOTS];

struct recorder_file *recorder_file_known(const struct recorder_thread *thread,
					  const struct recorder_wait *wait, uint64_t now)
{
	struct recorder_file *file = &files[thread->index].file;

	if (file->fd != wait->fd || file->key.kind != wait->kind || !file->stat ||
	    now - file->checked_ns >= VALID_NS ||
	    __atomic_load_n(&file->stat->tag, __ATOMIC_ACQUIRE) != file->tag ||
	    (wait->kind != STALL_WAIT_READ && wait->value + wait->size > file->size))
		return NULL;
	return file;
}

void recorder_file_learn(const struct recorder_thread *thread, const struct stall_wait_key *key,
			 uint64_t ns)
{
	struct recorder_file *file = &files[thread->index].file;
	uint32_t calls = file->stat == thread->stat ? file->calls : 0;

	recorder_file_flush(thread);
	*file = (struct recorder_file){
		.calls = calls,
		.checked_ns = recorder_clock(CLOCK_MONOTONIC_COARSE),
		.size = thread->file_size,
		.tag = thread->tag,
		.stat = thread->stat,
		.key = *key,
		.ns = ns,
		.fd = thread->fd,
	};
}

void recorder_file_count(const struct recorder_thread *thread, uint64_t bytes)
{
	struct recorder_file *file = &files[thread->index].file;

	file->bytes += bytes;
	file->pending++;
	file->calls += file->calls < MANY;
	if (file->calls < MANY || file->pending >= MAX_PENDING)
		recorder_file_flush(thread);
}

static uint64_t tick_ns(void)
{
	struct timespec tick;

	clock_getres(CLOCK_MONOTONIC_COARSE, &tick);
	return tick.tv_sec * 1000000000ULL + tick.tv_nsec;
}

// The call began less than a tick after start_ns. Where the clock has moved on by one tick, that
// happened in the middle of the call, on average: so the estimate is right on average, for calls of
// any duration below a tick. The duration of longer ones is too long by less than a tick.
uint64_t recorder_file_estimate(const struct recorder_thread *thread, uint64_t now)
{
	uint64_t most = now - thread->start_ns, estimate = 2 * (now - thread->last_tick_ns);
	bool is_one_tick = thread->last_tick_ns - thread->start_ns < 2 * tick_ns();

	return is_one_tick && estimate < most ? estimate : most;
}

void recorder_file_flush(const struct recorder_thread *thread)
{
	struct recorder_file *file = &files[thread->index].file;

	if (!file->pending)
		return;
	if (__atomic_load_n(&file->stat->tag, __ATOMIC_ACQUIRE) == file->tag) {
		recorder_stat_count_alike(file->stat, file->ns, file->pending);
		__atomic_fetch_add(&file->stat->bytes, file->bytes, __ATOMIC_RELAXED);
	}
	file->pending = file->bytes = 0;
}

void recorder_file_expire(const struct recorder_thread *thread)
{
	files[thread->index].file.checked_ns = 0;
}

void recorder_file_forget(const struct recorder_thread *thread)
{
	files[thread->index].file = (struct recorder_file){.fd = -1};
}
