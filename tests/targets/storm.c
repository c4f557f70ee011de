// SPDX-License-Identifier: Apache-2.0
// storm THREADS INSIDE_NS OUTSIDE_NS: threads that compete for one mutex, with this much work under
// it and without it. They sleep until the command `run MILLISECONDS`; the answer has what they got
// done.
#include "target.h"

#include <sys/eventfd.h>
#include <sys/resource.h>

pthread_mutex_t storm_mutex = PTHREAD_MUTEX_INITIALIZER;

struct stormer {
	int tid, go;
	uint64_t operations;
	long voluntary, involuntary;
};

static struct stormer *stormers;
static size_t stormer_count;
static int over;
static bool stop;
static uint64_t inside_turns, outside_turns;
static uint64_t passes; // counted under the mutex alone

static NOIPA void work(uint64_t turns)
{
	for (uint64_t i = 0; i < turns; i++)
		KEEP_FRAME();
}

// Turns of work() that take this long. The best of many: what disturbs only makes it longer.
static uint64_t turns_of(uint64_t ns)
{
	const uint64_t turns = 20000;
	uint64_t best = UINT64_MAX;

	for (int i = 0; i < 200; i++) {
		uint64_t start = target_now(), taken;

		work(turns);
		taken = target_now() - start;
		if (taken < best)
			best = taken;
	}
	return ns * turns / (best ? best : 1);
}

static NOIPA void take(int event)
{
	eventfd_t value;

	while (eventfd_read(event, &value))
		if (errno != EINTR)
			target_die("eventfd_read");
}

static NOIPA void under_the_mutex(void)
{
	pthread_mutex_lock(&storm_mutex);
	work(inside_turns);
	passes++;
	pthread_mutex_unlock(&storm_mutex);
}

static NOIPA void *stormer_main(void *arg)
{
	struct stormer *stormer = arg;
	struct rusage before, after;

	__atomic_store_n(&stormer->tid, gettid(), __ATOMIC_RELEASE);
	for (;;) {
		take(stormer->go);
		getrusage(RUSAGE_THREAD, &before);
		stormer->operations = 0;
		while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
			under_the_mutex();
			work(outside_turns);
			stormer->operations++;
		}
		getrusage(RUSAGE_THREAD, &after);
		stormer->voluntary = after.ru_nvcsw - before.ru_nvcsw;
		stormer->involuntary = after.ru_nivcsw - before.ru_nivcsw;
		if (eventfd_write(over, 1))
			target_die("eventfd_write");
	}
	return NULL;
}

static void run(uint64_t milliseconds)
{
	uint64_t start = target_now(), until = start + milliseconds * 1000000u;
	struct timespec end = {.tv_sec = (time_t)(until / 1000000000u),
			       .tv_nsec = (long)(until % 1000000000u)};
	uint64_t operations = 0, taken;
	long voluntary = 0, involuntary = 0;

	passes = 0;
	__atomic_store_n(&stop, false, __ATOMIC_RELAXED);
	for (size_t i = 0; i < stormer_count; i++)
		if (eventfd_write(stormers[i].go, 1))
			target_die("eventfd_write");
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
		continue;
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	taken = target_now() - start;
	for (size_t i = 0; i < stormer_count; i++)
		take(over);
	for (size_t i = 0; i < stormer_count; i++) {
		operations += stormers[i].operations;
		voluntary += stormers[i].voluntary;
		involuntary += stormers[i].involuntary;
	}
	printf("{\"operations\":%llu,\"passes\":%llu,\"ns\":%llu,\"voluntary\":%ld,"
	       "\"involuntary\":%ld}\n",
	       (unsigned long long)operations, (unsigned long long)passes,
	       (unsigned long long)taken, voluntary, involuntary);
}

static void answer(const char *command)
{
	unsigned long milliseconds;

	if (sscanf(command, "run %lu", &milliseconds) == 1)
		run(milliseconds);
	else
		printf("{\"error\":\"no such command\"}\n");
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: storm THREADS INSIDE_NS OUTSIDE_NS\n");
		return 2;
	}
	stormer_count = strtoul(argv[1], NULL, 10);
	inside_turns = turns_of(strtoul(argv[2], NULL, 10));
	outside_turns = turns_of(strtoul(argv[3], NULL, 10));
	over = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	stormers = calloc(stormer_count, sizeof(*stormers));
	if (over < 0 || !stormers)
		target_die("storm");
	for (size_t i = 0; i < stormer_count; i++) {
		stormers[i].go = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
		if (stormers[i].go < 0)
			target_die("eventfd");
		pthread_detach(target_thread(stormer_main, &stormers[i], 65536));
		target_wait_blocked(target_wait_set(&stormers[i].tid), SYS_read, 0, 0);
	}
	target_ready();
	target_serve(answer);
}
