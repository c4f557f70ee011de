// SPDX-License-Identifier: Apache-2.0
#include "proc/stuck_child.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proc/proc_file.h"

bool stall_child_is_stuck(pid_t pid, struct stall_stuck *stuck, unsigned int patience_ms)
{
	char path[32], text[4096];
	const char *state = NULL, *switches = NULL;
	uint64_t count = 0;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n > 0) {
		text[n] = '\0';
		state = stall_proc_field(text, "\nState:");
		switches = stall_proc_field(text, "\nvoluntary_ctxt_switches:");
	}
	if (switches)
		count = strtoull(switches, NULL, 10);
	// It waits for a disk in either way, 'D' or 'S'.
	if (!state || state[strspn(state, "\t ")] == 'R' || count != stuck->switches)
		stuck->ms = 0;
	else
		stuck->ms += STALL_STUCK_LOOK_MS;
	stuck->switches = count;
	return stuck->ms >= patience_ms;
}
