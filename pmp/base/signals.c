// SPDX-License-Identifier: Apache-2.0
#include "base/signals.h"

#include <errno.h>
#include <signal.h>
#include <sys/signalfd.h>

struct stall_error *stall_signals_block(int *ret_fd)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return stall_error_os(errno, "sigprocmask");
	*ret_fd = signalfd(-1, &set, SFD_CLOEXEC);
	return *ret_fd < 0 ? stall_error_os(errno, "signalfd") : NULL;
}
