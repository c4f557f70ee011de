// SPDX-License-Identifier: Apache-2.0
// eintr N: N threads each in epoll_wait, semop, poll, nanosleep, read and recv, counting how often a
// call returned with EINTR. Stopping a thread makes epoll_wait and semop do that (signal(7)).
// Command `eintr`: the threads that saw it, by kind, and how often in all.
#include "waits.h"

struct sleeper {
	int kind;
	int tid;
	int interrupted;
};

static NOIPA int sleep_epoll(void)
{
	struct epoll_event event;
	int got = epoll_wait(waits.epoll, &event, 1, -1);

	KEEP_FRAME();
	return got;
}

static NOIPA int sleep_semop(void)
{
	struct sembuf down = {.sem_num = 0, .sem_op = -1};
	int got = semop(waits.semid, &down, 1);

	KEEP_FRAME();
	return got;
}

static NOIPA int sleep_poll(void)
{
	int got = poll(NULL, 0, -1);

	KEEP_FRAME();
	return got;
}

static NOIPA int sleep_nanosleep(void)
{
	struct timespec day = {.tv_sec = 86400};
	int got = nanosleep(&day, NULL);

	KEEP_FRAME();
	return got;
}

static NOIPA int sleep_read(void)
{
	char c;
	int got = (int)read(waits.pipe[0], &c, 1);

	KEEP_FRAME();
	return got;
}

static NOIPA int sleep_recv(void)
{
	char c;
	int got = (int)recv(waits.socket[0], &c, 1, 0);

	KEEP_FRAME();
	return got;
}

static const struct {
	const char *name;
	int (*sleep)(void);
	long syscall[2]; // either
} kinds[] = {
	{"epoll_wait", sleep_epoll, {SYS_epoll_wait, SYS_epoll_wait}},
	// glibc picks one of the two by the kernel that it was built for.
	{"semop", sleep_semop, {SYS_semtimedop, SYS_semop}},
	{"poll", sleep_poll, {SYS_poll, SYS_poll}},
	{"nanosleep", sleep_nanosleep, {SYS_clock_nanosleep, SYS_nanosleep}},
	{"read", sleep_read, {SYS_read, SYS_read}},
	{"recv", sleep_recv, {SYS_recvfrom, SYS_recvfrom}},
};
#define KINDS ((int)(sizeof(kinds) / sizeof(kinds[0])))

static struct sleeper *sleepers;
static int sleeper_count;

static NOIPA void *sleeper_main(void *arg)
{
	struct sleeper *sleeper = arg;

	pthread_setname_np(pthread_self(), kinds[sleeper->kind].name);
	__atomic_store_n(&sleeper->tid, gettid(), __ATOMIC_RELEASE);
	for (;;)
		if (kinds[sleeper->kind].sleep() < 0 && errno == EINTR)
			__atomic_fetch_add(&sleeper->interrupted, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void answer(const char *command)
{
	int total = 0;

	(void)command;
	printf("{\"threads\":{");
	for (int kind = 0; kind < KINDS; kind++) {
		int threads = 0;

		for (int i = 0; i < sleeper_count; i++) {
			int times = __atomic_load_n(&sleepers[i].interrupted, __ATOMIC_RELAXED);

			if (sleepers[i].kind == kind && times) {
				threads++;
				total += times;
			}
		}
		printf("%s\"%s\":%d", kind ? "," : "", kinds[kind].name, threads);
	}
	printf("},\"times\":%d}\n", total);
}

static void wait_asleep(const struct sleeper *sleeper)
{
	const long *nr = kinds[sleeper->kind].syscall;
	pid_t tid = target_wait_set(&sleeper->tid);

	for (uint64_t start = target_now(); target_now() - start < TARGET_PATIENCE_NS;) {
		struct timespec nap = {.tv_nsec = 50000};

		if (target_is_blocked(tid, nr[0], 0, 0) || target_is_blocked(tid, nr[1], 0, 0))
			return;
		nanosleep(&nap, NULL);
	}
	fprintf(stderr, "target: thread %d never fell asleep\n", tid);
	exit(1);
}

int main(int argc, char **argv)
{
	int each = argc > 1 ? atoi(argv[1]) : 25;

	waits_init();
	sleeper_count = each * KINDS;
	sleepers = calloc((size_t)sleeper_count, sizeof(*sleepers));
	if (!sleepers)
		target_die("calloc");
	for (int i = 0; i < sleeper_count; i++) {
		sleepers[i].kind = i % KINDS;
		pthread_detach(target_thread(sleeper_main, &sleepers[i], 65536));
	}
	for (int i = 0; i < sleeper_count; i++) {
		wait_asleep(&sleepers[i]);
		printf("{\"fact\":\"thread\",\"tid\":%d,\"wait\":\"%s\"}\n", sleepers[i].tid,
		       kinds[sleepers[i].kind].name);
	}
	target_ready();
	target_serve(answer);
}
