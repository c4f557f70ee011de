// SPDX-License-Identifier: Apache-2.0
// Preloaded into a server that a benchmark starts itself: a heartbeat inside of it.
// STALL_HEARTBEAT names the file, STALL_HEARTBEAT_COMM the one program that gets the thread.
#include "heartbeat.h"

#include <signal.h>

static __attribute__((constructor)) void heartbeat_preload(void)
{
	const char *path = getenv("STALL_HEARTBEAT"), *comm = getenv("STALL_HEARTBEAT_COMM");
	sigset_t all, before;

	if (!path || !comm || strcmp(program_invocation_short_name, comm) != 0)
		return;
	// Signals stay the server's own.
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	if (!heartbeat_start(path))
		fprintf(stderr, "heartbeat: %s: %s\n", path, strerror(errno));
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}
