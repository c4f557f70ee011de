// SPDX-License-Identifier: Apache-2.0
// execer MICROSECONDS OTHER: lives that long with a few blocked threads, then executes OTHER with
// itself as the other, again and again, until stdin closes.
#include "levels.h"
#include "waits.h"

// Two programs are made of this file, at the same addresses but with other functions there:
// confusing them gives names that were never called.
#ifdef EXECER_OTHER
#define EXECER_THREAD other_thread

// Comes before all functions.
__asm__(".text\n\t.skip 48, 0xcc\n");
#else
#define EXECER_THREAD execer_thread
#endif

static NOIPA void *EXECER_THREAD(void *arg)
{
	(void)arg;
	levels_descend(6, wait_pause, NULL);
	return NULL;
}

int main(int argc, char **argv)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	char self[4096];
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (argc < 3 || length < 0) {
		fprintf(stderr, "usage: execer MICROSECONDS OTHER\n");
		return 2;
	}
	self[length] = '\0';
	for (int i = 0; i < 4; i++)
		pthread_detach(target_thread(EXECER_THREAD, NULL, 65536));
	if (!getenv("EXECER_READY")) {
		setenv("EXECER_READY", "1", 1);
		target_ready();
	}
	// Only input on stdin, or its end, ends this: where there is no memory for the next program
	// at the moment, it is tried again.
	for (;;) {
		long us = atol(argv[1]);

		if (ppoll(&input, 1,
			  &(struct timespec){.tv_sec = us / 1000000,
					     .tv_nsec = us % 1000000 * 1000},
			  NULL) > 0)
			return 0;
		execl(argv[2], argv[2], argv[1], self, (char *)NULL);
		if (errno != EAGAIN && errno != ENOMEM && errno != EINTR)
			target_die("execl");
	}
}
