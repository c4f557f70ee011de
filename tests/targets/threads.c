// SPDX-License-Identifier: Apache-2.0
// threads N DEPTH [--wait KIND] [--heartbeat FILE] [--stack BYTES]: N threads blocked DEPTH known
// functions deep, each in the next kind of wait; with `--stack` on stacks of that size, side by side
// in one mapping. Commands: `gap`.
#include "heartbeat.h"
#include "levels.h"
#include "waits.h"

struct waiter {
	const struct wait_kind *kind;
	unsigned int depth;
	int tid;
};

static NOIPA void *waiter_main(void *arg)
{
	struct waiter *waiter = arg;
	char name[16];

	snprintf(name, sizeof(name), "w-%s", waiter->kind->name);
	pthread_setname_np(pthread_self(), name);
	__atomic_store_n(&waiter->tid, gettid(), __ATOMIC_RELEASE);
	levels_descend(waiter->depth, waiter->kind->wait, NULL);
	return NULL;
}

static void answer(const char *command)
{
	(void)command;
	heartbeat_answer();
}

int main(int argc, char **argv)
{
	const char *path = NULL, *only = NULL;
	unsigned int count, depth;
	struct waiter *waiters;
	size_t stack = 0;
	char *stacks = NULL;

	if (argc < 3) {
		fprintf(stderr, "usage: threads N DEPTH [--wait KIND] [--heartbeat FILE] "
				"[--stack BYTES]\n");
		return 2;
	}
	count = (unsigned int)strtoul(argv[1], NULL, 10);
	depth = (unsigned int)strtoul(argv[2], NULL, 10);
	for (int i = 3; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--wait"))
			only = argv[i + 1];
		else if (!strcmp(argv[i], "--heartbeat"))
			path = argv[i + 1];
		else if (!strcmp(argv[i], "--stack"))
			stack = strtoul(argv[i + 1], NULL, 10);
	}
	if (stack) {
		stacks = mmap(NULL, count * stack, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (stacks == MAP_FAILED)
			target_die("mmap");
		// A huge page would be many stacks at once.
		madvise(stacks, count * stack, MADV_NOHUGEPAGE);
	}
	waits_init();
	target_wait_first();
	waiters = calloc(count, sizeof(*waiters));
	if (!waiters)
		target_die("calloc");
	for (unsigned int i = 0; i < count; i++) {
		waiters[i].kind = only ? waits_find(only) : &wait_kinds[i % WAIT_KINDS];
		waiters[i].depth = depth;
		pthread_detach(
			stack ? target_thread_on(waiter_main, &waiters[i], stacks + i * stack,
						 stack)
			      : target_thread(waiter_main, &waiters[i], 65536 + depth * 512ul));
	}
	levels_print(depth);
	printf("{\"fact\":\"thread\",\"tid\":%d,\"wait\":\"main\",\"frames\":"
	       "[\"target_read_command\",\"target_serve\",\"main\"]}\n",
	       gettid());
	for (unsigned int i = 0; i < count; i++) {
		waits_wait_blocked(waiters[i].kind, target_wait_set(&waiters[i].tid));
		printf("{\"fact\":\"thread\",\"tid\":%d,\"wait\":\"%s\",\"syscall\":%ld,"
		       "\"leaf\":\"wait_%s\",\"depth\":%u,\"root\":\"waiter_main\"}\n",
		       waiters[i].tid, waiters[i].kind->name, waiters[i].kind->syscall,
		       waiters[i].kind->name, depth);
	}
	if (!heartbeat_start(path))
		target_die("heartbeat");
	printf("{\"fact\":\"heartbeat\",\"tid\":%d}\n", target_wait_set(&heartbeat_tid));
	target_ready();
	target_serve(answer);
}
