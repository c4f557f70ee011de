// SPDX-License-Identifier: Apache-2.0
#include "proc/paths.h"
#include "proc/proc_file.h"
#include "proc/read_child.h"
#include "proc/target.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child_process.h"
#include "check.h"

#define PAGE 4096UL

static uint8_t *pages; // [readable][unreadable][readable], the same in the child

static pid_t reused; // the number of a thread that is another process's when it is opened next

int open_path(const char *path, int flags, ...) __asm__("open64");

// In place of the C library's.
int open_path(const char *path, int flags, ...)
{
	char name[32];

	snprintf(name, sizeof(name), "/proc/%d", reused);
	if (reused && !strcmp(path, name)) {
		reused = 0;
		path = "/proc/self";
	}
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0);
}

static void end_child(pid_t child)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

static void check_refused(pid_t pid, enum stall_error_code code)
{
	struct stall_target target;
	struct stall_error *err = stall_target_init(&target, pid);

	CHECK(err && err->code == code);
	stall_error_destroy(err);
}

static void *report_tid(void *arg)
{
	__atomic_store_n((pid_t *)arg, gettid(), __ATOMIC_RELEASE);
	pause(); // until it is cancelled
	return NULL;
}

static void test_refusals(void)
{
	pthread_t thread;
	pid_t tid = 0;

	check_refused(0, STALL_ERROR_USAGE);
	check_refused(-1, STALL_ERROR_USAGE);
	check_refused(0x3fffffff, STALL_ERROR_NO_PROCESS);
	pthread_create(&thread, NULL, report_tid, &tid);
	while (!__atomic_load_n(&tid, __ATOMIC_ACQUIRE))
		sched_yield();
	check_refused(tid, STALL_ERROR_USAGE);
	pthread_cancel(thread);
	pthread_join(thread, NULL);
}

static void test_reads(const struct stall_target *target)
{
	uint8_t a[64], b[2 * PAGE], c[64];
	struct stall_read reads[] = {
		{.address = (uintptr_t)pages + 100, .buf = a, .size = sizeof(a)},
		{.address = (uintptr_t)pages + PAGE / 2, .buf = b, .size = sizeof(b)},
		{.address = (uintptr_t)pages + PAGE, .buf = c, .size = sizeof(c)},
		{.address = 0, .buf = c, .size = sizeof(c)},
		{.address = UINT64_MAX - 8, .buf = c, .size = sizeof(c)},
		{.address = (uintptr_t)pages + 2 * PAGE, .buf = c, .size = sizeof(c)},
		{.address = (uintptr_t)pages, .buf = NULL, .size = 0},
	};

	CHECK_OK(stall_read_child_memory(target, reads, sizeof(reads) / sizeof(reads[0])));
	CHECK_INT(reads[0].done, sizeof(a));
	CHECK_INT(a[0], 'a');
	CHECK_INT(reads[1].done, PAGE / 2); // as far as it goes
	CHECK_INT(b[PAGE / 2 - 1], 'a');
	CHECK_INT(reads[2].done, 0);
	CHECK_INT(reads[3].done, 0);
	CHECK_INT(reads[4].done, 0);
	CHECK_INT(reads[5].done, sizeof(c));
	CHECK_INT(c[0], 'c');
	CHECK_INT(reads[6].done, 0);
	CHECK_INT(stall_read_child_range(target, (uintptr_t)pages + PAGE - 8, b, 16), 8);
}

// More ranges than go into one call, every third of them unreadable.
static void test_many_reads(const struct stall_target *target)
{
	enum { COUNT = 3000 };
	struct stall_read *reads = calloc(COUNT, sizeof(*reads));
	uint32_t *bufs = calloc(COUNT, sizeof(*bufs));
	int wrong = 0;

	for (int i = 0; i < COUNT; i++)
		reads[i] = (struct stall_read){
			.address = (uintptr_t)pages + (i % 3 == 1 ? PAGE
						       : i % 3	  ? 2 * PAGE
								  : 0),
			.buf = &bufs[i],
			.size = sizeof(bufs[i]),
		};
	CHECK_OK(stall_read_child_memory(target, reads, COUNT));
	for (int i = 0; i < COUNT; i++) {
		wrong += reads[i].done != (i % 3 == 1 ? 0 : sizeof(bufs[i]));
		wrong += bufs[i] != (i % 3 == 1 ? 0 : i % 3 ? 0x63636363 : 0x61616161);
	}
	CHECK_INT(wrong, 0);
	free(reads);
	free(bufs);
}

struct reader {
	const struct stall_target *target;
	uint64_t address;
	size_t size;
	uint8_t byte; // that all of it is
	int wrong;
};

static void *read_often(void *arg)
{
	struct reader *reader = arg;
	uint8_t bytes[512];

	for (int i = 0; i < 5000; i++) {
		memset(bytes, 0, sizeof(bytes));
		reader->wrong += stall_read_child_range(reader->target, reader->address, bytes,
							reader->size) != reader->size;
		for (size_t at = 0; at < sizeof(bytes); at++)
			reader->wrong += bytes[at] != (at < reader->size ? reader->byte : 0);
	}
	return NULL;
}

