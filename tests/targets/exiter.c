// SPDX-License-Identifier: Apache-2.0
// exiter [MICROSECONDS]: sixteen blocked threads; the whole process exits at the command `exit`, or
// that long after `ready`.
#include "levels.h"
#include "waits.h"

static NOIPA void *exiter_thread(void *arg)
{
	__atomic_store_n((int *)arg, gettid(), __ATOMIC_RELEASE);
	levels_descend(6, wait_pause, NULL);
	return NULL;
}

static void answer(const char *command)
{
	if (!strcmp(command, "exit"))
		_exit(0);
}

int main(int argc, char **argv)
{
	int tids[16] = {0};

	for (int i = 0; i < 16; i++)
		pthread_detach(target_thread(exiter_thread, &tids[i], 65536));
	for (int i = 0; i < 16; i++)
		target_wait_blocked(target_wait_set(&tids[i]), SYS_pause, 0, 0);
	target_ready();
	if (argc > 1) {
		uint64_t until = target_now() + strtoull(argv[1], NULL, 10) * 1000;

		while (target_now() < until)
			sched_yield();
		_exit(0);
	}
	target_serve(answer);
}
