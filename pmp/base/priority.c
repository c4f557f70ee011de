// SPDX-License-Identifier: Apache-2.0
#include "base/priority.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cleanup.h"

#define NICE -20

// Where the kernel divides CPU time among sessions first (sched(7), "The autogroup feature": the
// default of CONFIG_SCHED_AUTOGROUP), a nice value only counts within one session, and this file
// has the nice value of the session. A session belongs to this process only if it is the leader.
static void raise_session(void)
{
	_cleanup_close_ int fd = -1;

	if (getsid(0) != getpid())
		return;
	fd = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	dprintf(fd, "%d\n", NICE);
}

void stall_raise_priority(void)
{
	setpriority(PRIO_PROCESS, 0, NICE);
	raise_session();
}
