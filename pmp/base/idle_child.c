// SPDX-License-Identifier: Apache-2.0
#include "base/idle_child.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

pid_t stall_idle_child_create(void)
{
	// A child is born with its parent's answer, so nobody has to wait until it has set its own.
	bool forbidden = prctl(PR_GET_DUMPABLE) != 1;
	pid_t parent = getpid();

	if (forbidden)
		prctl(PR_SET_DUMPABLE, 1);
	pid_t child = fork();
	int errnum = errno;
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		// It may have been killed before that.
		while (getppid() == parent)
			pause();
		_exit(0);
	}
	if (forbidden)
		prctl(PR_SET_DUMPABLE, 0);
	errno = errnum;
	return child;
}

void stall_idle_child_destroy(pid_t child)
{
	int errnum = errno;

	kill(child, SIGKILL);
	waitpid(child, NULL, __WALL);
	errno = errnum;
}
