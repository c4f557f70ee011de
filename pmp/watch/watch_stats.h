// SPDX-License-Identifier: Apache-2.0
// Adds the source's counts of locks and files to the table.
#ifndef STALL_WATCH_STATS_H
#define STALL_WATCH_STATS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct stall_watch;

// Adds all stats. *ret_used: their number.
struct stall_error *stall_watch_collect_stats(struct stall_watch *watch, uint64_t now_ns,
					      size_t *ret_used);
// Takes in what rings know by now of locks and files: that of a process that ends, or executes
// another program, cannot be asked later.
struct stall_error *stall_watch_take_stats(struct stall_watch *watch);
// Makes room for other locks and files; `used` stats of all are taken.
struct stall_error *stall_watch_retire_stats(struct stall_watch *watch, uint64_t now_ns,
					     size_t used);
// The process executes another program now, and has other locks at the same addresses.
struct stall_error *stall_watch_forget_locks(struct stall_watch *watch, pid_t pid);

#endif
