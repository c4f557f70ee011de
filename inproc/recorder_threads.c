// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder_threads.h"

#include "inproc/recorder_maps.h"
#include "inproc/recorder_ring.h"
#include "inproc/recorder_stack.h"

#define SPARE_SLOTS 8	    // for the first thread, and those that are not made by pthread_create()
#define USED_STACK 32768U   // of a new thread: servers wait with 12 to 22 KiB on their stacks
#define CONTROL_BLOCK 4096U // that glibc puts on top of a thread's stack, at most

static void refresh_maps(struct recorder_ring *ring)
{
	uint64_t blocked = recorder_block_signals();

	recorder_maps_refresh(ring, recorder_now());
	recorder_restore_signals(blocked);
}

static struct recorder_start *find_start(void)
{
	uint32_t first = __atomic_fetch_add(&recorder_state.next_start, 1, __ATOMIC_RELAXED);

	for (uint32_t i = 0; i < RECORDER_STARTS; i++) {
		struct recorder_start *start =
			&recorder_state.starts[(first + i) % RECORDER_STARTS];

		if (!__atomic_exchange_n(&start->is_used, 1, __ATOMIC_ACQUIRE))
			return start;
	}
	return NULL;
}

static void ready_slots(struct recorder_ring *ring)
{
	uint32_t threads = __atomic_load_n(&recorder_state.threads, __ATOMIC_RELAXED);
	uint64_t blocked = recorder_block_signals();
	bool are_more;

	recorder_ready_slots(ring, threads + SPARE_SLOTS, &are_more);
	recorder_restore_signals(blocked);
	// So is glibc: more threads than ever need a stack that is not mapped yet.
	if (are_more)
		refresh_maps(ring);
}

struct recorder_start *recorder_before_thread(struct recorder_run run, uint64_t stack_size)
{
	struct recorder_start *start = find_start();
	struct recorder_ring *ring = recorder_ring_before_threads();

	if (start) {
		start->run = run;
		start->stack_size = stack_size;
		__atomic_fetch_add(&recorder_state.threads, 1, __ATOMIC_RELAXED);
	}
	if (ring)
		ready_slots(ring);
	__atomic_store_n(&recorder_state.has_threads, 1, __ATOMIC_RELAXED);
	return start;
}

void recorder_no_thread(struct recorder_start *start)
{
	__atomic_fetch_sub(&recorder_state.threads, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&start->is_used, 0, __ATOMIC_RELEASE);
}

// What it uses of its stack is present before it waits: a copy reads all of it, and the frames of
// the library lie below those of the server.
struct recorder_run recorder_thread_start(struct recorder_thread *thread,
					  struct recorder_start *start)
{
	uintptr_t end = recorder_fs_base(), here = (uintptr_t)__builtin_frame_address(0);
	struct recorder_run run = start->run;
	uint64_t size = start->stack_size;

	__atomic_store_n(&start->is_used, 0, __ATOMIC_RELEASE);
	thread->is_counted = true;
	if (size > CONTROL_BLOCK && size < end) {
		thread->has_bounds = true;
		thread->stack_end = end;
		thread->stack_low = end - (size - CONTROL_BLOCK);
	}
	if (thread->has_bounds && here > thread->stack_low + 2 * USED_STACK)
		recorder_touch((void *)(here - USED_STACK), USED_STACK);
	return run;
}

void recorder_thread_end(struct recorder_thread *thread, struct recorder_ring *ring)
{
	if (!thread->is_counted)
		return;
	thread->is_counted = false;
	__atomic_fetch_sub(&recorder_state.threads, 1, __ATOMIC_RELAXED);
	if (ring)
		refresh_maps(ring);
}
