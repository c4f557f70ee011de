// SPDX-License-Identifier: Apache-2.0
// The life of a held process, and what it consists of.
#ifndef STALL_TARGET_H
#define STALL_TARGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "proc/target_handle.h"

struct stall_error *stall_target_init(struct stall_target *target, pid_t pid);
void stall_target_deinit(struct stall_target *target);

// NULL while the very process that was opened still runs (not a zombie, not another one).
struct stall_error *stall_target_check(const struct stall_target *target);

// TIDs from /proc/PID/task, sorted, at most `max` (STALL_ERROR_LIMIT above it). Free *ret.
struct stall_error *stall_target_tids(const struct stall_target *target, size_t max, pid_t **ret,
				      size_t *ret_count);
// The number of threads, without a list of them; 0: not known.
size_t stall_target_thread_count(pid_t pid);

// The numbers of the descriptors that the process has open, the first `max` of them. Free *ret.
struct stall_error *stall_target_descriptors(const struct stall_target *target, size_t max,
					     int32_t **ret, size_t *ret_count);

// Whether /proc has a process of this number for us.
bool stall_process_is_visible(pid_t pid);

#endif
