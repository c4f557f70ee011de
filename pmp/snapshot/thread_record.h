// SPDX-License-Identifier: Apache-2.0
// The BPF program's record of a thread, in the terms of a snapshot.
#ifndef STALL_THREAD_RECORD_H
#define STALL_THREAD_RECORD_H

#include <stdbool.h>

#include "ebpf/threads.h"
#include "snapshot/snapshot.h"

// As in /proc/PID/stat.
char stall_record_state(const struct stall_bpf_thread *record);

// The thread has exited and only waits to be reaped.
bool stall_record_is_dead(const struct stall_bpf_thread *record);

// It runs 32-bit code: its registers are not those of a 64-bit stack.
bool stall_record_is_32bit(const struct stall_bpf_thread *record);

// Between the first read of `before` and the last of `after` the thread was on no CPU, so
// everything that was copied of it in between is of one moment.
bool stall_record_did_not_run(const struct stall_bpf_thread *before,
			      const struct stall_bpf_thread *after);

// Sets everything but process, label, passes and stack. `frames` are record->kernel_frame_count
// addresses.
void stall_record_fill(const struct stall_bpf_thread *record, const uint64_t *frames,
		       struct stall_thread *ret);

#endif
