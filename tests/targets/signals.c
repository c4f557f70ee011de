// SPDX-License-Identifier: Apache-2.0
// signals N: N blocked threads and a handler that counts SIGRTMIN, which the kernel queues: each
// one that is sent must arrive. Commands: `signals`.
#include "levels.h"
#include "waits.h"

static volatile int received;

static void on_signal(int signal)
{
	(void)signal;
	__atomic_fetch_add(&received, 1, __ATOMIC_RELAXED);
}

static NOIPA void *signals_thread(void *arg)
{
	__atomic_store_n((int *)arg, gettid(), __ATOMIC_RELEASE);
	levels_descend(6, wait_pause, NULL);
	return NULL;
}

static void answer(const char *command)
{
	(void)command;
	printf("{\"signals\":%d}\n", received);
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	int count = argc > 1 ? atoi(argv[1]) : 16;
	int *tids = calloc((size_t)count + 1, sizeof(*tids));

	if (!tids || sigaction(SIGRTMIN, &action, NULL))
		target_die("sigaction");
	levels_print(6);
	for (int i = 0; i < count; i++) {
		pthread_detach(target_thread(signals_thread, &tids[i], 65536));
		target_wait_blocked(target_wait_set(&tids[i]), SYS_pause, 0, 0);
		printf("{\"fact\":\"thread\",\"tid\":%d,\"wait\":\"pause\",\"syscall\":34,"
		       "\"leaf\":\"wait_pause\",\"depth\":6,\"root\":\"signals_thread\"}\n",
		       tids[i]);
	}
	target_ready();
	target_serve(answer);
}
