// SPDX-License-Identifier: Apache-2.0
// A library that is linked with no other, so that what it calls has no version.
#include <pthread.h>

int bare_conds(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int bare_conds(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
	int result;

	pthread_cond_init(cond, NULL);
	pthread_cond_signal(cond);
	pthread_cond_broadcast(cond);
	result = pthread_cond_timedwait(cond, mutex, until);
	pthread_cond_destroy(cond);
	return result;
}
