// SPDX-License-Identifier: Apache-2.0
#include "inproc/hooks_wait.h"

#include <limits.h>

#include "inproc/raw_call.h"

#define SECOND 1000000000ULL
#define PAGE 4096

bool hook_enter(struct hook *hook)
{
	if (real.follows_locks)
		return false;
	hook->error = errno;
	hook_notice_fork();
	hook->thread = recorder_enter();
	if (!hook->thread)
		errno = hook->error;
	return hook->thread;
}

static void hook_abandoned(void *argument)
{
	struct hook *hook = argument;

	recorder_end(hook->thread, -ECANCELED, 0);
	recorder_leave(hook->thread);
}

// Uses glibc's list of cleanups for code without unwind tables: it runs at a cancellation or a
// longjmp(3), and needs no personality routine, which would load libgcc_s.so.
static void guard(struct hook *hook)
{
	hook->is_guarded = real.cleanup_push && real.cleanup_pop;
	if (hook->is_guarded)
		real.cleanup_push(&hook->cleanup, hook_abandoned, hook);
}

void hook_begin(struct hook *hook, const struct recorder_wait *wait, bool with_stack)
{
	hook_notice_end();
	recorder_begin(hook->thread, wait, &hook->place, with_stack);
	guard(hook);
	errno = hook->error;
}

bool hook_begin_transfer(struct hook *hook, const struct recorder_wait *wait)
{
	hook_notice_fork();
	hook->thread = recorder_begin_transfer(wait, &hook->place);
	if (!hook->thread)
		return false;
	guard(hook);
	return true;
}

static void hook_finish(struct hook *hook, int64_t result, uint64_t bytes)
{
	if (hook->is_guarded)
		real.cleanup_pop(&hook->cleanup, 0);
	recorder_end(hook->thread, result, bytes);
	recorder_leave(hook->thread);
	errno = hook->error;
}

void hook_end(struct hook *hook, int result)
{
	hook_finish(hook, -result, 0);
}

void hook_end_transfer(struct hook *hook, int64_t result)
{
	uint64_t bytes = result < 0 ? 0 : (uint64_t)result;

	if (result >= 0 && recorder_end_transfer(hook->thread, bytes)) {
		if (hook->is_guarded)
			real.cleanup_pop(&hook->cleanup, 0);
		return;
	}
	hook_end_call(hook, result, bytes);
}

void hook_end_call(struct hook *hook, int64_t result, uint64_t bytes)
{
	hook->error = errno;
	hook_finish(hook, result < 0 ? -hook->error : result, bytes);
}

// Where locks cannot use the monotonic clock (before glibc 2.30), setting the clock only moves the
// ends of the stages: the wait still lasts until the thread gets the lock.
clockid_t hook_stage_clock(void)
{
	return real.mutex_clocklock ? CLOCK_MONOTONIC : CLOCK_REALTIME;
}

static uint64_t stage_now(void)
{
	struct timespec time;

	clock_gettime(hook_stage_clock(), &time);
	return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

int hook_lock_in_stages(struct hook *hook, void *object,
			int (*lock_until)(void *object, const struct timespec *until))
{
	uint64_t patience = recorder_patience_ns();
	uint64_t now = hook_stage_clock() == CLOCK_MONOTONIC ? recorder_began_ns(hook->thread)
							     : stage_now();

	for (;;) {
		uint64_t end = now + patience;
		struct timespec until = {.tv_sec = end / SECOND, .tv_nsec = end % SECOND};
		int error = lock_until(object, &until);

		if (error != ETIMEDOUT)
			return error;
		recorder_still_waits(hook->thread, &hook->place);
		patience = patience < SECOND / 10 ? patience * 10 : SECOND;
		now = stage_now();
	}
}

__attribute__((noinline)) void hook_release(const void *object, enum stall_ring_call call)
{
	struct recorder_place place;
	int error = errno;

	hook_notice_fork();
	hook_notice_end();
	hook_here(&place);
	recorder_release((uintptr_t)object, call, &place);
	errno = error;
}

bool hook_may_read(const void *pointer, size_t size)
{
	uintptr_t start = (uintptr_t)pointer, last = start + size - 1;

	return recorder_is_readable(start & -8UL) &&
	       ((start ^ last) < PAGE || recorder_is_readable(last & -8UL));
}

const char *hook_path(const char *path)
{
	size_t length = 0;

	for (; length < PATH_MAX; length++) {
		const char *at = path + length;

		if ((!length || (uintptr_t)at % PAGE == 0) && !hook_may_read(at, 1))
			return NULL;
		if (!*at)
			return path;
	}
	return NULL;
}