// The poller reads in a thread of its own: each gets its answer, and no more than it asked for.
static void test_two_threads(const struct stall_target *target)
{
	struct reader readers[] = {
		{.target = target, .address = (uintptr_t)pages, .size = 48, .byte = 'a'},
		{.target = target,
		 .address = (uintptr_t)pages + 2 * PAGE,
		 .size = 224,
		 .byte = 'c'},
	};
	pthread_t thread;

	CHECK_INT(pthread_create(&thread, NULL, read_often, &readers[0]), 0);
	read_often(&readers[1]);
	pthread_join(thread, NULL);
	CHECK_INT(readers[0].wrong, 0);
	CHECK_INT(readers[1].wrong, 0);
}

static void test_child(void)
{
	pid_t child = stall_idle_child_create();
	struct stall_target target;
	pid_t *tids = NULL;
	size_t count = 0;

	CHECK_OK(stall_target_init(&target, child));
	CHECK_INT(target.pid, child);
	CHECK_INT(target.reader, child);
	CHECK(target.start_time > 0);
	CHECK_OK(stall_target_check(&target));
	CHECK_OK(stall_target_tids(&target, 10, &tids, &count));
	CHECK(count == 1 && tids[0] == child);
	free(tids);
	test_reads(&target);
	test_many_reads(&target);
	test_two_threads(&target);

	kill(child, SIGKILL);
	siginfo_t info;
	waitid(P_PID, child, &info, WEXITED | WNOWAIT);
	struct stall_error *err = stall_target_check(&target); // a zombie
	CHECK(err && err->code == STALL_ERROR_NO_PROCESS);
	stall_error_destroy(err);
	check_refused(child, STALL_ERROR_NO_PROCESS);
	end_child(child);
	err = stall_target_check(&target);
	CHECK(err && err->code == STALL_ERROR_NO_PROCESS);
	stall_error_destroy(err);
	err = stall_target_tids(&target, 10, &tids, &count);
	CHECK(err && err->code == STALL_ERROR_NO_PROCESS);
	stall_error_destroy(err);
	struct stall_read read = {.address = (uintptr_t)pages, .buf = &count, .size = 4};
	err = stall_read_child_memory(&target, &read, 1);
	CHECK(err && err->code == STALL_ERROR_NO_PROCESS);
	CHECK_INT(read.done, 0);
	stall_error_destroy(err);
	stall_target_deinit(&target);
	CHECK(target.pidfd == -1 && target.procfd == -1);
}

static void test_thread_limit(void)
{
	struct stall_target self;
	pid_t *tids = NULL, tid[3] = {};
	pthread_t threads[3];
	size_t count = 0;

	for (int i = 0; i < 3; i++) {
		pthread_create(&threads[i], NULL, report_tid, &tid[i]);
		while (!__atomic_load_n(&tid[i], __ATOMIC_ACQUIRE))
			sched_yield();
	}
	CHECK_OK(stall_target_init(&self, getpid()));
	CHECK_OK(stall_target_tids(&self, 4, &tids, &count));
	CHECK_INT(count, 4);
	for (size_t i = 1; i < count; i++)
		CHECK(tids[i] > tids[i - 1]);
	free(tids);
	struct stall_error *err = stall_target_tids(&self, 3, &tids, &count);
	CHECK(err && err->code == STALL_ERROR_LIMIT);
	stall_error_destroy(err);
	stall_target_deinit(&self);
	for (int i = 0; i < 3; i++) {
		pthread_cancel(threads[i]);
		pthread_join(threads[i], NULL);
	}
}

// A process whose first thread has ended is read by another of its threads. Where that ends too, its
// number may be another process's by the time that it is used.
static void test_reader_of_another_process(void)
{
	char text[4096], tgid[32];
	struct stall_target target;
	pthread_t thread;
	pid_t child = fork(), tid = 0;

	if (child == 0) {
		pthread_create(&thread, NULL, report_tid, &tid);
		pthread_exit(NULL);
	}
	for (tid = child; tid == child; sched_yield()) {
		CHECK_OK(stall_target_init(&target, child));
		tid = target.reader;
		stall_target_deinit(&target);
	}
	reused = tid;
	CHECK_OK(stall_target_init(&target, child));
	CHECK_INT(reused, 0);
	CHECK_INT(target.reader, tid);
	snprintf(tgid, sizeof(tgid), "\nTgid:\t%d\n", child);
	CHECK(stall_proc_read(&target, "status", text, sizeof(text)) > 0 && strstr(text, tgid));
	stall_target_deinit(&target);
	end_child(child);
}

static void test_roots(void)
{
	CHECK_STRING(stall_path_in_root("/srv/x/usr/bin/a", "/srv/x"), "/usr/bin/a");
	CHECK_STRING(stall_path_in_root("/srv/xy/a", "/srv/x"), "/srv/xy/a");
	CHECK_STRING(stall_path_in_root("/usr/bin/a", ""), "/usr/bin/a");
	CHECK_STRING(stall_path_in_root("/srv/x", "/srv/x"), "/srv/x");
}

int main(void)
{
	pages = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(pages, 'a', PAGE);
	memset(pages + 2 * PAGE, 'c', PAGE);
	mprotect(pages + PAGE, PAGE, PROT_NONE);
	test_refusals();
	test_child();
	test_thread_limit();
	test_reader_of_another_process();
	test_roots();
	return check_done();
}
