// SPDX-License-Identifier: Apache-2.0
#include "base/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static void close_from(int first)
{
	if (syscall(SYS_close_range, first, ~0U, 0) == 0)
		return;
	for (int fd = first; fd < 65536; fd++) // before Linux 5.9
		close(fd);
}

void stall_child_keep_only(const int *fds, int count)
{
	int null = open("/dev/null", O_RDWR), apart[STALL_CHILD_MAX_FDS];

	// None of them may be closed for another's number.
	for (int i = 0; i < count; i++)
		apart[i] = fcntl(fds[i], F_DUPFD, STALL_CHILD_FD + count);
	for (int i = 0; i < STALL_CHILD_FD; i++)
		dup2(null, i);
	for (int i = 0; i < count; i++)
		dup2(apart[i], STALL_CHILD_FD + i);
	close_from(STALL_CHILD_FD + count);
}

void stall_child_set_signals(void)
{
	for (int signal_number = 1; signal_number < NSIG; signal_number++)
		signal(signal_number, SIG_DFL);
	signal(SIGINT, SIG_IGN);
	signal(SIGQUIT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
}

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
