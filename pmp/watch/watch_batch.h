// SPDX-License-Identifier: Apache-2.0
// Records are collected to batches, whose stacks are copied and unwound together.
#ifndef STALL_WATCH_BATCH_H
#define STALL_WATCH_BATCH_H

#include <stdint.h>

#include "base/error.h"
#include "ebpf/waits.h"

struct stall_watch;

void stall_watch_take_record(struct stall_watch *watch, const struct stall_wait_record *record,
			     const uint8_t *stack);
// Copies the stacks of new waits in flight, and reports these waits for captures.
struct stall_error *stall_watch_take_alarms(struct stall_watch *watch);
struct stall_error *stall_watch_flush(struct stall_watch *watch);

#endif
