// SPDX-License-Identifier: Apache-2.0
// hot PASSES: threads that compete for a mutex of each kind, so that its waits are many and short,
// while another thread waits with deadlines, as servers have such threads. Prints how often each
// mutex was held, and ends by itself: a waiter that was never woken would keep it.
#include "target.h"

#define THREADS 6

enum kind { PLAIN, RECURSIVE, CHECKED, ADAPTIVE, KINDS };

static const int types[KINDS] = {PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_RECURSIVE,
				 PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_ADAPTIVE_NP};
static pthread_mutex_t mutexes[KINDS];
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static uint64_t held[KINDS], turns, wrong;
static long passes;
static bool has_returned;

// Who holds a lock gives the CPU to the others, so that they have to wait for it.
static void hold(enum kind kind, long i)
{
	struct timespec soon;

	if (i % 7 == 0)
		sched_yield();
	held[kind]++;
	if (kind == RECURSIVE && !pthread_mutex_lock(&mutexes[kind]))
		pthread_mutex_unlock(&mutexes[kind]);
	if (kind == CHECKED && pthread_mutex_lock(&mutexes[kind]) != EDEADLK)
		wrong++;
	if (kind != PLAIN)
		return;
	turns++;
	pthread_cond_signal(&turn);
	if (i % 64)
		return;
	clock_gettime(CLOCK_REALTIME, &soon);
	pthread_cond_timedwait(&turn, &mutexes[kind], &soon);
}

static void *compete(void *arg)
{
	for (long i = 0; i < passes; i++) {
		for (int kind = 0; kind < KINDS; kind++) {
			if (pthread_mutex_lock(&mutexes[kind]))
				__atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
			hold(kind, i);
			pthread_mutex_unlock(&mutexes[kind]);
		}
	}
	return NULL;
}

// Comes back once: from then on nobody but the competitors is there to wake them.
static void *come_back(void *arg)
{
	pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t never = PTHREAD_COND_INITIALIZER;
	struct timespec soon;

	clock_gettime(CLOCK_REALTIME, &soon);
	pthread_mutex_lock(&own);
	pthread_cond_timedwait(&never, &own, &soon);
	pthread_mutex_unlock(&own);
	__atomic_store_n(&has_returned, true, __ATOMIC_RELEASE);
	return arg;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];

	passes = argc > 1 ? atol(argv[1]) : 1000;
	for (int i = 0; i < KINDS; i++) {
		pthread_mutexattr_t attr;
		pthread_mutexattr_init(&attr);
		pthread_mutexattr_settype(&attr, types[i]);
		pthread_mutex_init(&mutexes[i], &attr);
	}
	pthread_join(target_thread(come_back, NULL, 0), NULL);
	for (int i = 0; i < THREADS; i++)
		threads[i] = target_thread(compete, NULL, 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < KINDS; i++)
		printf("%s%lu", i ? " " : "", held[i]);
	printf(" turns %lu wrong %lu\n", turns, wrong);
}
