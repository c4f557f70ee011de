// SPDX-License-Identifier: Apache-2.0
// C11's mtx_lock() and the C library's own mutexes do not get here.
#include <linux/futex.h>

#include "inproc/hooks_wait.h"
#include "inproc/raw_call.h"

// For these kinds only the function that the program calls may be called: a trylock that finds a
// robust mutex not recoverable keeps it locked, and priority inheritance supports only one clock
// (nptl/pthread_mutex_trylock.c, pthread_mutex_timedlock.c). PTHREAD_MUTEX_*_NP of nptl/pthreadP.h,
// the same since 2.5.
#define KIND_ROBUST 16
#define KIND_PRIORITY_INHERIT 32
#define KIND_PRIORITY_PROTECT 64

#define MAX_SPINS 100 // glibc.pthread.mutex_spin_count
#define HELD 1
#define HELD_WAITED_FOR 2

static bool is_special(const pthread_mutex_t *mutex)
{
	return mutex->__data.__kind & (KIND_ROBUST | KIND_PRIORITY_INHERIT | KIND_PRIORITY_PROTECT);
}

static int lock_until(void *mutex, const struct timespec *until)
{
	return real.mutex_clocklock ? real.mutex_clocklock(mutex, CLOCK_MONOTONIC, until)
				    : real.mutex_timedlock(mutex, until);
}

// Private, without any flag, and no error of the lock itself depends on the waiting function.
static bool is_plain(const pthread_mutex_t *mutex)
{
	int kind = mutex->__data.__kind;

	return kind == PTHREAD_MUTEX_TIMED_NP || kind == PTHREAD_MUTEX_RECURSIVE_NP ||
	       kind == PTHREAD_MUTEX_ADAPTIVE_NP;
}

// As pthread_mutex_lock() does it for adaptive mutexes.
static int spin(pthread_mutex_t *mutex)
{
	int spins = mutex->__data.__spins, count = 0;
	int most = spins * 2 + 10 < MAX_SPINS ? spins * 2 + 10 : MAX_SPINS, error = EBUSY;

	if (mutex->__data.__kind != PTHREAD_MUTEX_ADAPTIVE_NP)
		return EBUSY;
	while (error == EBUSY && count++ < most) {
		__builtin_ia32_pause();
		if (!__atomic_load_n(&mutex->__data.__lock, __ATOMIC_RELAXED))
			error = real.mutex_trylock(mutex);
	}
	if (!error)
		mutex->__data.__spins += (count - spins) / 8;
	return error;
}

// False: a futex cannot be used.
static bool sleep_on(uint32_t *word)
{
	long result = raw_call4(SYS_futex, word, FUTEX_WAIT_PRIVATE, HELD_WAITED_FOR, NULL);

	return result == 0 || result == -EAGAIN || result == -EINTR;
}

/*
 * Waits without a timer, in the protocol of glibc's locks (sysdeps/nptl/lowlevellock.h, the same
 * since 2.4): the word is 0: free, 1: held, 2: held, and others may sleep: then its release wakes
 * one of them. Who has slept does not know whether others do, so it takes the lock with 2, or
 * leaves 2 to its owner, before anything else: else those would sleep forever. Where it holds the
 * lock nobody else sets the word to anything but 2.
 *
 * ETIMEDOUT: the wait is long now, or a futex cannot be used.
 */
static int lock_asleep(struct hook *hook, pthread_mutex_t *mutex)
{
	uint32_t *word = (uint32_t *)&mutex->__data.__lock;
	int error = spin(mutex);
	bool has_slept = false;

	while (error == EBUSY) {
		uint32_t seen = HELD;
		if (__atomic_compare_exchange_n(word, &seen, HELD_WAITED_FOR, false,
						__ATOMIC_ACQ_REL, __ATOMIC_RELAXED) ||
		    seen == HELD_WAITED_FOR) {
			if (has_slept && hook_waits_long(hook))
				return ETIMEDOUT;
			has_slept = true;
			if (!sleep_on(word))
				return ETIMEDOUT;
		}
		error = real.mutex_trylock(mutex);
		if (!error && has_slept)
			__atomic_store_n(word, HELD_WAITED_FOR, __ATOMIC_RELAXED);
	}
	return error;
}

static int lock_in_any_way(struct hook *hook, pthread_mutex_t *mutex)
{
	if (is_plain(mutex) && recorder_sleeps(hook->thread, (uint32_t *)&mutex->__data.__lock)) {
		int error = lock_asleep(hook, mutex);
		if (error != ETIMEDOUT)
			return error;
		recorder_sleeps(hook->thread, NULL);
	}
	return hook_lock_in_stages(hook, mutex, lock_until);
}

static __attribute__((noinline)) int wait_for_mutex(pthread_mutex_t *mutex)
{
	struct hook hook;

	if (!hook_begin_lock(&hook, mutex, STALL_RING_MUTEX_LOCK, false))
		return real.mutex_lock(mutex);
	int error = lock_in_any_way(&hook, mutex);
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
