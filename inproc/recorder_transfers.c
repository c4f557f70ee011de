// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder_transfers.h"

#include "inproc/recorder_stats.h"

void recorder_file_learn(const struct recorder_thread *thread, const struct stall_wait_key *key,
			 uint64_t ns)
{
	struct recorder_file *file = &recorder_state.files[thread->index];
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
		.kind = thread->kind,
		.operation = thread->operation,
	};
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

	if (thread->last_tick_ns == thread->start_ns) // it failed at once
		return recorder_state.files[thread->index].ns;
	bool is_one_tick = thread->last_tick_ns - thread->start_ns < 2 * tick_ns();

	return is_one_tick && estimate < most ? estimate : most;
}

void recorder_file_flush(const struct recorder_thread *thread)
{
	struct recorder_file *file = &recorder_state.files[thread->index];

	if (!file->pending)
		return;
	if (__atomic_load_n(&file->stat->tag, __ATOMIC_ACQUIRE) == file->tag) {
		recorder_stat_count_alike(file->stat, file->ns, file->pending);
		__atomic_fetch_add(&file->stat->bytes, file->bytes, __ATOMIC_RELAXED);
	}
	file->calls += file->calls < RECORDER_FILE_MANY ? file->pending : 0;
	file->pending = file->bytes = 0;
}

void recorder_file_expire(const struct recorder_thread *thread)
{
	recorder_state.files[thread->index].checked_ns = 0;
}

void recorder_file_forget(const struct recorder_thread *thread)
{
	recorder_state.files[thread->index] = (struct recorder_file){.fd = -1};
}
