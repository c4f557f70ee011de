// SPDX-License-Identifier: Apache-2.0
// Measures what one call costs: the median of many batches of it.
#ifndef BATCHES_H
#define BATCHES_H

#include "target.h"

#include <sys/resource.h>

struct batch_kind {
	const char *name;
	void (*call)(void);
	unsigned int batch;
	long nap_ns; // between batches
};

static inline int batches_compare(const void *a, const void *b)
{
	double one = *(const double *)a, other = *(const double *)b;

	return (one > other) - (one < other);
}

// Sorts them.
static inline double batches_median(double *each, unsigned int count)
{
	qsort(each, count, sizeof(*each), batches_compare);
	return each[count / 2];
}

static inline uint64_t batches_now(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline double batches_median_ns(const struct batch_kind *kind, clockid_t clock,
				       unsigned int batches)
{
	double *each = calloc(batches, sizeof(*each)), median;

	if (!each)
		target_die("calloc");
	for (unsigned int i = 0; i < batches; i++) {
		struct timespec nap = {.tv_nsec = kind->nap_ns};
		uint64_t start;

		if (kind->nap_ns)
			nanosleep(&nap, NULL);
		start = batches_now(clock);
		for (unsigned int nr = 0; nr < kind->batch; nr++)
			kind->call();
		each[i] = (double)(batches_now(clock) - start) / kind->batch;
	}
	median = batches_median(each, batches);
	free(each);
	return median;
}

// Answers `KIND BATCHES`, by a clock: the clock of all threads' CPU time excludes the time of other
// processes. `waits` is how often a call has put the thread to sleep.
static inline void batches_answer(const struct batch_kind *kinds, size_t count, clockid_t clock,
				  const char *command)
{
	struct rusage before, after;
	unsigned int batches;
	char name[32];

	if (sscanf(command, "%31s %u", name, &batches) == 2 && batches && batches <= 1000000) {
		for (size_t i = 0; i < count; i++) {
			double ns;

			if (strcmp(kinds[i].name, name))
				continue;
			getrusage(RUSAGE_THREAD, &before);
			ns = batches_median_ns(&kinds[i], clock, batches);
			getrusage(RUSAGE_THREAD, &after);
			printf("{\"ns\":%.2f,\"waits\":%.3f}\n", ns,
			       (double)(after.ru_nvcsw - before.ru_nvcsw) / batches /
				       kinds[i].batch);
			return;
		}
	}
	printf("{\"error\":\"no such command\"}\n");
}

// What runs on one CPU wakes no other one, and each thread really waits.
static inline void batches_stay_here(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(sched_getcpu(), &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		target_die("sched_setaffinity");
}

#endif
