// SPDX-License-Identifier: Apache-2.0
// churn RATE [STAY [MICROSECONDS [cond]]]: makes and ends RATE threads a second next to STAY
// threads that stay blocked. Each lives for that long (200), asleep, or in one wait for a condition
// variable. Commands: `made`.
#include "levels.h"
#include "waits.h"

static unsigned long made, alive, ended, refused;
static unsigned int rate;
static uint64_t life_ns = 200000;
static bool in_cond;

static NOIPA void churn_work(void *arg)
{
	struct timespec nap = {.tv_nsec = (long)life_ns};

	(void)arg;
	nanosleep(&nap, NULL);
	KEEP_FRAME();
}

static NOIPA void churn_wait(void *arg)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
	struct timespec until = target_after(CLOCK_REALTIME, (long)life_ns);

	(void)arg;
	pthread_mutex_lock(&mutex);
	pthread_cond_timedwait(&cond, &mutex, &until);
	pthread_mutex_unlock(&mutex);
	KEEP_FRAME();
}

static NOIPA void *churn_main(void *arg)
{
	levels_descend(6, in_cond ? churn_wait : churn_work, arg);
	__atomic_fetch_sub(&alive, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&ended, 1, __ATOMIC_RELAXED);
	return NULL;
}

static NOIPA void *stay_main(void *arg)
{
	__atomic_store_n((int *)arg, gettid(), __ATOMIC_RELEASE);
	levels_descend(6, wait_mutex, NULL);
	return NULL;
}

static NOIPA void *maker_main(void *arg)
{
	uint64_t start = target_now();
	pthread_attr_t attr;

	(void)arg;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 65536);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	for (unsigned long nr = 0;; nr++) {
		uint64_t due = start + nr * 1000000000ull / rate, now = target_now();
		pthread_t thread;

		if (due > now) {
			struct timespec nap = {.tv_nsec = (long)((due - now) % 1000000000)};

			nanosleep(&nap, NULL);
		}
		// A machine that cannot keep up must not get more and more threads.
		if (__atomic_add_fetch(&alive, 1, __ATOMIC_RELAXED) > 2000 ||
		    pthread_create(&thread, &attr, churn_main, NULL)) {
			__atomic_fetch_sub(&alive, 1, __ATOMIC_RELAXED);
			__atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
			continue;
		}
		__atomic_fetch_add(&made, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void answer(const char *command)
{
	(void)command;
	// First those that ended: each of them was made.
	unsigned long gone = __atomic_load_n(&ended, __ATOMIC_ACQUIRE);

	printf("{\"ended\":%lu,\"made\":%lu,\"refused\":%lu,\"ns\":%llu}\n", gone,
	       __atomic_load_n(&made, __ATOMIC_RELAXED),
	       __atomic_load_n(&refused, __ATOMIC_RELAXED), (unsigned long long)target_now());
}

int main(int argc, char **argv)
{
	int stay = argc > 2 ? atoi(argv[2]) : 20;
	int *tids = calloc((size_t)stay + 1, sizeof(*tids));

	rate = argc > 1 ? (unsigned int)atoi(argv[1]) : 5000;
	if (argc > 3)
		life_ns = strtoul(argv[3], NULL, 10) * 1000;
	in_cond = argc > 4 && strcmp(argv[4], "cond") == 0;
	if (!tids || !rate || life_ns >= 1000000000)
		target_die("usage: churn RATE [STAY [MICROSECONDS [cond]]]");
	waits_init();
	for (int i = 0; i < stay; i++)
		pthread_detach(target_thread(stay_main, &tids[i], 65536));
	levels_print(6);
	for (int i = 0; i < stay; i++) {
		waits_wait_blocked(waits_find("mutex"), target_wait_set(&tids[i]));
		printf("{\"fact\":\"thread\",\"tid\":%d,\"wait\":\"mutex\",\"syscall\":202,"
		       "\"leaf\":\"wait_mutex\",\"depth\":6,\"root\":\"stay_main\"}\n",
		       tids[i]);
	}
	pthread_detach(target_thread(maker_main, NULL, 65536));
	while (__atomic_load_n(&made, __ATOMIC_RELAXED) < 100)
		sched_yield();
	target_ready();
	target_serve(answer);
}
