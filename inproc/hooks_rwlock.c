// SPDX-License-Identifier: Apache-2.0
#include "inproc/hooks_wait.h"

static int rdlock_until(void *rwlock, const struct timespec *until)
{
	return real.rwlock_clockrdlock ? real.rwlock_clockrdlock(rwlock, CLOCK_MONOTONIC, until)
				       : real.rwlock_timedrdlock(rwlock, until);
}

static int wrlock_until(void *rwlock, const struct timespec *until)
{
	return real.rwlock_clockwrlock ? real.rwlock_clockwrlock(rwlock, CLOCK_MONOTONIC, until)
				       : real.rwlock_timedwrlock(rwlock, until);
}

static __attribute__((noinline)) int wait_to_read(pthread_rwlock_t *rwlock)
{
	struct hook hook;

	if (!hook_begin_lock(&hook, rwlock, STALL_RING_RWLOCK_RDLOCK, false))
		return real.rwlock_rdlock(rwlock);
	int error = hook_lock_in_stages(&hook, rwlock, rdlock_until);
	hook_end(&hook, error);
	return error;
}

// A writer whose deadline passes admits the readers that wait behind it
// (nptl/pthread_rwlock_common.c). Where writers are preferred, readers must not overtake it, so it
// waits without stages.
static bool prefers_writers(const pthread_rwlock_t *rwlock)
{
	return rwlock->__data.__flags == PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP;
}

static __attribute__((noinline)) int wait_to_write(pthread_rwlock_t *rwlock)
{
	bool in_one_piece = prefers_writers(rwlock);
	struct hook hook;

	if (!hook_begin_lock(&hook, rwlock, STALL_RING_RWLOCK_WRLOCK, in_one_piece))
		return real.rwlock_wrlock(rwlock);
	int error = in_one_piece ? real.rwlock_wrlock(rwlock)
				 : hook_lock_in_stages(&hook, rwlock, wrlock_until);
	hook_end(&hook, error);
	return error;
}

INTERPOSED int pthread_rwlock_rdlock(pthread_rwlock_t *rwlock)
{
	int error = REAL(rwlock_rdlock_at_once)(rwlock);

	if (STALL_LIKELY(error != EBUSY))
		return error;
	error = wait_to_read(rwlock);
	hook_stays();
	return error;
}

INTERPOSED int pthread_rwlock_wrlock(pthread_rwlock_t *rwlock)
{
	int error = REAL(rwlock_wrlock_at_once)(rwlock);

	if (STALL_LIKELY(error != EBUSY))
		return error;
	error = wait_to_write(rwlock);
	hook_stays();
	return error;
}

INTERPOSED int pthread_rwlock_unlock(pthread_rwlock_t *rwlock)
{
	hook_releases(rwlock, STALL_RING_RWLOCK_UNLOCK);
	return REAL(rwlock_unlock)(rwlock);
}

INTERPOSED int pthread_rwlock_timedrdlock(pthread_rwlock_t *rwlock, const struct timespec *until)
{
	struct hook hook;

	if (!hook_begin_lock(&hook, rwlock, STALL_RING_RWLOCK_RDLOCK, true))
		return REAL(rwlock_timedrdlock)(rwlock, until);
	int error = real.rwlock_timedrdlock(rwlock, until);
	hook_end(&hook, error);
	return error;
}

INTERPOSED int pthread_rwlock_timedwrlock(pthread_rwlock_t *rwlock, const struct timespec *until)
{
	struct hook hook;

	if (!hook_begin_lock(&hook, rwlock, STALL_RING_RWLOCK_WRLOCK, true))
		return REAL(rwlock_timedwrlock)(rwlock, until);
	int error = real.rwlock_timedwrlock(rwlock, until);
	hook_end(&hook, error);
	return error;
}

INTERPOSED int pthread_rwlock_clockrdlock(pthread_rwlock_t *rwlock, clockid_t clock,
					  const struct timespec *until)
{
	struct hook hook;

	if (STALL_UNLIKELY(!real.rwlock_clockrdlock))
		real_resolve();
	if (!real.rwlock_clockrdlock)
		return EINVAL;
	if (!hook_begin_lock(&hook, rwlock, STALL_RING_RWLOCK_RDLOCK, true))
		return real.rwlock_clockrdlock(rwlock, clock, until);
	int error = real.rwlock_clockrdlock(rwlock, clock, until);
	hook_end(&hook, error);
	return error;
}

INTERPOSED int pthread_rwlock_clockwrlock(pthread_rwlock_t *rwlock, clockid_t clock,
					  const struct timespec *until)
{
	struct hook hook;

	if (STALL_UNLIKELY(!real.rwlock_clockwrlock))
		real_resolve();
	if (!real.rwlock_clockwrlock)
		return EINVAL;
	if (!hook_begin_lock(&hook, rwlock, STALL_RING_RWLOCK_WRLOCK, true))
		return real.rwlock_clockwrlock(rwlock, clock, until);
	int error = real.rwlock_clockwrlock(rwlock, clock, until);
	hook_end(&hook, error);
	return error;
}

// Exported by libpthread before glibc 2.34.
ALSO(pthread_rwlock_rdlock, __pthread_rwlock_rdlock);
ALSO(pthread_rwlock_wrlock, __pthread_rwlock_wrlock);
ALSO(pthread_rwlock_unlock, __pthread_rwlock_unlock);
