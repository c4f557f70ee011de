// SPDX-License-Identifier: Apache-2.0
#include "proc/stuck_child.h"

#include <stdlib.h>
#include <string.h>

#include "proc/proc_file.h"

bool stall_child_is_stuck(pid_t pid, struct stall_stuck *stuck, unsigned int patience_ms)
{
	char text[4096];
	const char *state = NULL, *switches = NULL;
	uint64_t count = 0;

	if (stall_proc_read_of_child(pid, "status", text, sizeof(text))) {
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
