// SPDX-License-Identifier: Apache-2.0
// Cores of targets, where the kernel writes them.
#ifndef STALL_CORE_FILE_H
#define STALL_CORE_FILE_H

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "target_process.h"

// Changes to a folder and allows cores. The kernel writes "core" into the working directory, unless
// it is configured otherwise.
static inline bool cores_are_written_to(const char *dir)
{
	const struct rlimit limit = {64 << 20, 64 << 20};
	char pattern[128] = "";
	_cleanup_fclose_ FILE *file = fopen("/proc/sys/kernel/core_pattern", "re");

	return chdir(dir) == 0 && setrlimit(RLIMIT_CORE, &limit) == 0 && file &&
	       fgets(pattern, sizeof(pattern), file) && strcmp(pattern, "core\n") == 0;
}

static inline int open_core(pid_t pid)
{
	char name[64];
	int fd = open("core", O_RDONLY | O_CLOEXEC);

	snprintf(name, sizeof(name), "core.%d", pid); // with core_uses_pid
	if (fd < 0)
		fd = open(name, O_RDONLY | O_CLOEXEC);
	unlink("core");
	unlink(name);
	return fd;
}

// Ends the target; -1: there is no core of it.
static inline int dump_core(struct target_process *target)
{
	pid_t pid = target->pid;

	kill(pid, SIGABRT);
	waitpid(pid, NULL, 0);
	target->pid = 0;
	return open_core(pid);
}

#endif
