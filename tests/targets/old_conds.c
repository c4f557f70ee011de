// SPDX-License-Identifier: Apache-2.0
// old_conds: uses the condition variables of glibc 2.2.5 by name, and those that a library without
// symbol versions gets. glibc keeps them where the program has only a pointer: a wait on one of
// another version would leave something else there, which is freed at the end.
#include "target.h"

int bare_conds(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);

#define OLD(name) __asm__(".symver old_" #name ", pthread_cond_" #name "@GLIBC_2.2.5")
OLD(init);
OLD(signal);
OLD(broadcast);
OLD(timedwait);
OLD(destroy);
int old_init(pthread_cond_t *cond, const pthread_condattr_t *attr);
int old_signal(pthread_cond_t *cond);
int old_broadcast(pthread_cond_t *cond);
int old_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int old_destroy(pthread_cond_t *cond);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void expect(int got, int wanted, const char *what)
{
	if (got == wanted)
		return;
	fprintf(stderr, "old_conds: %s is %d\n", what, got);
	exit(2);
}

int main(void)
{
	struct timespec past = {.tv_sec = 1};
	pthread_cond_t cond;

	memset(&cond, 0x5a, sizeof(cond));
	expect(old_init(&cond, NULL), 0, "init");
	expect(old_signal(&cond), 0, "signal");
	expect(old_broadcast(&cond), 0, "broadcast");
	pthread_mutex_lock(&mutex);
	expect(old_timedwait(&cond, &mutex, &past), ETIMEDOUT, "timedwait");
	expect(old_destroy(&cond), 0, "destroy");
	expect(bare_conds(&cond, &mutex, &past), ETIMEDOUT, "timedwait without a version");
	printf("well\n");
	return 0;
}
