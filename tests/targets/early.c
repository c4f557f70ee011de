// SPDX-License-Identifier: Apache-2.0
// A library that calls what is interposed from its constructor, and from the resolver of an IFUNC,
// which runs while the loader still links.
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;

static int answer(void)
{
	return 42;
}

static int (*resolve(void))(void)
{
	if (pthread_mutex_lock(&mutex) || pthread_mutex_unlock(&mutex))
		return NULL;
	return answer;
}
int early_answer(void) __attribute__((ifunc("resolve")));

static __attribute__((constructor)) void early(void)
{
	struct timespec past = {.tv_sec = 1};

	if (pthread_mutex_lock(&mutex) || pthread_rwlock_rdlock(&rwlock) ||
	    pthread_rwlock_unlock(&rwlock) ||
	    pthread_cond_timedwait(&cond, &mutex, &past) != ETIMEDOUT ||
	    pthread_cond_signal(&cond) || pthread_mutex_unlock(&mutex) || fsync(-1) != -1 ||
	    errno != EBADF || early_answer() != 42)
		abort();
}
