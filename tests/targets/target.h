// SPDX-License-Identifier: Apache-2.0
// What every target shares. A target prints facts about itself as JSON, one a line, then `ready`
// once every thread is really in its wait. It answers commands on stdin with one JSON line each,
// and exits when stdin closes, so that a test that dies leaves none.
#ifndef TARGET_H
#define TARGET_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// A frame of its own under exactly its name: not inlined, cloned or rewritten.
#define NOIPA __attribute__((noipa))
// As long as tests wait: only what fails takes it (tests/support/servers/waiting.py).
#define TARGET_PATIENCE_NS 240000000000u
// Keeps the call before it from being a tail call, which would have no frame.
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

static inline void __attribute__((noreturn)) target_die(const char *what)
{
	fprintf(stderr, "target: %s: %s\n", what, strerror(errno));
	exit(1);
}

static inline uint64_t target_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

// So long from now.
static inline struct timespec target_after(clockid_t clock, long ns)
{
	struct timespec time;

	clock_gettime(clock, &time);
	time.tv_nsec += ns;
	time.tv_sec += time.tv_nsec / 1000000000;
	time.tv_nsec %= 1000000000;
	return time;
}

// True once the thread is asleep in system call `nr`, with its first argument in
// [low, high) where high is not 0. /proc/PID/task/TID/syscall holds "running", or the number and
// the six arguments in hex.
static inline bool target_is_blocked(pid_t tid, long nr, uintptr_t low, uintptr_t high)
{
	char path[64], text[256];
	unsigned long arg;
	long found;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (got <= 0)
		return false;
	text[got] = '\0';
	if (sscanf(text, "%ld %lx", &found, &arg) != 2 || found != nr)
		return false;
	return !high || (arg >= low && arg < high);
}

// Returns when the thread is blocked there; ends the target where that does not happen.
static inline void target_wait_blocked(pid_t tid, long nr, uintptr_t low, uintptr_t high)
{
	struct timespec nap = {.tv_nsec = 20000};

	for (uint64_t start = target_now(); !target_is_blocked(tid, nr, low, high);) {
		if (target_now() - start > TARGET_PATIENCE_NS) {
			fprintf(stderr, "target: thread %d never got into system call %ld\n", tid,
				nr);
			exit(1);
		}
		nanosleep(&nap, NULL);
		if (nap.tv_nsec < 5000000)
			nap.tv_nsec *= 2;
	}
}

// How often the thread has gone to sleep so far.
static inline unsigned long target_sleeps(pid_t tid)
{
	char path[64], line[128];
	unsigned long sleeps = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
	FILE *status = fopen(path, "re");
	while (status && fgets(line, sizeof(line), status))
		sscanf(line, "voluntary_ctxt_switches: %lu", &sleeps);
	if (!status || fclose(status))
		target_die(path);
	return sleeps;
}

// Of a thread that is blocked there now: returns when it has looked up, and is blocked again.
static inline void target_wait_blocked_again(pid_t tid, long nr, uintptr_t low, uintptr_t high)
{
	unsigned long before = target_sleeps(tid);
	struct timespec nap = {.tv_nsec = 1000000};

	while (target_sleeps(tid) == before)
		nanosleep(&nap, NULL);
	target_wait_blocked(tid, nr, low, high);
}

// Returns the value once another thread has stored one that is not 0.
static inline int target_wait_set(const int *value)
{
	struct timespec nap = {.tv_nsec = 20000};
	int got;

	while (!(got = __atomic_load_n(value, __ATOMIC_ACQUIRE)))
		nanosleep(&nap, NULL);
	return got;
}

static inline pthread_t target_thread(void *(*function)(void *), void *arg, size_t stack)
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	if (stack && (errno = pthread_attr_setstacksize(&attr, stack)))
		target_die("pthread_attr_setstacksize");
	errno = pthread_create(&thread, &attr, function, arg);
	if (errno)
		target_die("pthread_create");
	pthread_attr_destroy(&attr);
	return thread;
}

// The same on memory of the caller's, so that tens of thousands of threads need one mapping.
static inline pthread_t target_thread_on(void *(*function)(void *), void *arg, void *stack,
					 size_t size)
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	errno = pthread_attr_setstack(&attr, stack, size);
	if (errno)
		target_die("pthread_attr_setstack");
	errno = pthread_create(&thread, &attr, function, arg);
	if (errno)
		target_die("pthread_create");
	pthread_attr_destroy(&attr);
	return thread;
}

static inline void target_ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

// Reads one line from stdin. At its end the target exits.
static NOIPA __attribute__((unused)) void target_read_command(char *line, size_t size)
{
	size_t used = 0;
	char c;

	for (;;) {
		ssize_t got = read(STDIN_FILENO, &c, 1);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			exit(0);
		if (c == '\n')
			break;
		if (used + 1 < size)
			line[used++] = c;
	}
	line[used] = '\0';
}

// Answers commands forever. `answer` prints one line of JSON.
static NOIPA void __attribute__((noreturn, unused))
target_serve(void (*answer)(const char *command))
{
	char line[128];

	for (;;) {
		target_read_command(line, sizeof(line));
		if (answer)
			answer(line);
		else
			printf("{}\n");
		fflush(stdout);
	}
}

// Over at once. A library that keeps a ring of waits makes it at the first one, and who waits
// meanwhile is not in it.
static inline void target_wait_first(void)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
	struct timespec past = {0};

	pthread_mutex_lock(&mutex);
	pthread_cond_timedwait(&cond, &mutex, &past);
	pthread_mutex_unlock(&mutex);
}

#endif
