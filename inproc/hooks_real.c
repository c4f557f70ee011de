// SPDX-License-Identifier: Apache-2.0
#include "inproc/hooks_real.h"

#include <errno.h>

#include "inproc/hooks_symbols.h"

struct real_functions real;

long real_nothing(void)
{
	return 0;
}

// In glibc 2.25 to 2.28 a tryrdlock or trywrlock that succeeds can leave other threads asleep
// forever (bug 23844), in servers that never call them. A lock with a deadline in the past is the
// same path as a plain one up to where it would sleep.
static const struct timespec past;

static int timed_rdlock_at_once(pthread_rwlock_t *rwlock)
{
	int error = real.rwlock_timedrdlock(rwlock, &past);

	return error == ETIMEDOUT ? EBUSY : error;
}

static int timed_wrlock_at_once(pthread_rwlock_t *rwlock)
{
	int error = real.rwlock_timedwrlock(rwlock, &past);

	return error == ETIMEDOUT ? EBUSY : error;
}

static int mutex_is_busy(pthread_mutex_t *mutex)
{
	return EBUSY;
}

static int rwlock_is_busy(pthread_rwlock_t *rwlock)
{
	return EBUSY;
}

// Both parts of the C library were loaded, so it lacks the functions that were not found. Before
// glibc 2.34 these are in the thread library.
static bool has_thread_library(void)
{
	return real.fsync && real.rwlock_wrlock && real.key_create;
}

// Addresses are taken relative to the code: nothing here waits for our own relocations.
//
// Objects that dlopen(3) loaded may be closed at any moment, and we cannot take the loader's lock
// (a server's constructor may hold it while it waits for a lock of our caller). So the list is not
// walked again once everything is found: where the thread library is loaded at the start of the
// program, as in any server, that is before there is a second thread.
void real_resolve(void)
{
	static bool is_settled;
	static int objects; // at the last attempt

	if (__atomic_load_n(&is_settled, __ATOMIC_ACQUIRE))
		return;
	int now = symbol_objects();
	if (now == objects)
		return;
#define F(field, name, version, result, arguments)                                                 \
	if (!real.field)                                                                           \
		real.field = (result(*) arguments)symbol_find(name, version);
	REAL_FUNCTIONS(F)
#undef F
	objects = now;
	if (!real.rwlock_timedrdlock || !real.rwlock_timedwrlock)
		return;
	if (symbol_find("__tsan_func_entry", NULL)) {
		real.follows_locks = true;
		real.mutex_trylock = mutex_is_busy;
		real.rwlock_rdlock_at_once = rwlock_is_busy;
		real.rwlock_wrlock_at_once = rwlock_is_busy;
	} else if (real.mutex_clocklock) { // came with glibc 2.30
		real.rwlock_rdlock_at_once = real.rwlock_tryrdlock;
		real.rwlock_wrlock_at_once = real.rwlock_trywrlock;
	} else {
		real.rwlock_rdlock_at_once = timed_rdlock_at_once;
		real.rwlock_wrlock_at_once = timed_wrlock_at_once;
	}
	__atomic_store_n(&is_settled, has_thread_library(), __ATOMIC_RELEASE);
}
