// SPDX-License-Identifier: Apache-2.0
// A thread that wakes every 100 µs and writes down when: the gaps between its ticks show for how
// long the process was held. The ticks go to a ring buffer in a shared file, so that a benchmark
// can examine exactly the window of a capture.
#ifndef HEARTBEAT_H
#define HEARTBEAT_H

#include "target.h"

#include <sys/mman.h>
#include <sys/prctl.h>

#define HEARTBEAT_TICKS (1u << 20) // 104 s
#define HEARTBEAT_MAGIC 0x7461656274726165ull

// tests/bench/heartbeat.py reads this. Times are CLOCK_MONOTONIC nanoseconds.
struct heartbeat {
	uint64_t magic;
	uint64_t count; // ticks so far; tick N is in ticks[N % HEARTBEAT_TICKS]
	uint64_t tid;
	uint64_t longest; // gap since it was last set to 0
	uint64_t ticks[HEARTBEAT_TICKS];
};

static struct heartbeat *heartbeat;
static int heartbeat_tid;

static NOIPA void heartbeat_beat(void)
{
	struct timespec nap = {.tv_nsec = 100000};
	uint64_t last = target_now();

	for (;;) {
		uint64_t now, gap;

		// Not clock_nanosleep to an absolute time: after a gap it would tick in a burst.
		nanosleep(&nap, NULL);
		now = target_now();
		gap = now - last;
		last = now;
		heartbeat->ticks[heartbeat->count % HEARTBEAT_TICKS] = now;
		__atomic_store_n(&heartbeat->count, heartbeat->count + 1, __ATOMIC_RELEASE);
		if (gap > __atomic_load_n(&heartbeat->longest, __ATOMIC_RELAXED))
			__atomic_store_n(&heartbeat->longest, gap, __ATOMIC_RELAXED);
	}
}

static NOIPA void *heartbeat_thread(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "heartbeat");
	// The default slack of 50 µs would be half a tick.
	prctl(PR_SET_TIMERSLACK, 1);
	heartbeat->tid = (uint64_t)gettid();
	__atomic_store_n(&heartbeat_tid, gettid(), __ATOMIC_RELEASE);
	heartbeat_beat();
	return NULL;
}

// `path` may be NULL: then only `longest` can be asked for. Returns false with errno set.
static inline bool heartbeat_start(const char *path)
{
	int flags = path ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS, fd = -1;
	pthread_attr_t attr;
	pthread_t thread;

	if (path) {
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0 || ftruncate(fd, sizeof(*heartbeat)))
			return false;
	}
	heartbeat = mmap(NULL, sizeof(*heartbeat), PROT_READ | PROT_WRITE, flags, fd, 0);
	if (fd >= 0)
		close(fd);
	if (heartbeat == MAP_FAILED)
		return false;
	memset(heartbeat, 0, sizeof(*heartbeat));
	heartbeat->magic = HEARTBEAT_MAGIC;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 65536);
	errno = pthread_create(&thread, &attr, heartbeat_thread, NULL);
	pthread_attr_destroy(&attr);
	return errno == 0;
}

// Answers the command `gap`: the longest since the last such command.
static inline void heartbeat_answer(void)
{
	uint64_t count = __atomic_load_n(&heartbeat->count, __ATOMIC_ACQUIRE);

	printf("{\"gap_ns\":%llu,\"ticks\":%llu}\n",
	       (unsigned long long)__atomic_exchange_n(&heartbeat->longest, 0, __ATOMIC_RELAXED),
	       (unsigned long long)count);
}

#endif
