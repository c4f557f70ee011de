// SPDX-License-Identifier: Apache-2.0
// glibc takes the mutex again inside of the wait, so waiting for it is part of the wait for the
// condition. C11's cnd_wait() does not get here.
#include "inproc/hooks_wait.h"

// The condition variables of glibc 2.2.5 are not at the address that the program has. Callers of
// that version, or of no version, get those functions, and their waits are not recorded. The
// version script sets the default version.
#define CURRENT(function, name)                                                                    \
	INTERPOSED __typeof__(name) function;                                                      \
	asm(".symver " #function ", " #name "@@GLIBC_2.3.2")
#define OLD(function, name)                                                                        \
	INTERPOSED __typeof__(name) function;                                                      \
	asm(".symver " #function ", " #name "@GLIBC_2.2.5")

CURRENT(stall_cond_wait, pthread_cond_wait);
CURRENT(stall_cond_timedwait, pthread_cond_timedwait);
CURRENT(stall_cond_signal, pthread_cond_signal);
CURRENT(stall_cond_broadcast, pthread_cond_broadcast);
OLD(stall_old_cond_wait, pthread_cond_wait);
OLD(stall_old_cond_timedwait, pthread_cond_timedwait);
OLD(stall_old_cond_signal, pthread_cond_signal);
OLD(stall_old_cond_broadcast, pthread_cond_broadcast);

// The wait releases the mutex, too.
static inline __attribute__((always_inline)) bool begin(struct hook *hook, pthread_cond_t *cond,
							pthread_mutex_t *mutex)
{
	hook_releases(mutex, STALL_RING_MUTEX_UNLOCK);
	return hook_begin_lock(hook, cond, STALL_RING_COND_WAIT, true);
}

int stall_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	struct hook hook;

	if (!begin(&hook, cond, mutex))
		return REAL(cond_wait)(cond, mutex);
	int error = REAL(cond_wait)(cond, mutex);
	hook_end(&hook, error);
	return error;
}

int stall_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
	struct hook hook;

	if (!begin(&hook, cond, mutex))
		return REAL(cond_timedwait)(cond, mutex, until);
	int error = REAL(cond_timedwait)(cond, mutex, until);
	hook_end(&hook, error);
	return error;
}

INTERPOSED int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
				      const struct timespec *until)
{
	struct hook hook;

	if (STALL_UNLIKELY(!real.cond_clockwait))
		real_resolve();
	if (!real.cond_clockwait)
		return EINVAL;
	if (!begin(&hook, cond, mutex))
		return real.cond_clockwait(cond, mutex, clock, until);
	int error = real.cond_clockwait(cond, mutex, clock, until);
	hook_end(&hook, error);
	return error;
}

int stall_cond_signal(pthread_cond_t *cond)
{
	hook_releases(cond, STALL_RING_COND_SIGNAL);
	return REAL(cond_signal)(cond);
}

int stall_cond_broadcast(pthread_cond_t *cond)
{
	hook_releases(cond, STALL_RING_COND_BROADCAST);
	return REAL(cond_broadcast)(cond);
}

int stall_old_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	return REAL(old_cond_wait)(cond, mutex);
}

int stall_old_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
			     const struct timespec *until)
{
	return REAL(old_cond_timedwait)(cond, mutex, until);
}

int stall_old_cond_signal(pthread_cond_t *cond)
{
	return REAL(old_cond_signal)(cond);
}

int stall_old_cond_broadcast(pthread_cond_t *cond)
{
	return REAL(old_cond_broadcast)(cond);
}
