// SPDX-License-Identifier: Apache-2.0
// leaderless: the main thread has ended, which leaves a zombie under the process's own number, and
// the others live on. /proc/PID/maps and exe of such a process are empty.
#include "levels.h"
#include "waits.h"

static NOIPA void *survivor_main(void *arg)
{
	__atomic_store_n((int *)arg, gettid(), __ATOMIC_RELEASE);
	levels_descend(6, wait_pause, NULL);
	return NULL;
}

static NOIPA void *control_main(void *arg)
{
	char path[64], text[512] = "";

	(void)arg;
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", getpid());
	do {
		int fd = open(path, O_RDONLY | O_CLOEXEC);

		if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
			target_die(path);
		close(fd);
		sched_yield();
	} while (!strstr(text, ") Z"));
	target_ready();
	target_serve(NULL);
}

int main(void)
{
	static int tids[4];

	levels_print(6);
	for (int i = 0; i < 4; i++) {
		pthread_detach(target_thread(survivor_main, &tids[i], 65536));
		target_wait_blocked(target_wait_set(&tids[i]), SYS_pause, 0, 0);
		printf("{\"fact\":\"thread\",\"tid\":%d,\"wait\":\"pause\",\"syscall\":34,"
		       "\"leaf\":\"wait_pause\",\"depth\":6,\"root\":\"survivor_main\"}\n",
		       tids[i]);
	}
	pthread_detach(target_thread(control_main, NULL, 65536));
	pthread_exit(NULL);
}
