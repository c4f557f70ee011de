/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wait in an interposed function: the steps before and after the real one.
 *
 * Where nothing is recorded, the real function runs as if the program had called it. errno has the
 * value of the real function. The wait also ends where a thread exits in the middle (cancelled, or
 * by pthread_exit() or siglongjmp() in a signal handler).
 */
#ifndef STALL_HOOKS_WAIT_H
#define STALL_HOOKS_WAIT_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "inproc/hooks_real.h"
#include "inproc/recorder.h"

/* Attributes of the functions that the program calls in place of the real ones. */
#define INTERPOSED __attribute__((visibility("default")))
/* Another name of theirs. */
#if __has_attribute(copy)
#define ALSO(function, name)                                                                       \
	INTERPOSED extern __typeof__(function) name                                                \
		__attribute__((alias(#function), copy(function)))
#else
#define ALSO(function, name)                                                                       \
	INTERPOSED extern __typeof__(function) name __attribute__((alias(#function)))
#endif

/* Keeps the interposed function on the stack during its last call: it is the frame that a reader
 * shows. */
#define hook_stays() asm volatile("" ::: "memory")

struct hook {
	struct recorder_thread *thread;
	struct recorder_place place;
	struct _pthread_cleanup_buffer cleanup; /* of <pthread.h> */
	bool is_guarded;
	int error; /* errno */
};

/* False: nothing is recorded of this call. */
bool hook_enter(struct hook *hook);
void hook_begin(struct hook *hook, const struct recorder_wait *wait, bool with_stack);
/* Without hook_enter(). False: hook_enter() and hook_begin() are to be called. */
bool hook_begin_transfer(struct hook *hook, const struct recorder_wait *wait);
/* `result` of a function of pthread: 0 or an error, which leaves errno alone. */
void hook_end(struct hook *hook, int result);
/* `result` of a system call: -1 and errno, or its return value. */
void hook_end_call(struct hook *hook, int64_t result, uint64_t bytes);
/* The same for a read or write, begun in either way. */
void hook_end_transfer(struct hook *hook, int64_t result);

/* Memory that the program passes to be read, up to a page of it. For an invalid pointer the kernel
 * returns EFAULT, so the hook must not read it either. Like the kernel's own read it waits for a page
 * that is not there, and for nothing else. */
bool hook_may_read(const void *pointer, size_t size);
/* NULL where the path cannot be read up to its end. */
const char *hook_path(const char *path);

/* The place in the function that uses this macro. */
static inline __attribute__((always_inline)) void hook_here(struct recorder_place *place)
{
	asm volatile("movq %%rbx, %0\n\t"
		     "movq %%rbp, %1\n\t"
		     "movq %%r12, %2\n\t"
		     "movq %%r13, %3\n\t"
		     "movq %%r14, %4\n\t"
		     "movq %%r15, %5\n\t"
		     "leaq 0f(%%rip), %%rax\n"
		     "0:\n\t"
		     "movq %%rax, %6\n\t"
		     "movq %%rsp, %7"
		     : "=m"(place->bx), "=m"(place->bp), "=m"(place->r12), "=m"(place->r13),
		       "=m"(place->r14), "=m"(place->r15), "=m"(place->ip), "=m"(place->sp)
		     :
		     : "rax");
}

/* The wait for a lock. Returns false where the caller has to call the real function alone. */
static inline __attribute__((always_inline)) bool hook_begin_lock(struct hook *hook,
								  const void *object,
								  enum stall_ring_call call,
								  bool with_stack)
{
	const struct recorder_wait wait = {.kind = STALL_WAIT_FUTEX,
					   .operation = call,
					   .object = (uintptr_t)object,
					   .fd = -1};

	if (!hook_enter(hook))
		return false;
	hook_here(&hook->place);
	hook_begin(hook, &wait, with_stack);
	return true;
}

/* Waits for a lock with short deadlines first, so that only long waits cost a copy of the stack.
 * lock_until() is the timed lock by hook_stage_clock(). */
int hook_lock_in_stages(struct hook *hook, void *object,
			int (*lock_until)(void *object, const struct timespec *until));
clockid_t hook_stage_clock(void);

/* The calling thread releases a lock, or signals a condition, that a thread has waited long for. */
void hook_release(const void *object, enum stall_ring_call call);
static inline void hook_releases(const void *object, enum stall_ring_call call)
{
	if (STALL_UNLIKELY(recorder_is_marked((uintptr_t)object)))
		hook_release(object, call);
}

/* hooks_life.c: the child of a fork is distinguished from its parent, also of one that ran no handlers. */
void hook_notice_fork(void);
/* The calling thread has a slot: its end will be noticed. */
void hook_notice_end(void);

#endif
