// SPDX-License-Identifier: Apache-2.0
// The source's counts of locks and files, taken into the table.
#ifndef STALL_WATCH_STATS_H
#define STALL_WATCH_STATS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct stall_watch;

// Takes in all stats. *ret_used: how many there are.
struct stall_error *stall_watch_collect_stats(struct stall_watch *watch, uint64_t now_ns,
					      size_t *ret_used);
// Takes in what rings know by now of locks and files: that of a process that ends, or executes
// another program, cannot be asked later.
struct stall_error *stall_watch_take_stats(struct stall_watch *watch);
// Makes room for other locks and files; `used` stats of all are taken.
struct stall_error *stall_watch_retire_stats(struct stall_watch *watch, uint64_t now_ns,
					     size_t used);
// The program is another one now, and what lies at an address another lock.
struct stall_error *stall_watch_forget_locks(struct stall_watch *watch, pid_t pid);

#endif
