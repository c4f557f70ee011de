// SPDX-License-Identifier: Apache-2.0
// Samples of perf events of the software clocks: registers and stack of a thread, copied by the
// kernel where it interrupted the thread on a CPU.
#ifndef STALL_PERF_RECORD_H
#define STALL_PERF_RECORD_H

#include <linux/perf_event.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "snapshot/snapshot.h"

// An event that is disabled, of PERF_COUNT_SW_TASK_CLOCK or _CPU_CLOCK.
void stall_perf_attr(uint64_t clock, uint64_t period_ns, size_t max_stack,
		     struct perf_event_attr *ret);
// The process and thread of a sample, in the reader's pid namespace. The sample begins behind its
// header.
bool stall_perf_ids(const uint8_t *at, const uint8_t *end, uint32_t ret[2]);
// Registers, stack and kernel frames of the thread; its tid, process and fs_base are set before.
// False: it is no sample of this thread.
bool stall_perf_take(const uint8_t *at, const uint8_t *end, const struct stall_snapshot *snapshot,
		     struct stall_thread *thread);

#endif
