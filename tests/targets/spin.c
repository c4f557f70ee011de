// SPDX-License-Identifier: Apache-2.0
// spin [KIND...]: threads that never sleep, in known frames. KIND is `user` (a loop), `syscall`
// (getppid again and again) or `vdso` (clock_gettime); in addition one thread that is blocked.
// Commands: `turns`.
#include "levels.h"
#include "waits.h"

static volatile unsigned long turns;

static NOIPA void spin_user(void *arg)
{
	(void)arg;
	for (;;) {
		turns++;
		KEEP_FRAME();
	}
}

static NOIPA void spin_syscall(void *arg)
{
	(void)arg;
	for (;;) {
		getppid();
		turns++;
	}
}

static NOIPA void spin_vdso(void *arg)
{
	struct timespec ts;

	(void)arg;
	for (;;) {
		clock_gettime(CLOCK_MONOTONIC, &ts);
		turns++;
	}
}

struct spinner {
	void (*spin)(void *);
	const char *kind;
	int tid;
};

static NOIPA void *spinner_main(void *arg)
{
	struct spinner *spinner = arg;

	__atomic_store_n(&spinner->tid, gettid(), __ATOMIC_RELEASE);
	levels_descend(6, spinner->spin, NULL);
	return NULL;
}

static NOIPA void *blocked_main(void *arg)
{
	__atomic_store_n((int *)arg, gettid(), __ATOMIC_RELEASE);
	levels_descend(6, wait_pause, NULL);
	return NULL;
}

static void answer(const char *command)
{
	(void)command;
	printf("{\"turns\":%lu}\n", turns);
}

int main(int argc, char **argv)
{
	struct spinner *spinners = calloc((size_t)argc, sizeof(*spinners));
	int blocked = 0;

	if (!spinners)
		target_die("calloc");
	pthread_detach(target_thread(blocked_main, &blocked, 65536));
	target_wait_blocked(target_wait_set(&blocked), SYS_pause, 0, 0);
	levels_print(6);
	printf("{\"fact\":\"thread\",\"tid\":%d,\"wait\":\"pause\",\"syscall\":34,"
	       "\"leaf\":\"wait_pause\",\"depth\":6,\"root\":\"blocked_main\"}\n",
	       blocked);
	for (int i = 1; i < argc; i++) {
		spinners[i].kind = argv[i];
		spinners[i].spin = !strcmp(argv[i], "user")	 ? spin_user
				   : !strcmp(argv[i], "syscall") ? spin_syscall
								 : spin_vdso;
		pthread_detach(target_thread(spinner_main, &spinners[i], 65536));
		printf("{\"fact\":\"thread\",\"tid\":%d,\"spin\":\"%s\",\"leaf\":\"spin_%s\","
		       "\"depth\":6,\"root\":\"spinner_main\"}\n",
		       target_wait_set(&spinners[i].tid), argv[i], argv[i]);
	}
	if (argc > 1)
		while (turns < 1000)
			sched_yield();
	target_ready();
	target_serve(answer);
}
