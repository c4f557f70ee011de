// SPDX-License-Identifier: Apache-2.0
// The keys of a BPF map whose keys are pids.
#ifndef STALL_PID_SET_H
#define STALL_PID_SET_H

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

struct stall_pid_set {
	pid_t *pids;
	size_t count;
};

// Replaces the keys that it has put into the map.
struct stall_error *stall_pid_set_fill(struct stall_pid_set *set, int map, const pid_t *pids,
				       size_t count);
void stall_pid_set_deinit(struct stall_pid_set *set);

#endif
