// SPDX-License-Identifier: Apache-2.0
// C11's mtx_lock() and the C library's own mutexes do not get here.
#include "inproc/hooks_wait.h"

// For these kinds only the function that the program calls may be called: a trylock that finds a
// robust mutex not recoverable keeps it locked, and priority inheritance supports only one clock
// (nptl/pthread_mutex_trylock.c, pthread_mutex_timedlock.c). PTHREAD_MUTEX_*_NP of nptl/pthreadP.h,
// the same since 2.5.
#define KIND_ROBUST 16
#define KIND_PRIORITY_INHERIT 32
#define KIND_PRIORITY_PROTECT 64

static bool is_special(const pthread_mutex_t *mutex)
{
	return mutex->__data.__kind & (KIND_ROBUST | KIND_PRIORITY_INHERIT | KIND_PRIORITY_PROTECT);
}

static int lock_until(void *mutex, const struct timespec *until)
{
	return real.mutex_clocklock ? real.mutex_clocklock(mutex, CLOCK_MONOTONIC, until)
				    : real.mutex_timedlock(mutex, until);
}

static __attribute__((noinline)) int wait_for_mutex(pthread_mutex_t *mutex)
{
	struct hook hook;

	if (!hook_begin_lock(&hook, mutex, STALL_RING_MUTEX_LOCK, false))
		return real.mutex_lock(mutex);
	int error = hook_lock_in_stages(&hook, mutex, lock_until);
	hook_end(&hook, error);
	return error;
}

static __attribute__((noinline)) int lock_special(pthread_mutex_t *mutex)
{
	struct hook hook;

	if (!mutex->__data.__owner || !hook_begin_lock(&hook, mutex, STALL_RING_MUTEX_LOCK, true))
		return REAL(mutex_lock)(mutex);
	int error = REAL(mutex_lock)(mutex);
	hook_end(&hook, error);
	return error;
}

INTERPOSED int pthread_mutex_lock(pthread_mutex_t *mutex)
{
	int error;

	if (STALL_UNLIKELY(is_special(mutex))) {
		error = lock_special(mutex);
	} else {
		error = REAL(mutex_trylock)(mutex);
		if (STALL_LIKELY(error != EBUSY))
			return error;
		error = wait_for_mutex(mutex);
	}
	hook_stays();
	return error;
}

INTERPOSED int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	hook_releases(mutex, STALL_RING_MUTEX_UNLOCK);
	return REAL(mutex_unlock)(mutex);
}

// A call with a deadline keeps that deadline, so its stack is copied at the start.
INTERPOSED int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until)
{
	struct hook hook;

	if (!mutex->__data.__owner || !hook_begin_lock(&hook, mutex, STALL_RING_MUTEX_LOCK, true))
		return REAL(mutex_timedlock)(mutex, until);
	int error = REAL(mutex_timedlock)(mutex, until);
	hook_end(&hook, error);
	return error;
}

INTERPOSED int pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock,
				       const struct timespec *until)
{
	struct hook hook;

	if (STALL_UNLIKELY(!real.mutex_clocklock))
		real_resolve();
	if (!real.mutex_clocklock)
		return EINVAL;
	if (!mutex->__data.__owner || !hook_begin_lock(&hook, mutex, STALL_RING_MUTEX_LOCK, true))
		return real.mutex_clocklock(mutex, clock, until);
	int error = real.mutex_clocklock(mutex, clock, until);
	hook_end(&hook, error);
	return error;
}

// Exported by libpthread before glibc 2.34.
ALSO(pthread_mutex_lock, __pthread_mutex_lock);
ALSO(pthread_mutex_unlock, __pthread_mutex_unlock);
